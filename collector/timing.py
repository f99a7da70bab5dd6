"""Time: clocks, how far they can be trusted, and how long the service waits for what.

Rounds end by the collector's clock, so a clock that runs ahead shuts out reports that are in time.
Nothing proves a clock right, but there are three signs of a wrong one: it was set ahead by more
than a minute while the collector ran; many reports are for rounds that have not begun by this
clock, or arrive after their round was sealed; the kernel says that nothing synchronises it. They
are reported, and a jump ahead that nothing confirms delays sealing, at most by the manifest's
`rounds.drain`. Nothing else follows from them.

A clock that was set back and is right again has also jumped ahead. That is no reason to doubt it:
how far the clock was ahead of the boot-time clock is kept in a file until the next boot, because
the collector may have been restarted in between. While the clock is set back, reports are not
refused for rounds that had begun already: no device would send them again.
"""

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
from protocol_spec.programs.system import overwrite, synchronised, this_boot

log = logging.getLogger("allomfree.collector")


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of day, a time that only moves forward, and sleeping.

    `boottime` also advances while the machine sleeps. `confirmed` is whether something keeps the
    time of day right; None if unknown.
    """

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    boottime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    confirmed: Callable[[], bool | None] = synchronised


@dataclass(frozen=True, slots=True)
class Timing:
    """How often the service does something, and how long it waits for something."""

    step_seconds: float = 0.5  # for messages, before it does anything else
    upkeep_every_seconds: float = 0.5
    receipts_every_seconds: float = 2.0  # the same page; devices look 3 s after sending
    # A round is sealed when a marker of the collector's own has come back from the broker. Where
    # unacknowledged messages are redelivered later, the marker is sent only this long after a
    # reconnect (NATS waits 30 s before redelivery), ...
    settle_seconds: float = 35.0
    calm_seconds: float = 1.0  # ... and this long after the last of a backlog.
    longest_tick_seconds: float = 5.0  # a longer standstill of the whole process does not count
    probe_every_seconds: float = 15.0  # a message to the broker, to be answered within ...
    stuck_seconds: float = 10.0
    stuck_longest_seconds: float = 30.0  # between two restarts of an embedded broker
    jump_seconds: float = 60.0  # a larger jump ahead is believed only when it is confirmed
    sealing_longest_seconds: float = 2.0  # then the connection needs attention
    refused_pause_seconds: float = 30.0
    reconnect_seconds: float = 1.0
    reconnect_longest_seconds: float = 60.0
    # Several workers: how often each says that it is alive, how long a lease lasts, and after how
    # much silence a worker is fenced: nobody waits for it, and it commits nothing more.
    beat_every_seconds: float = 1.0
    lease_seconds: float = 10.0
    fence_seconds: float = 15.0
    stable_after_seconds: float = 5.0  # a connection that lasted this long resets the back-off
    storage_retry_seconds: float = 1.0
    # A device is suspended when more of its messages than this changed nothing within this time.
    flood_messages: int = 1_000
    flood_seconds: float = 60.0


SYSTEM_CLOCK: Final = Clock()
DEFAULT_TIMING: Final = Timing()
# A broker of our own, on this machine.
LOCAL_BROKER_TIMING: Final = Timing(reconnect_longest_seconds=2.0)


class StoreTime:
    """The store's time of day: with a shared store the database's (W3), else this machine's.

    The database is asked with every beat, and its time is extrapolated steadily in between; it is
    never ahead of the database's own, but behind by as long as the answer took.
    """

    def __init__(self, own: Clock, timing: Timing, *, shared: bool) -> None:
        self._own = own
        self._timing = timing
        self._shared = shared
        self._ahead = own.now() - own.boottime()

    def update(self, now: float) -> None:
        """The database has just given this time."""
        self._ahead = now - self._own.boottime()

    def now(self) -> float:
        return self._own.boottime() + self._ahead if self._shared else self._own.now()

    def moment(self) -> float:
        """A scale on which the moments of all workers compare. A worker alone needs no time of day
        for that, and takes a clock that nobody can set."""
        return self.now() if self._shared else self._own.boottime()

    def confirmed(self) -> bool | None:
        """Whether two clocks agree; one alone asks the kernel."""
        return not self.hint() if self._shared else self._own.confirmed()

    def hint(self) -> str:
        """That this machine's clock is not the database's, for people; empty if it is."""
        ahead = self._own.now() - self.now()
        if abs(ahead) <= self._timing.jump_seconds:
            return ""
        side = "ahead of" if ahead > 0 else "behind"
        return f"this machine's clock is {abs(ahead):.0f} s {side} the database's, which counts"

    def clock(self) -> Clock:
        own = self._own
        return Clock(self.now, own.monotonic, own.sleep, own.boottime, self.confirmed)


FEW: Final = 3
SHARE: Final = 0.05
FILE: Final = "clock-offset"
_FILE_BYTES: Final = 256


class ClockMemory:
    """The farthest that the clock was ahead of the boot-time one, since the machine booted."""

    def __init__(self, directory: Path | None = None, boot: Callable[[], str] = this_boot) -> None:
        self._path = None if directory is None else directory / FILE
        self._boot = boot()
        self._written = -math.inf

    def read(self) -> float | None:
        """What is known; None if nothing was written since the last boot."""
        if self._path is None or not self._boot:
            return None
        try:
            record = json.loads(self._path.read_bytes())
            return float(record["offset"]) if record["boot"] == self._boot else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def write(self, offset: float) -> None:
        """Keep it, to the second. If the disk refuses, only the next start knows less."""
        if self._path is not None and offset >= self._written + 1.0:
            self._written = offset
            record = json.dumps({"boot": self._boot, "offset": offset}).encode()
            with suppress(OSError):
                overwrite(self._path, record.ljust(_FILE_BYTES))


class ClockWatch:
    """Compares the time of day with a clock that nobody can set (F8)."""

    def __init__(self, clock: Clock, timing: Timing, memory: ClockMemory | None = None) -> None:
        self._clock = clock
        self._timing = timing
        self._memory = memory or ClockMemory()
        self._offset = clock.now() - clock.boottime()
        self._farthest = max(self._offset, self._memory.read() or self._offset)  # and believed
        self._memory.write(self._farthest)
        self._skipped: tuple[float, float] | None = None  # the moments that were jumped over

    def tick(self) -> None:
        """Compare both clocks: their difference is constant as long as neither is set."""
        now = self._clock.now()
        offset = now - self._clock.boottime()
        ahead, self._offset = offset - self._offset, offset
        ahead = min(ahead, offset - self._farthest)  # it was that far before
        if self._skipped is not None and now < self._skipped[1]:
            self._skipped = None  # it was set back
        if ahead > self._timing.jump_seconds:
            self._skipped = now - ahead, now
            log.warning("the clock was set ahead by %.0f s while the collector ran", ahead)
        if self._skipped is None or self._clock.confirmed():
            self._skipped = None
            if offset > self._farthest:
                self._farthest = offset
                self._memory.write(offset)

    def latest(self) -> float:
        """The time of day, or what it would be if the clock had not been set back."""
        return max(self._clock.now(), self._clock.boottime() + self._farthest)

    def doubts(self, instant: float) -> bool:
        """Whether a moment lies in the past only because of a jump that nothing confirms."""
        begin, end = self._skipped or (math.inf, -math.inf)
        return begin < instant <= end and not self._clock.confirmed()

    def hint(self, status: Status) -> str:
        """Why the clock may be wrong, for people; empty if nothing indicates it."""
        hints = []
        if self._skipped is not None and not self._clock.confirmed():
            ahead = self._skipped[1] - self._skipped[0]
            hints.append(f"the clock was set ahead by {ahead:.0f} s, and nothing confirms it")
        many = max(FEW, SHARE * status.received)
        if status.early >= many:
            hints.append(
                f"{status.early:,} of {status.received:,} messages are for rounds that have not "
                "begun: this clock may be behind, or those of devices ahead"
            )
        if status.late >= many:
            hints.append(
                f"{status.late:,} of {status.received:,} messages came when their round was "
                "sealed: this clock may be ahead, or those of devices behind"
            )
        return "; ".join(hints)
