"""Time as the service sees it: its clocks, and how long it waits for what."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol_spec import random_below as below


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
