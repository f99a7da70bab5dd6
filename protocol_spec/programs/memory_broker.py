"""An MQTT broker in this process, for tests and for programs that embed the agent or a collector.

broker = MemoryBroker()
client = EdgeClient(directory, make_link=broker.link)

It keeps sessions, retained messages and last wills, and delivers again what a connection left
unacknowledged; the contract tests of both programs' links run over it and over real brokers. There
is no access control. Links may belong to different threads. Everything is lost with the process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

from protocol_spec.programs.mqtt import MQTT_5, Version, unreachable
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUnreachable, BrokerUrl, Credentials

NAME: Final = "the broker in memory"
_SHARE: Final = "$share/"

Refuse = Callable[[str], str | None]
"""Why nothing may be published to a topic; None where it may."""


class Will(Protocol):
    """What the broker publishes, retained, when a connection ends without a DISCONNECT."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...


@dataclass(slots=True)
class _Session:
    """What the broker knows of a client, connected or not."""

    persistent: bool
    filters: dict[str, int] = field(default_factory=dict)
    waiting: deque[tuple[Message, int]] = field(default_factory=deque)  # with its QoS
    link: MemoryLink | None = None

    def offer(self, message: Message, filters: Iterable[str]) -> None:
        """Queue a message once if a filter matches; without QoS 1 only while connected."""
        granted = [self.filters[name] for name in filters if matches(name, message.topic or "")]
        if granted and (self.link is not None or max(granted)):
            self.waiting.append((message, max(granted)))


class MemoryBroker:
    """Accepts connections from this process until it is stopped.

    `batch` is the most that one step of a link returns; `redelivers_later` and `sharing` are what
    its links report. `published` lists all that clients have published.
    """

    def __init__(
        self,
        *,
        batch: int = 4_000,
        refuse: Refuse = lambda _topic: None,
        redelivers_later: bool = False,
        sharing: str | None = None,
    ) -> None:
        self.retained: dict[str, bytes] = {}
        self.published: list[Message] = []
        self.batch = batch
        self.redelivers_later = redelivers_later
        self.refuse = refuse
        self.sharing = sharing
        self.changed = threading.Condition()
        self._sessions: dict[str, _Session] = {}
        self._listeners: list[tuple[str, Callable[[Message], None]]] = []
        self._running = True
        self._turns = count()

    def link(
        self,
        broker: BrokerUrl,
        credentials: Credentials,  # noqa: ARG002 - everybody is accepted
        *,
        keepalive: int = 60,  # noqa: ARG002 - it is never silent
        version: Version = MQTT_5,
    ) -> DeviceLink:
        """A device's link to this broker, whatever the address: `make_link` of an `EdgeClient`."""
        return DeviceLink(self, broker, version)

    def connector(self, client_id: str = "collector") -> Callable[[Will | None], MemoryLink]:
        """How a collector connects and reconnects under one name."""
        return lambda will: self.connect(client_id, will=will)

    def connect(
        self, client_id: str, *, will: Will | None = None, persistent: bool = True
    ) -> MemoryLink:
        """A new connection; an older one under the same name ends."""
        link = MemoryLink(self)
        self.attach(link, client_id, will, persistent)
        return link

    def attach(self, link: MemoryLink, client_id: str, will: Will | None, persistent: bool) -> None:
        """Accept a connection, or raise `BrokerUnreachable`."""
        with self.changed:
            if not self._running:
                raise BrokerUnreachable(f"{NAME} cannot be used: it is stopped")
            known = self._sessions.get(client_id)
            if known is not None and known.link is not None:
                known.link.end("another connection took the session over")
            known = self._sessions.get(client_id)  # it may have ended with its connection
            if known is None or not persistent:
                self._sessions[client_id] = _Session(persistent)
            session = self._sessions[client_id]
            session.persistent, session.link = persistent, link
            link.begin(session, will, session_present=known is not None and persistent)
            self.changed.notify_all()

    def listen(self, topic_filter: str, call: Callable[[Message], None]) -> None:
        """Call a function for every message that matches: a collector in a test."""
        self._listeners.append((topic_filter, call))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish as a client without a session would, with QoS 1."""
        message = Message(topic, payload)
        with self.changed:
            self.published.append(message)
            if retain:
                self.retained.pop(topic, None)
                if payload:
                    self.retained[topic] = payload
            for session in self._sessions.values():
                session.offer(message, [f for f in session.filters if not f.startswith(_SHARE)])
            self._offer_to_groups(message)
            self.changed.notify_all()
        for topic_filter, call in self._listeners:
            if matches(topic_filter, topic):
                call(message)

    def _offer_to_groups(self, message: Message) -> None:
        """To one session of each group that shares a filter, connected or not, in turn."""
        shared: dict[str, list[_Session]] = {}
        for session in self._sessions.values():
            for name in session.filters:
                if name.startswith(_SHARE) and matches(name.split("/", 2)[2], message.topic or ""):
                    shared.setdefault(name, []).append(session)
        for sessions in shared.values():
            sessions[next(self._turns) % len(sessions)].waiting.append((message, 1))

    def waiting(self, client_id: str) -> list[Message]:
        with self.changed:
            return [message for message, _ in self._sessions[client_id].waiting]

    def kept(self, client_id: str) -> list[Message]:
        """What was delivered to a client but not acknowledged, and what waits for it."""
        with self.changed:
            link = self._sessions[client_id].link
            return [*(link.unacknowledged if link else []), *self.waiting(client_id)]

    def cut(self, reason: str = "the connection broke") -> None:
        """End every connection without a DISCONNECT."""
        with self.changed:
            for session in list(self._sessions.values()):
                if session.link is not None:
                    session.link.end(reason)

    def stop(self) -> None:
        """End every connection and accept no other until `start`."""
        self.cut("the broker stopped")
        self._running = False

    def start(self, *, forget: bool = False) -> None:
        """Accept connections again; with `forget`, without sessions and retained messages."""
        with self.changed:
            if forget:
                self._sessions.clear()
                self.retained.clear()
            self._running = True

    def drop(self, session: _Session) -> None:
        """Forget a session that was not to outlive its connection."""
        self._sessions = {n: s for n, s in self._sessions.items() if s is not session}


class MemoryLink:
    """One connection to a `MemoryBroker`, as a collector's link."""

    name: Final = NAME
    window = 100  # publishes that may be unanswered at once

    def __init__(self, broker: MemoryBroker) -> None:
        self.lost: str | None = None
        self.session_present = False
        self.granted = 0
        self._server = broker
        self._session = _Session(persistent=False)
        self._will: Will | None = None
        self._numbers = count(1)
        self._delivered: dict[int, Message] = {}
        self._unanswered: dict[int, str | None] = {}
        self._answered: dict[int, str | None] = {}

    def begin(self, session: _Session, will: Will | None, *, session_present: bool) -> None:
        self._session, self._will, self.session_present = session, will, session_present

    @property
    def redelivers_later(self) -> bool:
        """What the broker is to claim; it delivers again at once in any case."""
        return self._server.redelivers_later

    @property
    def sharing(self) -> str | None:
        return self._server.sharing

    @property
    def free(self) -> int:
        return max(0, self.window - len(self._unanswered))

    def subscribe(self, filters: Iterable[str], *, qos: int = 1) -> None:
        """Retained messages come first."""
        with self._server.changed:
            for name in filters:
                self._session.filters[name] = qos
                self.granted += 1
                if not name.startswith(_SHARE):
                    for topic, payload in self._server.retained.items():
                        self._session.offer(Message(topic, payload, retained=True), [name])

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """What is queued already still comes."""
        with self._server.changed:
            for name in filters:
                self._session.filters.pop(name, None)

    def step(self, timeout_seconds: float) -> list[Message]:
        with self._server.changed:
            self._server.changed.wait_for(
                lambda: self._session.waiting or self._unanswered or self.lost, timeout_seconds
            )
            self._answered |= self._unanswered
            self._unanswered = {}
            if self.lost is not None:
                return []
            size = min(self._server.batch, len(self._session.waiting))
            return [self._deliver(*self._session.waiting.popleft()) for _ in range(size)]

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """These do not come again, if this connection delivered them and is still open."""
        with self._server.changed:
            for message in messages:
                self._delivered.pop(message.mid, None)

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        number = next(self._numbers)
        with self._server.changed:
            if self.lost is None:
                reason = self._server.refuse(topic)
                self._unanswered[number] = None if reason is None else f"{topic}: {reason}"
                if reason is None:
                    self._server.publish(topic, payload, retain=retain)
        return number

    @property
    def unacknowledged(self) -> list[Message]:
        return list(self._delivered.values())

    def is_unanswered(self, number: int) -> bool:
        return number in self._unanswered

    def answers(self) -> dict[int, str | None]:
        answered, self._answered = self._answered, {}
        return answered

    def close(self) -> None:
        """Disconnect; the session stays, and no last will is published."""
        self._will = None
        self.end("closed")

    def leave(self) -> None:
        """Disconnect and end the session, with what it held."""
        self._session.persistent = False
        self.close()

    def end(self, reason: str) -> None:
        """The connection is over: what it left unacknowledged comes first on the next one."""
        with self._server.changed:
            if self.lost is not None:
                return
            self.lost = reason
            self._session.link = None
            again = [(message._replace(mid=0), 1) for message in self._delivered.values()]
            self._session.waiting.extendleft(reversed(again))
            self._delivered = {}
            if not self._session.persistent:
                self._server.drop(self._session)
            if self._will is not None:
                self._server.publish(self._will.topic, self._will.payload, retain=True)
            self._server.changed.notify_all()

    def _deliver(self, message: Message, qos: int) -> Message:
        if not qos:
            return message
        delivered = message._replace(mid=next(self._numbers))
        self._delivered[delivered.mid] = delivered
        return delivered


class DeviceLink(MemoryLink):
    """One connection to a `MemoryBroker`, as the agent's link: it is made first and started later,
    its session ends with it, and it subscribes with QoS 0."""

    window = 20

    def __init__(self, server: MemoryBroker, broker: BrokerUrl, version: Version) -> None:
        super().__init__(server)
        self.broker = broker
        self.version = version
        self.ready = False
        self._connected = False

    def start(self) -> None:
        try:
            self._server.attach(self, f"device-{id(self)}", None, persistent=False)
        except BrokerUnreachable:
            raise unreachable(self.broker, "Connection refused") from None
        self._connected = True

    def subscribe(self, filters: Iterable[str], *, qos: int = 0) -> None:
        super().subscribe(filters, qos=qos)

    def step(self, timeout_seconds: float) -> list[Message]:
        """The first step after `start` is the broker's answer."""
        if self._connected and not self.ready:
            self.ready, timeout_seconds = True, 0.0
        return super().step(timeout_seconds)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        return super().publish(topic, payload, retain=retain)

    def end(self, reason: str) -> None:
        super().end(f"the connection was lost ({reason})")


def matches(topic_filter: str, topic: str) -> bool:
    """The standard's wildcards: + is one level, # the level above it and all below."""
    wanted, found = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        found = found[: len(wanted)]
    return len(wanted) == len(found) and all(w in ("+", f) for w, f in zip(wanted, found))
