"""Who may stay connected to the page, and for how long (A9).

A connection costs nothing to open, so nobody gets anything for holding one: a request must be
complete within seconds, an answer must be read, and where there is no place left, the connection
that has waited longest gives way, first one of the address that holds most. What is being answered
never gives way. So whoever sends a whole request is answered, whatever others leave half sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from collector.web.limits import Limits

_SENTENCE: Final = b"Too many connections are being answered; try again in a few seconds.\n"
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_SENTENCE), _SENTENCE)
)


def origin(host: str | None) -> str:
    """Whom connections are counted for: an address, or with IPv6 the network of one household."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


class Places:
    """All connections of one server, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._taken: dict[Connection, None] = {}

    def take(self, connection: Connection) -> bool:
        """Give it a place, if need be that of another; False if all are being answered."""
        if not self._make_room(connection.origin):
            return False
        self._taken[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Its place is free again."""
        self._taken.pop(connection, None)

    def _make_room(self, newcomer: str) -> bool:
        held = Counter(connection.origin for connection in self._taken)
        if held[newcomer] >= self.limits.connections_of_one:
            return self._end_one(c for c in self._taken if c.origin == newcomer)
        if len(self._taken) < self.limits.connections:
            return True
        most = max(held, key=held.__getitem__)
        return self._end_one(c for c in self._taken if c.origin == most) or self._end_one(
            self._taken
        )

    def _end_one(self, candidates: Iterable[Connection]) -> bool:
        """End the one that has waited longest, before one whose reader has stopped reading."""
        idle = [c for c in candidates if c.waits or c.is_stuck]
        if not idle:
            return False
        longest = min(idle, key=lambda c: (not c.waits, c.since))
        self.leave(longest)
        longest.end()
        return True


class Connection(H11Protocol):
    """One connection, with a deadline whenever it is the other side's turn."""

    def __init__(self, *args: Any, places: Places, **options: Any) -> None:
        super().__init__(*args, **options)
        self.origin = ""
        self.since = 0.0  # when the other side's turn began, by the loop's clock
        self.is_stuck = False
        self._places = places
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether no request is being answered: none is complete yet, or all are answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def end(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._stop_waiting()
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, or say that there is none."""
        super().connection_made(transport)
        self.origin = origin(self.client[0] if self.client else None)
        if self._places.take(self):
            self._wait(self._places.limits.request_seconds)
        else:
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._places.leave(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request does not put the deadline off; a whole one ends the wait."""
        super().data_received(data)
        if not self.waits and not self.is_stuck:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """The next request has its own deadline."""
        if not self.is_stuck:
            self._wait(self._places.limits.request_seconds)
        super().on_response_complete()  # may begin with a request that came early
        if not self.waits and not self.is_stuck:
            self._stop_waiting()

    def pause_writing(self) -> None:
        """The other side reads too slowly."""
        super().pause_writing()
        self.is_stuck = True
        self._wait(self._places.limits.reading_seconds)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self.is_stuck = False
        self._stop_waiting()
        if self.waits:
            self._wait(self._places.limits.request_seconds)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.since = self.loop.time()
            self._deadline = self.loop.call_later(seconds, self.end)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
