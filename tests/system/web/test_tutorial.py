"""The analyst's path as it is written: the tutorial's every command, in order, in an empty home."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.notebook import agrees, expected, run
from tests.support.places import ROOT
from tests.support.svg import differences

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
