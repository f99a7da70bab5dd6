"""The source distribution: every file that git knows, so that what the pages say can be typed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from supply.needed import ROOT
from supply.wheel import environment, tracked

BUILD: Final = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def build(directory: Path, root: Path = ROOT) -> Path:
    """Build it into a directory; returns the file."""
    with TemporaryDirectory(prefix="allomfree-sdist-") as name:
        source, made = Path(name) / "source", Path(name) / "made"
        for file in tracked(root):
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, source / file)
        subprocess.run(
            [sys.executable, "-c", BUILD, str(made)],
            cwd=source,
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment(root),
        )
        (archive,) = made.glob("*.tar.gz")
        directory.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(archive, directory / archive.name))
