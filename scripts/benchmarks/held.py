"""Holds processes to a share of a core each, so that two cores can show what many would do.

A process is stopped (SIGSTOP) as soon as it has had its share of the time that has passed, and
continued when that is behind it again; the kernel's own account of it is what counts.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

TICK_SECONDS: Final = 0.005


class Held:
    """While in the context: no process has more than its share."""

    def __init__(self, pids: Sequence[int], share: float) -> None:
        self._pids = pids
        self._share = share
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hold)
        self.used_seconds: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)

    def _hold(self) -> None:
        begun = time.monotonic()
        before = [on_cpu_seconds(pid) for pid in self._pids]
        while not self._over.wait(TICK_SECONDS):
            passed = time.monotonic() - begun
            now = [on_cpu_seconds(pid) for pid in self._pids]
            self.used_seconds = [late - early for early, late in zip(before, now)]
            for pid, used in zip(self._pids, self.used_seconds):
                over = used > self._share * passed
                os.kill(pid, signal.SIGSTOP if over else signal.SIGCONT)


def with_children_seconds(pid: int) -> float:
    """What a process and those it started have had of the processors so far."""
    of = f"/proc/{pid}/task/{pid}/children"
    started = [int(child) for child in Path(of).read_text(encoding="ascii").split()]
    total = 0.0
    for each in (pid, *started):
        with suppress(OSError):  # it has ended
            total += on_cpu_seconds(each)
    return total


def on_cpu_seconds(pid: int) -> float:
    """What a process has had of the processors so far, all its threads together."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    told = (thread / "schedstat" for thread in threads)
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in told) / 1e9
