"""Many devices that begin alike: a state directory is made once, and each has its own copy."""

from __future__ import annotations

import os
from pathlib import Path

Files = dict[str, bytes]  # the files of a closed state directory, by name


def files_of(directory: Path) -> Files:
    """What a closed store left, held in memory: copying from there costs a third of `copytree`."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def lay_out(files: Files, directory: Path) -> Path:
    """A new state directory with these files, private as the agent insists."""
    directory.mkdir(mode=0o700)
    for name, content in files.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
    return directory
