"""Pauses between attempts: doubled by every failure, and drawn at random from their upper half, so
that the clients of a broker that was away do not all return at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol_spec import Entropy, random_below

_MAX_DOUBLINGS: Final = 64  # far beyond every longest pause, and within what a float can hold


def backoff_pause(
    first_seconds: float, longest_seconds: float, failures: int, entropy: Entropy = os.urandom
) -> float:
    """Seconds until the next attempt, after this many failures before the last one."""
    longest = min(longest_seconds, first_seconds * 2.0 ** min(failures, _MAX_DOUBLINGS))
    return longest * (0.5 + random_below(1 << 16, entropy) / (1 << 17))


@dataclass(slots=True)
class Backoff:
    """When to connect next. A broker that accepts and breaks every connection is asked less and
    less often, too (A5): only a connection that lasted, or that carried something, is a success."""

    clock: Callable[[], float]
    first_seconds: float
    longest_seconds: float
    stable_after_seconds: float
    entropy: Entropy = os.urandom
    retry_at: float = 0.0
    _failures: int = 0
    _short_lived: int = 0  # connections in a row that ended soon and carried nothing
    _connected_at: float = 0.0

    @property
    def seconds_left(self) -> float:
        """Until the next attempt."""
        return max(0.0, self.retry_at - self.clock())

    def connected(self) -> None:
        self._failures, self._connected_at = 0, self.clock()

    def carried(self) -> None:
        """The connection carried something."""
        self._short_lived = 0

    def ended(self, *, was_connected: bool) -> None:
        """An attempt failed, or the connection ended."""
        now = self.clock()
        if was_connected:
            self._failures = self._short_lived
            lasted = now - self._connected_at >= self.stable_after_seconds
            self._short_lived = 0 if lasted else self._short_lived + 1
        pause = backoff_pause(
            self.first_seconds, self.longest_seconds, self._failures, self.entropy
        )
        self.retry_at = now + pause
        self._failures += 1

    def reset(self) -> None:
        """The next attempt may be made at once."""
        self.retry_at, self._failures = 0.0, 0
