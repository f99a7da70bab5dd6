"""A module that was put off is there when it is used, and nothing else is changed."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from protocol_spec.programs.mqtt import lazy_import
finders = list(sys.meta_path)
with lazy_import("xmlrpc.client"):
    import xmlrpc.client
assert sys.meta_path == finders
assert "http.client" not in sys.modules  # neither of paho nor of this
assert xmlrpc.client.Fault
assert "http.client" in sys.modules
with lazy_import("json.tool"):
    import html.entities  # another is as ever
assert html.entities.__spec__.loader.__class__.__name__ == "SourceFileLoader"
print("done")
"""


def test_it_is_loaded_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
