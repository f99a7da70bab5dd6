"""Time as the service sees it: its clocks, and how long it waits for what."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collector.health import Status
from protocol_spec import random_below as below
from protocol_spec.programs.system import overwrite, synchronised, this_boot


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of day, a time that only moves forward, and waiting.

    `steady` is the second that also passes while the machine sleeps.
    """

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Timing:
    """How often the service does something, and how long it waits for something."""

    step_seconds: float = 0.5  # for messages, before it does anything else
    upkeep_every_seconds: float = 0.5
    receipts_every_seconds: float = 2.0
    # A page of receipts goes to every device that shares it: a large one goes less often, but the
    # largest, of 32 kB, before a device that waits for it sends again (15 s).
    receipt_bytes_per_second: float = 4096.0
    # A round is sealed when a marker of the collector's own has come back from the broker. Where
    # unacknowledged messages are delivered again later, the marker is sent so long after a
    # reconnect (NATS waits 30 s before it delivers again), ...
    settle_seconds: float = 35.0
    calm_seconds: float = 1.0  # ... and so long after the last of a backlog;
    marker_again_seconds: float = 10.0  # another one is sent if the last is not back by then.
    longest_tick_seconds: float = 5.0  # a longer standstill of the whole process does not count
    probe_every_seconds: float = 15.0  # a word to the broker, which must be answered within ...
    stuck_seconds: float = 10.0
    stuck_longest_seconds: float = 30.0  # between two restarts of an embedded broker
    jump_seconds: float = 60.0  # a clock set ahead by more is believed only when it is confirmed
    sealing_longest_seconds: float = 2.0  # then the connection wants attention
    refused_pause_seconds: float = 30.0
    reconnect_seconds: float = 1.0
    reconnect_longest_seconds: float = 60.0
    # Several workers: how often each says that it lives, how long one leads without saying so
    # again, and how long one may be silent before nobody waits for it and it commits nothing more.
    beat_every_seconds: float = 1.0
    lease_seconds: float = 10.0
    fence_seconds: float = 15.0
    steady_seconds: float = 5.0  # a connection that lasted so long was worth having
    storage_retry_seconds: float = 1.0
    # A device is suspended when more messages of it than this changed nothing within this time.
    flood_messages: int = 1_000
    flood_seconds: float = 60.0

    def reconnect_pause(self, failures: int) -> float:
        """Seconds until the next attempt: doubling with every failure, and drawn from the upper
        half, so that many clients of a broker that was away do not all return at once."""
        longest = min(self.reconnect_longest_seconds, self.reconnect_seconds * 2.0**failures)
        return longest * (0.5 + below(1 << 16) / (1 << 17))


SYSTEM_CLOCK: Final = Clock()
USUAL: Final = Timing()
AT_HAND: Final = Timing(reconnect_longest_seconds=2.0)  # a broker of our own, on this machine


# --- Is the clock right? Nobody can say for sure; this is what gives it away.


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


# --- The database's time: asked for with every beat, and counted on steadily in between (W3).


class StoreTime:
    """A clock whose time of day is the database's; this machine's own until that is known."""

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._ahead = own.now() - own.steady()

    def heard(self, now: float) -> None:
        """The database has just said that it is this late."""
        self._ahead = now - self._own.steady()

    def now(self) -> float:
        """Never later than the database's own, by as much as its answer took."""
        return self._own.steady() + self._ahead

    def agrees(self, within_seconds: float) -> bool:
        """Whether this machine's clock says the same."""
        return abs(self.now() - self._own.now()) <= within_seconds

    def clock(self) -> Clock:
        """For rooms that ask for one."""
        return Clock(self.now, self._own.monotonic, self._own.sleep, self._own.steady)
