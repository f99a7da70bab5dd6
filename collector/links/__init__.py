"""Connections to brokers: the ports, reconnecting, and one module per adapter.

    mqtt.py    an MQTT connection (paho), and a subscription on it as a source of reports
    nats.py    the client protocol of NATS
    stream.py  NATS's own stream as a source of reports

A `Link` is one MQTT connection. A `Source` brings a worker its part of the reports; it may be made
of a link.

Claims that every link and source keeps:
  I7   it is one connection: a message can only be acknowledged where it was delivered
  I13  only `step` reads, at most `BATCH` messages: when the store is slow, the broker waits
  W4   a source's `drained` is a moment before which nothing that the broker took for this worker,
       or for any of them, is uncommitted
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from collector.timing import Clock, Timing
from protocol_spec.programs.backoff import Backoff
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUnreachable
from protocol_spec.topics import marker

__all__ = [
    "BATCH", "STUCK", "WINDOW", "BrokerWatch", "Connect", "Link", "Links", "Message", "Publisher",
    "Reconnector", "Source", "Will",
]  # fmt: skip

log = logging.getLogger("allomfree.collector")

BATCH: Final = 4_000
WINDOW: Final = 100  # publishes that may be unanswered at once


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained, when the connection ends without a DISCONNECT."""

    topic: str
    payload: bytes


class Connection(Protocol):
    """What links and sources have in common, in the caller's thread."""

    @property
    def name(self) -> str:
        """The address, for the log."""

    @property
    def lost(self) -> str | None:
        """Why the connection has ended; None while it lives."""

    def step(self, timeout_seconds: float) -> list[Message]:
        """Wait for the network, then return what is there, at most a batch."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit (I6)."""

    def close(self) -> None:
        """Disconnect; the broker keeps the session."""


class Link(Connection, Protocol):
    """One MQTT connection to a broker. A new connection is a new link."""

    @property
    def session_present(self) -> bool:
        """Whether the broker knew the session, and so may have kept messages for it."""

    @property
    def redelivers_later(self) -> bool:
        """Whether the broker redelivers unacknowledged messages only after a while, behind newer
        ones, rather than first on a new connection."""

    @property
    def granted(self) -> int:
        """Subscriptions that the broker has confirmed."""

    @property
    def sharing(self) -> str | None:
        """Why the broker cannot deal messages out among several sessions; None if it can."""

    @property
    def free(self) -> int:
        """How many more publishes may be unanswered at once."""

    def subscribe(self, filters: Iterable[str], *, qos: int = 1) -> None:
        """Ask for messages, with the next `step`; a broker that refuses ends the connection."""

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """Ask for no more of these; what is on its way still comes."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        """Hand a message to the broker, QoS 1; its number comes back from `answers`."""

    def is_unanswered(self, number: int) -> bool:
        """Whether the broker has not yet answered a publish of this connection."""

    def answers(self) -> dict[int, str | None]:
        """Publishes the broker has answered since the last call; with its reason if it refused."""

    def leave(self) -> None:
        """Disconnect for good: the session ends, with all it held."""


class Source(Connection, Protocol):
    """One connection that brings this worker its part of the reports."""

    @property
    def drained(self) -> float:
        """Everything that the broker took before this moment is committed; a moment that was given
        to `mark`, or 0.0."""

    @property
    def link(self) -> Link | None:
        """The link that a worker alone also publishes on; None if this source has none."""

    def mark(self, moment: float) -> None:
        """It is this moment now: begin to prove that all before it is committed, or go on with a
        proof that was begun."""

    def retire(self, moment: float) -> None:
        """Ask for nothing more, at this moment. What is on its way still comes; that was all when
        `drained` has reached the moment, or when nothing comes any more."""

    def close(self, *, stay: bool = True) -> None:
        """Disconnect. What the broker keeps for this worker alone waits for its return; or, if it
        does not stay, the broker gives it to others from now on."""


Connect = Callable[[Will | None], Link]
"""Makes a new connection; raises `BrokerUnreachable` if that fails."""


@dataclass(frozen=True, slots=True)
class Links:
    """How a worker connects: to what brings its reports, and, if it leads, to what publishes."""

    source: Callable[[Will | None], Source]  # raises `BrokerUnreachable`
    publisher: Connect | None = None  # None: one worker alone, which publishes on its source's link
    drained_is_global: bool = False  # what one source says of itself holds for all workers
    restart_broker: Callable[[], None] = lambda: None

    @property
    def alone(self) -> bool:
        return self.publisher is None


class Publisher:
    """Publishes on a link, and calls `then` with the broker's answer: None, or why it refused."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._waiting: dict[int, Callable[[str | None], None]] = {}

    @property
    def free(self) -> int:
        return self.link.free

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = True,
        then: Callable[[str | None], None] | None = None,
    ) -> None:
        number = self.link.publish(topic, payload, retain=retain)
        if then is not None:
            self._waiting[number] = then

    def take_answers(self) -> None:
        """Pass on the answers that have come; those to markers prove nothing."""
        for number, refusal in self.link.answers().items():
            then = self._waiting.pop(number, None)
            if then is not None:
                then(refusal)


# --- reconnecting ----------------------------------------------------------------------------

C = TypeVar("C", bound=Connection)


class Reconnector(Generic[C]):
    """The current connection, or when to try next and why there is none: at once after a good
    connection, less and less often otherwise."""

    def __init__(self, connect: Callable[[], C], clock: Clock, timing: Timing) -> None:
        self.current: C | None = None
        self.trouble = ""
        self._connect = connect
        self._backoff = Backoff(
            clock.monotonic,
            timing.reconnect_seconds,
            timing.reconnect_longest_seconds,
            timing.stable_after_seconds,
        )

    def attempt(self) -> C | None:
        """A new connection, if there is none and it is time to try; None otherwise."""
        if self.current is not None or self.seconds_left:
            return None
        try:
            made = self._connect()
        except BrokerUnreachable as error:
            self.ended(str(error))
            return None
        log.info("connected to %s", made.name)
        self.current, self.trouble = made, ""
        self._backoff.connected()
        return made

    @property
    def seconds_left(self) -> float:
        """Until the next attempt."""
        return self._backoff.seconds_left

    def reset_backoff(self) -> None:
        """The connection brought something."""
        self._backoff.carried()

    def ended(self, reason: str) -> None:
        """The connection failed or ended."""
        if self.trouble != reason:
            log.warning("%s; reports wait at the broker and on the devices", reason)
        self._backoff.ended(was_connected=self.current is not None)
        if self.current is not None:
            self.current.close()
        self.current, self.trouble = None, reason

    def drop(self) -> None:
        """Close a connection that is no longer wanted; the next one may be made at once."""
        if self.current is not None:
            self.current.close()
        self.current, self.trouble = None, ""
        self._backoff.reset()


# --- does the broker still take messages? ------------------------------------------------------

STUCK: Final = (
    "the broker is connected but has not answered for {:.0f} s; reports wait on the devices. Is "
    "its disk full? If it was, and the broker is not the embedded one, restart it"
)


class BrokerWatch:
    """Probes the broker, and counts the seconds of connected time without an answer (F4).

    NATS whose disk was full keeps its connections and answers no publish any more until it is
    restarted, even when there is space again. So the collector publishes a message to itself now
    and then. A broker that answers nothing for a while is reported as stuck, and the embedded one
    is restarted.
    """

    def __init__(
        self, namespace: str, clock: Clock, timing: Timing, restart: Callable[[], None]
    ) -> None:
        self._topic = marker(namespace)
        self._clock = clock
        self._timing = timing
        self._restart = restart
        self._patience = timing.stuck_seconds
        self._asked = False
        self._probe: int | None = None
        self._silent = 0.0
        self._last = clock.monotonic()
        self._next = self._last + timing.probe_every_seconds

    def connected(self) -> None:
        """A new connection: what was not answered on the last one is asked again."""
        self._probe = None
        self._last = self._clock.monotonic()
        if self._asked:
            self._next = self._last

    def tick(self, link: Link) -> str:
        """Send a probe if it is time to; returns what is wrong, or nothing."""
        now = self._clock.monotonic()
        passed, self._last = min(now - self._last, self._timing.longest_tick_seconds), now
        if self._probe is not None and not link.is_unanswered(self._probe):
            self._asked, self._probe, self._silent = False, None, 0.0
            self._patience = self._timing.stuck_seconds
        elif self._asked:
            self._silent += passed
        if self._probe is None and now >= self._next and link.free:
            self._next = now + self._timing.probe_every_seconds
            self._asked = True
            self._probe = link.publish(self._topic, secrets.token_bytes(16), retain=False)
        if self._silent < self._timing.stuck_seconds:
            return ""
        if self._silent >= self._patience:  # restart it, if it is ours, and later the next time
            log.error("%s", STUCK.format(self._silent))
            longer = min(2 * self._patience, self._timing.stuck_longest_seconds)
            self._patience = self._silent + longer
            self._restart()
        return STUCK.format(self._silent)
