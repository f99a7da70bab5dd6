"""Run a program whose clock can be set, and that can be told where to die:
`python -m faults.program FILE PROGRAM …`

FILE holds by how many seconds the time of day is wrong, and the point at which the program kills
itself -9; both may change at any time. Clocks that only move forward stay right, as they do on a
machine whose time of day is set.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Final

# Points of the collector, which reports them to Python's audit hooks.
COUNTING: Final = ("batch in memory", "batch committed", "batch acknowledged")
SEALING: Final = ("sealing", "sealed")
LINGER_SECONDS: Final = 1.0  # before it dies: what it sent reaches the broker, and its disk


class Control:
    """What a program is told, in its file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._told: dict[str, float | str] = {"clock": 0.0, "die_at": ""}
        self.tell()

    @property
    def prefix(self) -> list[str]:
        """The words before a program's path that make it obey."""
        return [sys.executable, "-m", "faults.program", str(self._file)]

    def tell(self, **changed: float | str) -> None:
        self._told |= changed
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(self._told), encoding="ascii")
        draft.replace(self._file)


def main(file: Path, program: str, *words: str) -> None:
    """The machine's clock is replaced before the program's first import."""
    real = time.time

    def told() -> dict[str, float | str]:
        found: dict[str, float | str] = json.loads(file.read_bytes())
        return found

    passed: list[str] = []

    def die(event: str, _details: object) -> None:
        """At the second passing: during the first, the next batch grows."""
        if event in COUNTING + SEALING and event == told()["die_at"]:
            time.sleep(LINGER_SECONDS)
            passed.append(event)
            if passed.count(event) > 1:
                os.kill(os.getpid(), signal.SIGKILL)

    time.time = lambda: real() + float(told()["clock"])
    sys.addaudithook(die)
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
