"""Processes of a simulation, which must not hear of the collector or agent that a user really runs.

A user's configuration may name a real broker with its credentials. So a child gets none of it:
neither a variable nor a file, only what stands in its command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

REAL: Final = ("ALLOMFREE_", "XDG_", "STATE_DIRECTORY", "NOTIFY_SOCKET")


def command_of(program: str, command: str, *words: str | Path) -> list[str]:
    """A command of ours, with an empty configuration in place of the user's."""
    path = Path(sys.executable).parent / program
    return [str(path), command, "--config", os.devnull, *map(str, words)]


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A child's variables: without the user's settings, and so that it finds these scripts."""
    kept = {name: value for name, value in environ.items() if not name.startswith(REAL)}
    path = filter(None, [str(Path(__file__).parent.parent), environ.get("PYTHONPATH")])
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Politely, then not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
