"""A broker in this process, for tests of the agent and of programs that use it.

broker = MemoryBroker()
client = EdgeClient(directory, make_link=broker.link)

It keeps retained messages, knows MQTT's wildcards, acknowledges what is published, and can be
stopped and started again. Links may belong to different threads. There is no access control, no
session that outlives its link, and no limit but the window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from edge_client.link import WINDOW, Acknowledged, Arrived, Connected, Event, Lost
from protocol_spec.programs.mqtt import MQTT_5, Version, unreachable
from protocol_spec.programs.settings import BrokerUrl, Credentials


class Message(NamedTuple):
    """Something that was published."""

    topic: str
    payload: bytes


class MemoryBroker:
    """Carries messages between links, and remembers what was published to it."""

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.running = True
        self._retained: dict[str, bytes] = {}
        self._links: list[MemoryLink] = []
        self._listeners: list[tuple[str, Callable[[Message], None]]] = []
        self.changed = threading.Condition(threading.RLock())

    def link(
        self,
        broker: BrokerUrl,
        credentials: Credentials,  # noqa: ARG002 - everybody is let in
        *,
        keepalive: int = 60,  # noqa: ARG002 - it is never silent
        version: Version = MQTT_5,
    ) -> MemoryLink:
        """A link to this broker, whatever its address: the `make_link` of an `EdgeClient`."""
        return MemoryLink(self, broker, version)

    def listen(self, pattern: str, call: Callable[[Message], None]) -> None:
        """Call a function for every message that a topic filter matches: a collector in a test."""
        self._listeners.append((pattern, call))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Deliver a message to everybody who subscribed to it; an empty one clears a retained."""
        with self.changed:
            message = Message(topic, payload)
            self.published.append(message)
            if retain:
                self.keep(topic, payload)
            for link in self._links:
                link.deliver(message)
            self.changed.notify_all()
        for pattern, call in self._listeners:
            if matches(pattern, topic):
                call(message)

    def keep(self, topic: str, payload: bytes) -> None:
        """Retain a message without a word to those who listen now; an empty one clears it."""
        with self.changed:
            self._retained.pop(topic, None)
            self._retained.update({topic: payload} if payload else {})

    def stop(self) -> None:
        """Every connection is lost, and no new one can be made."""
        with self.changed:
            self.running = False
            for link in self._links:
                link.lose()
            self._links.clear()
            self.changed.notify_all()

    def start(self) -> None:
        """Take connections again, with the retained messages as they were."""
        self.running = True

    def attach(self, link: MemoryLink) -> None:
        """A link that has been started."""
        with self.changed:
            self._links.append(link)

    def detach(self, link: MemoryLink) -> None:
        """A link that has been closed."""
        with self.changed:
            if link in self._links:
                self._links.remove(link)

    def retained(self, pattern: str) -> list[Message]:
        """The retained messages that a topic filter matches."""
        with self.changed:
            kept = [Message(*entry) for entry in self._retained.items()]
        return [message for message in kept if matches(pattern, message.topic)]


class MemoryLink:
    """One connection to a `MemoryBroker`; a `Link`."""

    def __init__(self, server: MemoryBroker, broker: BrokerUrl, version: Version) -> None:
        self.broker = broker
        self.version = version
        self.ready = False
        self._server = server
        self._events: list[Event] = []
        self._filters: list[str] = []
        self._unanswered: set[int] = set()
        self._last_number = 0

    @property
    def free(self) -> int:
        """The window, less what is unanswered."""
        return WINDOW - len(self._unanswered)

    def start(self) -> None:
        """Connect; a broker that was stopped cannot be reached."""
        if not self._server.running:
            raise unreachable(self.broker, "Connection refused")
        self._server.attach(self)
        self._note(Connected())

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe, and get what is retained at once."""
        with self._server.changed:
            self._filters += [name for name in filters if name not in self._filters]
            for name in filters:
                for message in self._server.retained(name):
                    self._note(Arrived(*message))

    def publish(self, topic: str, payload: bytes) -> int:
        """Publish, and have it acknowledged with the next step."""
        self._last_number += 1
        number = self._last_number
        self._unanswered.add(number)
        if self._server.running:
            self._server.publish(topic, payload)
            self._note(Acknowledged(number, None))
        return number

    def step(self, timeout: float) -> list[Event]:
        """What has happened; waits for something only if nothing has."""
        limit = time.monotonic() + timeout
        with self._server.changed:
            while not self._events and (left := limit - time.monotonic()) > 0:
                self._server.changed.wait(left)
            events, self._events = self._events, []
        for event in events:
            if isinstance(event, Connected):
                self.ready = True
            elif isinstance(event, Acknowledged):
                self._unanswered.discard(event.mid)
        return events

    def close(self) -> None:
        """Nothing more arrives."""
        self._server.detach(self)
        self.ready = False

    def deliver(self, message: Message) -> None:
        """From the broker: once, however many filters match."""
        if any(matches(pattern, message.topic) for pattern in self._filters):
            self._events.append(Arrived(*message))

    def lose(self) -> None:
        """From the broker: the connection has ended."""
        self._events.append(Lost("the connection was lost (the broker was stopped)"))

    def _note(self, event: Event) -> None:
        with self._server.changed:
            self._events.append(event)
            self._server.changed.notify_all()


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic filter with MQTT's wildcards `+` and `#` matches a topic."""
    wanted, found = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted, found = wanted[:-1], found[: len(wanted) - 1]
    return len(wanted) == len(found) and all(w in ("+", f) for w, f in zip(wanted, found))
