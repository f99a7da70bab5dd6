"""Draining: is there anything left at the broker that was sent in time?

Silence proves nothing: a network, a disk or a long queue may stand still for longer than anyone
would wait. So the collector writes to itself: a marker with a number that nobody can guess goes
through the very queue that brings reports, and when it is back and the batch it came in is
committed, everything the broker took before it has been counted.

Brokers differ in one thing. mosquitto keeps one queue per session, and what a connection left
unacknowledged comes first on the next. NATS delivers such messages again only after its `ack_wait`,
behind newer ones, and drops what exceeds a session's share in favour of such a redelivery. There a
marker is proof only if it was sent after all redelivery: `Timing.settle_seconds` after the last
moment that may have caused one, and not while the broker is handing over a backlog, which makes it
put redelivery off.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from collector.mqtt import Link, Message
from collector.timing import Clock, Timing
from protocol_spec.topics import from_all_devices, marker

Round = tuple[int, int]  # campaign, number

NONCE_BYTES: Final = 16
BACKLOG: Final = 500  # so many messages at once are no live traffic
_OUTSTANDING: Final = 64


@dataclass(frozen=True, slots=True)
class _Expected:
    """A round past its deadline: how many markers had been sent, and the time, when it was seen."""

    markers: int
    at: float


class Drain:
    """Sends markers while a round waits, and knows what their return proves.

    Its time is the time spent reading: it stands still without a connection, while the storage
    refuses, and when the whole process does, so that none of these can use a bound up.
    """

    def __init__(
        self,
        namespace: str,
        clock: Clock,
        timing: Timing,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        self._topic = marker(namespace)
        self._subscriptions = len(from_all_devices(namespace))
        self._clock = clock
        self._timing = timing
        self._nonce = nonce
        self._expected: dict[Round, _Expected] = {}
        self._sent: dict[bytes, tuple[int, float]] = {}  # nonce: which marker, and when
        self._count = self._proven = 0
        self._now = self._last_tick = 0.0
        self._connected_at = self._settled_at = self._sent_at = 0.0
        self._later = False  # whether this broker redelivers later rather than at once

    # --- what happens --------------------------------------------------------------------------

    def connected(self, link: Link) -> None:
        """A new connection: markers of the last one prove nothing here."""
        self._sent.clear()
        self._connected_at, self._last_tick = self._now, self._clock.monotonic()
        self._later = link.redelivers_later
        self._settled_at = self._now
        if self._later and link.session_present:
            self._doubt()

    def read(self, messages: Sequence[Message]) -> None:
        """These came at once."""
        if len(messages) < BACKLOG:
            return
        if self._now < self._settled_at:  # redelivery is put off meanwhile
            self._settled_at = max(self._settled_at, self._now + self._timing.calm_seconds)
        if self._later and any((m.topic or "").endswith("/request") for m in messages):
            self._doubt()

    def committed(self, messages: Iterable[Message]) -> None:
        """These are durable: a marker among them proves what it proves."""
        for message in messages:
            if message.topic == self._topic and not message.retained:
                number, at = self._sent.pop(message.payload, (0, 0.0))
                if at >= self._settled_at:
                    self._proven = max(self._proven, number)

    def tick(self, *, reading: bool) -> None:
        """Time passes; it counts while messages are read."""
        now = self._clock.monotonic()
        if reading:
            self._now += min(max(0.0, now - self._last_tick), self._timing.longest_tick_seconds)
        self._last_tick = now

    def send(self, link: Link) -> None:
        """Send a marker if a round waits for one, and again if it may have been lost."""
        waiting = [e.markers for e in self._expected.values() if e.markers >= self._proven]
        ready = link.granted >= self._subscriptions and self._now >= self._settled_at
        if not waiting or not ready or not link.free:
            return
        on_its_way = max((n for n, at in self._sent.values() if at >= self._settled_at), default=0)
        overdue = self._now >= self._sent_at + self._timing.marker_again_seconds
        if overdue or on_its_way <= max(waiting):
            self._send(link)

    # --- what is known -------------------------------------------------------------------------

    def expect(self, due: Round) -> None:
        """A round is due: it is drained when a marker sent from now on is back."""
        if due not in self._expected:
            self._expected[due] = _Expected(self._count, self._now)

    def is_drained(self, due: Round) -> bool:
        """Whether all that the broker took before the round was due is committed."""
        return self._proven > self._expected[due].markers

    def rest(self, due: Round, longest: float) -> float:
        """Seconds until the round is not waited for any more, counted from the later of: it was
        due, and the connection was made. Nothing that a device sends changes it."""
        since = max(self._expected[due].at, self._connected_at)
        return max(0.0, since + longest - self._now)

    def done(self, due: Round) -> None:
        """The round is sealed."""
        self._expected.pop(due, None)

    @property
    def why(self) -> str:
        """What is waited for."""
        return "the broker may hold reports that were sent in time"

    def _doubt(self) -> None:
        """Something may be delivered again, and later than what comes now."""
        self._settled_at = self._now + self._timing.settle_seconds

    def _send(self, link: Link) -> None:
        while len(self._sent) >= _OUTSTANDING:
            del self._sent[next(iter(self._sent))]
        self._count += 1
        self._sent_at = self._now
        nonce = self._nonce()
        self._sent[nonce] = self._count, self._now
        link.publish(self._topic, nonce, retain=False)
