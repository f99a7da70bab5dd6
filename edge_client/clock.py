"""Two clocks: what time people say it is, and how much time has really passed.

The wall clock decides which round is open; the steady clock, which nobody can set, keeps a wall
clock that is pushed forward from buying more draws than the period allows.
"""

from __future__ import annotations

import time
from typing import ClassVar, Final, Protocol

from protocol_spec.programs.kernel_clock import synchronised_says_child, this_boot

ASK_AGAIN_SECONDS: Final = 60.0


class Clock(Protocol):
    """What the agent needs to know about time."""

    def wall(self) -> float:
        """Seconds of Unix time."""

    def steady(self) -> float:
        """Seconds since boot, sleep included; never set, never backwards."""

    def boot(self) -> str:
        """Names the boot that `steady` counts from."""

    def synchronised(self) -> bool | None:
        """Whether the kernel holds the wall clock for synchronised; None if it cannot tell."""


class SystemClock:
    """The machine's own clocks. It has one wall clock, whoever asks about it."""

    _asked: ClassVar[tuple[float, bool | None] | None] = None

    def wall(self) -> float:
        """Seconds of Unix time."""
        return time.time()

    def steady(self) -> float:
        """Seconds since boot, sleep included where the system can tell."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def boot(self) -> str:
        """The kernel's identifier of this boot."""
        return this_boot()

    def synchronised(self) -> bool | None:
        """What the kernel says, at most once a minute."""
        now, before = self.steady(), SystemClock._asked
        if before is not None and now - before[0] <= ASK_AGAIN_SECONDS:
            return before[1]
        SystemClock._asked = now, synchronised_says_child()
        return SystemClock._asked[1]
