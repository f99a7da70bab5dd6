"""Two clocks: what time people say it is, and how much time has really passed.

The wall clock decides which round is open; the steady clock, which nobody can set, keeps a wall
clock that is pushed forward from buying more draws than the period allows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """What the agent needs to know about time."""

    def wall(self) -> float:
        """Seconds of Unix time."""

    def steady(self) -> float:
        """Seconds since boot, sleep included; never set, never backwards."""

    def boot(self) -> str:
        """Names the boot that `steady` counts from."""


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> float:
        """Seconds of Unix time."""
        return time.time()

    def steady(self) -> float:
        """Seconds since boot, sleep included where the system can tell."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def boot(self) -> str:
        """The kernel's identifier of this boot."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return ""
