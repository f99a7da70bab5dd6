"""Run a program under a wall clock that can be set: `python -m faults.clock FILE PROGRAM …`

FILE holds the seconds by which the clock is wrong, and may change at any time. Clocks that only
move forward stay right, as they do on a machine whose time of day is set.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path


def set_clock(file: Path, seconds: float) -> None:
    file.write_text(str(seconds), encoding="ascii")


def main(file: Path, program: str, *words: str) -> None:
    """The machine's clock is replaced before the program's first import."""
    real = time.time

    def now() -> float:
        try:
            return real() + float(file.read_text(encoding="ascii") or 0.0)
        except (OSError, ValueError):  # just being written
            return real()

    time.time = now
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
