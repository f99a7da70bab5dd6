"""The analyst's path as it is written: the tutorial's every command, in order, in an empty home."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.documents import differences
from tests.support.harness import ROOT

pytestmark = pytest.mark.slow


def checkout(place: Path) -> Path:
    """As much of a checkout as the tutorial takes, with nothing that an earlier run left."""
    (place / "docs").mkdir()
    shutil.copytree(ROOT / "docs" / "examples", place / "docs" / "examples")
    shutil.copy(ROOT / "docs" / "tutorial.ipynb", place / "docs")
    return place


def empty_home(place: Path) -> dict[str, str]:
    """Nothing of this user's: only where programs are, and a home with nothing in it."""
    place.mkdir()
    programs = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    kept = {n: os.environ[n] for n in ("PYTHONPYCACHEPREFIX", "LANG") if n in os.environ}
    return {"HOME": str(place), "PATH": programs, **kept}


def test_every_cell_prints_what_the_tutorial_says(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    at = checkout(tmp_path / "checkout")
    notebook = at / "docs" / "tutorial.ipynb"
    printed = run(notebook, empty_home(tmp_path / "home"))
    wanted = expected(notebook)
    assert sum(map(bool, wanted)) >= 6
    for shown, told in zip(printed, wanted, strict=True):
        assert agrees(shown, told), f"{told}\n--- is not ---\n{shown}"
    for name in ("small", "large", "biased"):
        picture = ROOT / "docs" / "pictures" / f"tutorial-{name}.svg"
        assert differences((at / f"{name}.svg").read_text(), picture.read_text()) == [], name
    assert (at / "heat.parquet").stat().st_size > 0
    assert list((tmp_path / "home").iterdir()) == [], "the rehearsal leaves nothing at home"


# --- the notebook, run without Jupyter: its cells in order, in one fresh process ------------------

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
