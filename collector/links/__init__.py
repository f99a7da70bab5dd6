"""MQTT as the collector uses it: the port, and one file per adapter.

    link.py       the paho adapter, for real brokers
    gathering.py  when it waits a moment for more

Claims that every link must keep:
  I7   a link is one connection: a message can only be acknowledged where it was delivered
  I13  only `step` reads, at most `BATCH` messages: when the store is slow, the broker waits
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from collector.timing import Clock, Timing
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUnreachable
from protocol_spec.topics import marker

__all__ = [
    "BATCH", "STUCK", "WINDOW", "BrokerWatch", "Connect", "Delivery", "Link", "Message",
    "OpenSource", "Reconnector", "Source", "Will", "refusal",
]  # fmt: skip

BATCH: Final = 4_000
WINDOW: Final = 100


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained, when the connection ends without a goodbye."""

    topic: str
    payload: bytes


def refusal(topic: str, reason: str) -> str:
    """Why the broker did not take a message, and which."""
    return f"{topic}: {reason}"


class Delivery(Protocol):
    """What a batch came by: where it is acknowledged, and its requests are answered."""

    @property
    def free(self) -> int:
        """How many more publishes may be unanswered at once."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit (I6)."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        """Hand a message to the broker, QoS 1; its number comes back from `answers`."""


class Link(Protocol):
    """One connection to a broker, run in the caller's thread. A new connection is a new link."""

    @property
    def name(self) -> str:
        """Where it leads, for the log."""

    @property
    def lost(self) -> str | None:
        """Why the connection has ended; None while it lives."""

    @property
    def session_present(self) -> bool:
        """Whether the broker knew the session, and so may have kept messages for it."""

    @property
    def redelivers_later(self) -> bool:
        """Whether the broker delivers unacknowledged messages again only after a while, behind
        newer ones, rather than first on a new connection."""

    @property
    def granted(self) -> int:
        """Subscriptions the broker has said yes to, which need not mean much."""

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

    def step(self, timeout_seconds: float) -> list[Message]:
        """Wait for the network, then return what is there, at most a batch."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit (I6)."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        """Hand a message to the broker, QoS 1; its number comes back from `answers`."""

    def is_unanswered(self, number: int) -> bool:
        """Whether the broker owes an answer to a publish of this connection."""

    def answers(self) -> dict[int, str | None]:
        """Publishes the broker has answered since the last call; with its reason if it refused."""

    def close(self) -> None:
        """Say goodbye; the session stays at the broker."""

    def leave(self) -> None:
        """Say goodbye for ever: the session ends, and what it held."""


Connect = Callable[[Will | None], Link]
"""Makes a new connection; raises `BrokerUnreachable` when there is none to be had."""


# --- Where a worker's reports come from when several workers share them: the port.


class Source(Protocol):
    """One connection that brings this worker its part of the reports, in the caller's thread."""

    @property
    def name(self) -> str:
        """Where it leads, for the log."""

    @property
    def lost(self) -> str | None:
        """Why the connection has ended; None while it lives."""

    @property
    def drained(self) -> float:
        """Everything that the broker took before this moment is committed; a moment that was given
        to `mark`, or 0.0."""

    def step(self, timeout_seconds: float) -> list[Message]:
        """Wait for the network, then return what is there, at most a batch."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit (I6)."""

    def mark(self, moment: float) -> None:
        """It is this moment now: begin to prove that all before it is committed, or go on with a
        proof that was begun."""

    def retire(self, moment: float) -> None:
        """Ask for nothing more, at this moment; what is on its way still comes, and when `drained`
        has reached the moment, or nothing comes any more, that was all."""

    def close(self, *, stay: bool = True) -> None:
        """Say goodbye. What the broker keeps for this worker alone waits for its return, or, if it
        is not to stay, goes to the others from now on."""


OpenSource = Callable[[], Source]
"""Makes a new connection; raises `BrokerUnreachable` when there is none to be had."""


# --- Connecting again and again: at once after a good connection, less and less often otherwise.


log = logging.getLogger("allomfree.collector")


class Connection(Protocol):
    """What can be connected: a link, or a source of reports."""

    @property
    def name(self) -> str:
        """Where it leads, for the log."""

    def close(self) -> None:
        """Say goodbye."""


C = TypeVar("C", bound=Connection)


class Reconnector(Generic[C]):
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


# --- Does the broker still take messages? A connection that lives does not say so.


STUCK: Final = (
    "the broker is connected but has not answered for {:.0f} s; reports wait on the devices. Is "
    "its disk full? If it was, and the broker is not the embedded one, restart it"
)


class BrokerWatch:
    """Asks for an answer, and counts the seconds of connected time without any."""

    def __init__(
        self, namespace: str, clock: Clock, timing: Timing, restart: Callable[[], None]
    ) -> None:
        self._topic = marker(namespace)
        self._clock = clock
        self._timing = timing
        self._restart = restart
        self._patience = timing.stuck_seconds
        self._asked = False
        self._question: int | None = None
        self._silent = 0.0
        self._last = clock.monotonic()
        self._next = self._last + timing.probe_every_seconds

    def connected(self) -> None:
        """A new connection: what was not answered on the last one is asked again."""
        self._question = None
        self._last = self._clock.monotonic()
        if self._asked:
            self._next = self._last

    def tick(self, link: Link) -> str:
        """Ask if it is time to; what is wrong, or nothing."""
        now = self._clock.monotonic()
        passed, self._last = min(now - self._last, self._timing.longest_tick_seconds), now
        if self._question is not None and not link.is_unanswered(self._question):
            self._asked, self._question, self._silent = False, None, 0.0
            self._patience = self._timing.stuck_seconds
        elif self._asked:
            self._silent += passed
        if self._question is None and now >= self._next and link.free:
            self._ask(link, now)
        if self._silent < self._timing.stuck_seconds:
            return ""
        if self._silent >= self._patience:
            self._give_up()
        return STUCK.format(self._silent)

    def _ask(self, link: Link, now: float) -> None:
        self._next = now + self._timing.probe_every_seconds
        self._asked = True
        self._question = link.publish(self._topic, secrets.token_bytes(16), retain=False)

    def _give_up(self) -> None:
        """Restart it, if it is ours, and wait longer before the next time."""
        log.error("%s", STUCK.format(self._silent))
        self._patience = min(
            self._silent + 2 * self._patience, self._silent + self._timing.stuck_longest_seconds
        )
        self._restart()
