"""Commands of our programs, which must not read the settings of the user who starts them.

A user's configuration may name a real broker with its credentials. So a program started here gets
none of it: neither a variable nor a file, only what stands in its command.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SETTINGS: Final = ("ALLOMFREE_", "XDG_", "STATE_DIRECTORY", "NOTIFY_SOCKET")


def command_of(program: str, command: str, *words: str | Path) -> list[str]:
    """A command of ours, with an empty configuration in place of the user's."""
    path = Path(sys.executable).parent / program
    return [str(path), command, "--config", os.devnull, *map(str, words)]


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A child's variables: without the user's settings, and so that it finds these scripts."""
    kept = {name: value for name, value in environ.items() if not name.startswith(SETTINGS)}
    path = filter(None, [str(Path(__file__).parent.parent), environ.get("PYTHONPATH")])
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def find_program(name: str) -> str | None:
    """A program beside the interpreter, on the path, or in /usr/sbin."""
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(port: int, address: str = "127.0.0.1") -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0
