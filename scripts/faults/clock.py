"""Run a program of ours under a wall clock that can be set: `python -m faults.clock FILE PROGRAM …`

FILE holds the seconds by which the clock is wrong, and may change at any time. Clocks that only
move forward stay right, as they do on a machine whose time of day is set.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path


def set_clock(file: Path, seconds: float) -> None:
    """By how much the clock is wrong from now on."""
    file.write_text(str(seconds), encoding="ascii")


def moved(file: Path, real: Callable[[], float]) -> Callable[[], float]:
    """The clock that a program sees."""

    def now() -> float:
        try:
            return real() + float(file.read_text(encoding="ascii") or 0.0)
        except (OSError, ValueError):  # just being written
            return real()

    return now


def main(file: Path, program: str, *words: str) -> None:
    """The machine's clock is replaced before the program's first import."""
    time.time = moved(file, time.time)
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
