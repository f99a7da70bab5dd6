"""A notebook run without Jupyter: its cells in order, in one fresh process, as a reader would.

Cells of `%%bash` go to bash, `%cd` changes the directory, everything else is Python. What each
cell printed comes back; one that fails ends the run, as in Jupyter.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

RUNNER: Final = """
import contextlib, io, json, os, subprocess, sys
names, told = {"__name__": "__main__"}, []
for source in json.load(open(sys.argv[1])):
    out = io.StringIO()
    if source.startswith("%%bash\\n"):
        script = source.removeprefix("%%bash\\n")
        done = subprocess.run(["bash", "-e"], input=script, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        out.write(done.stdout)
        if done.returncode:
            sys.exit(f"{source}\\n{done.stdout}\\nended with {done.returncode}")
    elif source.startswith("%cd -q "):
        os.chdir(source.removeprefix("%cd -q "))
    else:
        with contextlib.redirect_stdout(out):
            exec(compile(source, "a cell", "exec"), names)
    told.append(out.getvalue())
print(json.dumps(told))
"""


def run(notebook: Path, environ: Mapping[str, str]) -> list[str]:
    """What each cell of code prints, run in the notebook's own directory."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = notebook.with_suffix(".cells.json")
    sources.write_text(json.dumps(["".join(c["source"]) for c in cells if _is_code(c)]))
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, sources.resolve()],
        cwd=notebook.parent,
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: list[str] = json.loads(done.stdout.splitlines()[-1])
    return told


def expected(notebook: Path) -> list[str]:
    """What the cells of code are said to print."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(line for o in c["outputs"] for line in o["text"]) for c in cells if _is_code(c)]


def _is_code(cell: Mapping[str, object]) -> bool:
    return cell["cell_type"] == "code"


def agrees(printed: str, told: str) -> bool:
    """Whether it is what was told; `[...]` stands for anything, and so does nothing at all."""
    parts = (re.escape(part) for part in told.split("[...]"))
    return not told or re.fullmatch(".*?".join(parts), printed, re.DOTALL) is not None
