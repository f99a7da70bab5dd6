"""Is the clock right? Nobody can say for sure; this is what gives it away.

Rounds end by the collector's clock, so one that runs ahead shuts out reports that are in time.
Three hints: the clock was set ahead by more than a minute while the collector ran; many reports are
for rounds that have not begun by this clock, or come when theirs is sealed; and the kernel knows
whether something keeps the clock right. They are said, and a jump ahead that nothing confirms
delays sealing, at most by the manifest's `rounds.drain`. Nothing else follows from them.

A clock that was set back for a while and is right again has jumped ahead as well. That is no reason
to doubt it: how far the clock was, against one that nobody can set, is kept in a file for as long
as the machine runs, because the collector may have been started anew in between. And while it is
set back, reports are not refused for rounds that had begun already: nobody would send them again.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from collector.health import Status
from collector.timing import Clock, Timing
from protocol_spec.programs.kernel_clock import synchronised, this_boot
from protocol_spec.programs.private_files import overwrite

FEW: Final = 3
SHARE: Final = 0.05
FILE: Final = "clock-offset"
_FILE_BYTES: Final = 256

log = logging.getLogger("allomfree.collector")


class ClockMemory:
    """The farthest that the clock was, ahead of the steady one, since the machine was started."""

    def __init__(self, directory: Path | None = None, boot: Callable[[], str] = this_boot) -> None:
        self._path = None if directory is None else directory / FILE
        self._boot = boot()
        self._written = -math.inf

    def read(self) -> float | None:
        """What is known; None if nothing is of this boot."""
        if self._path is None or not self._boot:
            return None
        try:
            record = json.loads(self._path.read_bytes())
            return float(record["offset"]) if record["boot"] == self._boot else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def write(self, offset: float) -> None:
        """Keep it, to the second. A disk that refuses only makes the next start know less."""
        if self._path is not None and offset >= self._written + 1.0:
            self._written = offset
            record = json.dumps({"boot": self._boot, "offset": offset}).encode()
            with suppress(OSError):
                overwrite(self._path, record.ljust(_FILE_BYTES))


class ClockWatch:
    """Compares the time of day with one that nobody can set."""

    def __init__(
        self,
        clock: Clock,
        timing: Timing,
        confirmed: Callable[[], bool | None] = synchronised,
        memory: ClockMemory | None = None,
    ) -> None:
        self._clock = clock
        self._timing = timing
        self._confirmed = confirmed
        self._memory = memory or ClockMemory()
        self._offset = clock.now() - clock.steady()
        self._farthest = max(self._offset, self._memory.read() or self._offset)  # and believed
        self._memory.write(self._farthest)
        self._skipped: tuple[float, float] | None = None  # these moments were jumped over

    def tick(self) -> None:
        """Look at both clocks: their difference stays the same as long as none is set."""
        now = self._clock.now()
        offset = now - self._clock.steady()
        ahead, self._offset = offset - self._offset, offset
        ahead = min(ahead, offset - self._farthest)  # the rest is no news
        if self._skipped is not None and now < self._skipped[1]:
            self._skipped = None  # it was set back
        if ahead > self._timing.jump_seconds:
            self._skipped = now - ahead, now
            log.warning("the clock was set ahead by %.0f s while the collector ran", ahead)
        if self._skipped is None or self._confirmed():
            self._believe(offset)

    def _believe(self, offset: float) -> None:
        self._skipped = None
        if offset > self._farthest:
            self._farthest = offset
            self._memory.write(offset)

    def latest(self) -> float:
        """The time of day, or where it would be if the clock had not been set back meanwhile."""
        return max(self._clock.now(), self._clock.steady() + self._farthest)

    def doubts(self, instant: float) -> bool:
        """Whether a moment lies in the past only because of a jump that nothing confirms."""
        skipped = self._skipped
        return skipped is not None and skipped[0] < instant <= skipped[1] and not self._confirmed()

    def hint(self, status: Status) -> str:
        """What speaks against the clock, for people; nothing if nothing does."""
        hints = []
        if self._skipped is not None and not self._confirmed():
            ahead = self._skipped[1] - self._skipped[0]
            hints.append(f"the clock was set ahead by {ahead:.0f} s, and nothing confirms it")
        if _many(status.early, status.received):
            hints.append(
                f"{status.early:,} of {status.received:,} messages are for rounds that have not "
                "begun: this clock may be behind, or those of devices ahead"
            )
        if _many(status.late, status.received):
            hints.append(
                f"{status.late:,} of {status.received:,} messages came when their round was "
                "sealed: this clock may be ahead, or those of devices behind"
            )
        return "; ".join(hints)


def _many(some: int, received: int) -> bool:
    return some >= max(FEW, SHARE * received)
