"""The tutorial's every command, in order, in an empty home, prints what the tutorial shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.documents import differences
from tests.support.harness import ROOT

pytestmark = pytest.mark.slow

# Runs a notebook's cells without Jupyter, and prints what each of them printed.
RUNNER: Final = """
import contextlib, io, json, os, subprocess, sys
names, outputs = {"__name__": "__main__"}, []
for source in json.load(sys.stdin):
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
    outputs.append(out.getvalue())
print(json.dumps(outputs))
"""


def test_every_cell_prints_what_the_tutorial_shows(tmp_path: Path) -> None:
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    home.mkdir()
    shutil.copytree(ROOT / "docs" / "examples", checkout / "docs" / "examples")
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kept = {n: os.environ[n] for n in ("PYTHONPYCACHEPREFIX", "LANG") if n in os.environ}
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(["".join(cell["source"]) for cell in cells]),
        cwd=checkout / "docs",
        env={"HOME": str(home), "PATH": path, **kept},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = ["".join(line for o in cell["outputs"] for line in o["text"]) for cell in cells]
    assert sum(map(bool, expected)) >= 6
    for printed, shown in zip(json.loads(done.stdout.splitlines()[-1]), expected, strict=True):
        parts = (re.escape(part) for part in shown.split("[...]"))  # which stands for anything
        agrees = not shown or re.fullmatch(".*?".join(parts), printed, re.DOTALL)
        assert agrees, f"{shown}\n--- is not ---\n{printed}"
    for name in ("small", "biased", "rooms"):
        picture = ROOT / "docs" / "pictures" / f"tutorial-{name}.svg"
        assert differences((checkout / f"{name}.svg").read_text(), picture.read_text()) == [], name
    assert (checkout / "heat.parquet").stat().st_size > 0
    assert list(home.iterdir()) == [], "the rehearsal leaves nothing at home"
