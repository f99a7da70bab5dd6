"""S1: the wheel is the same bytes wherever it is built."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.slow


def git(place: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(place), *words], check=True, capture_output=True)


def test_two_builds_in_two_places_give_the_same_wheel(tmp_path: Path) -> None:
    """Other directories, other modes, another time zone, other files lying around."""
    assert int(version("setuptools").split(".")[0]) >= 77, "run ./scripts/test once: it installs it"
    made = []
    for place, umask, zone in (
        (tmp_path / "a", 0o022, "UTC"),
        (tmp_path / "b/c", 0o077, "Asia/Tokyo"),
    ):
        before = os.umask(umask)
        try:
            git(ROOT, "clone", "--quiet", "--local", "--no-hardlinks", str(ROOT), str(place))
            (place / "edge_client" / "notes.py").write_text("private = 1\n", encoding="utf-8")
        finally:
            os.umask(before)
        done = subprocess.run(
            [sys.executable, "scripts/supply_chain.py", "wheel", str(tmp_path / f"out{umask}")],
            cwd=place,
            env={**os.environ, "TZ": zone, "PYTHONPATH": f"{place}/scripts:{place}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made.append(Path(done.stdout.strip()))
    first, second = (sha256(wheel.read_bytes()).hexdigest() for wheel in made)
    assert first == second
    with zipfile.ZipFile(made[0]) as wheel:
        names = wheel.namelist()
    assert "edge_client/notes.py" not in names
    assert {"edge_client/__main__.py", "collector/web/static/page.js"} <= set(names)
