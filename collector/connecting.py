"""Connecting again and again: at once after a good connection, less and less often otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from collector.timing import Clock, Timing
from protocol_spec.programs.errors import BrokerUnreachable

log = logging.getLogger("allomfree.collector")


class Connection(Protocol):
    """What can be connected: a link, or a source of reports."""

    @property
    def name(self) -> str:
        """Where it leads, for the log."""

    def close(self) -> None:
        """Say goodbye."""


C = TypeVar("C", bound=Connection)


class Connecting(Generic[C]):
    """The connection there is, or how long until the next attempt, and what is the matter."""

    def __init__(self, connect: Callable[[], C], clock: Clock, timing: Timing) -> None:
        self.current: C | None = None
        self.trouble = ""
        self._connect = connect
        self._clock = clock
        self._timing = timing
        self._failures = 0
        self._hasty = 0  # connections in a row that ended soon and brought nothing
        self._since = 0.0
        self._retry_at = 0.0

    def attempt(self) -> C | None:
        """A new connection, if there is none and it is time to try; None otherwise."""
        if self.current is not None or self._clock.monotonic() < self._retry_at:
            return None
        try:
            made = self._connect()
        except BrokerUnreachable as error:
            self.ended(str(error))
            return None
        log.info("connected to %s", made.name)
        self.current, self._since = made, self._clock.monotonic()
        self._failures, self.trouble = 0, ""
        return made

    @property
    def rest_seconds(self) -> float:
        """Until the next attempt."""
        return max(0.0, self._retry_at - self._clock.monotonic())

    def was_useful(self) -> None:
        """It brought something."""
        self._hasty = 0

    def ended(self, reason: str) -> None:
        """There is none, or none any more."""
        if self.trouble != reason:
            log.warning("%s; reports wait at the broker and on the devices", reason)
        if self.current is not None:
            self.current.close()
            self._note_end(self._clock.monotonic() - self._since)
        self.current, self.trouble = None, reason
        self._retry_at = self._clock.monotonic() + self._timing.reconnect_pause(self._failures)
        self._failures += 1

    def drop(self) -> None:
        """It is not wanted any more; the next one may be made at once."""
        if self.current is not None:
            self.current.close()
        self.current, self.trouble, self._retry_at, self._failures = None, "", 0.0, 0

    def _note_end(self, lasted_seconds: float) -> None:
        """A broker that accepts and breaks every connection is asked less and less often."""
        self._failures = self._hasty
        self._hasty = 0 if lasted_seconds >= self._timing.steady_seconds else self._hasty + 1
