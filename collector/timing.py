"""Time as the service sees it: its clocks, and how long it waits for what."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol_spec import random_below as below


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of day, a time that only moves forward, and waiting."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Timing:
    """How often the service does something, and how long it waits for something."""

    step_seconds: float = 0.5  # for messages, before it does anything else
    upkeep_every_seconds: float = 0.5
    receipts_every_seconds: float = 2.0
    # A round is sealed when no report of it came for so long, ...
    quiet_seconds: float = 2.0
    # ... and, on MQTT 3.1.1, so long after a reconnect: NATS waits 30 s before it delivers an
    # unacknowledged message again; ...
    settle_seconds: float = 35.0
    # ... but a broker that never stops delivering is not waited for longer than this.
    backlog_longest_seconds: float = 60.0
    sealing_longest_seconds: float = 2.0  # then the connection wants attention
    refused_pause_seconds: float = 30.0
    reconnect_seconds: float = 1.0
    reconnect_longest_seconds: float = 60.0
    storage_retry_seconds: float = 1.0

    def reconnect_pause(self, failures: int) -> float:
        """Seconds until the next attempt: doubling with every failure, and drawn from the upper
        half, so that many clients of a broker that was away do not all return at once."""
        longest = min(self.reconnect_longest_seconds, self.reconnect_seconds * 2.0**failures)
        return longest * (0.5 + below(1 << 16) / (1 << 17))


SYSTEM_CLOCK: Final = Clock()
USUAL: Final = Timing()
