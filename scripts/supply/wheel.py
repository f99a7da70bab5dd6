"""The project's wheel, byte for byte the same wherever and whenever it is built.

What could differ is taken away: only files that git knows, with modes that do not depend on the
checkout, the time of the last commit, and the builder that is pinned.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from supply.needed import ROOT

_FILES: Final = ("pyproject.toml", "README.md", "LICENSE")
_SIM: Final = ("scripts/allomfree_sim", "scripts/simulation", "scripts/paper", "scripts/testbed")
BUILD: Final = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
PARTS: Final = (*_FILES, "protocol_spec", "edge_client", "collector", *_SIM)


def build(directory: Path, root: Path = ROOT) -> Path:
    """Build it into a directory; returns the file."""
    with TemporaryDirectory(prefix="allomfree-wheel-") as name:
        source, made = Path(name) / "source", Path(name) / "made"
        for file in tracked(root, *PARTS):
            _copy(root / file, source / file)
        _run(source, made, environment(root))
        (wheel,) = made.glob("*.whl")
        directory.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, directory / wheel.name))


def tracked(root: Path, *parts: str) -> list[str]:
    """The files that git knows, all of them or those in some parts."""
    return _git(root, "ls-files", "-z", "--", *parts).rstrip("\0").split("\0")


def committed(root: Path) -> str:
    """When the last commit was made, in Unix seconds."""
    return _git(root, "log", "-1", "--format=%ct").strip()


def environment(root: Path) -> dict[str, str]:
    """Variables of a build that depends on no clock and no chance."""
    return {**os.environ, "SOURCE_DATE_EPOCH": committed(root), "PYTHONHASHSEED": "0"}


def _git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *words], check=True, capture_output=True, text=True
    ).stdout


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o644)


def _run(source: Path, made: Path, variables: dict[str, str]) -> None:
    """With the builder of this environment, which scripts/requirements/build.txt pins."""
    made.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(made)],
        cwd=source,
        check=False,
        capture_output=True,
        text=True,
        umask=0o022,
        env=variables,
    )
    if done.returncode:  # otherwise it only warns, at length, of directories that hold no module
        print(done.stderr, file=sys.stderr)
    done.check_returncode()
