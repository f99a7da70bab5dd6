"""Where links lead in tests: to a broker in memory, or to a real one over a line to be cut."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Protocol, Self

from collector.links import Link, Message, Will
from collector.links.mqtt import PahoLink
from protocol_spec.programs.memory_broker import MemoryBroker, MemoryLink
from protocol_spec.programs.settings import Credentials, parse_broker
from testbed.brokers import Broker
from tests.support.proxy import Proxy

PATIENCE_SECONDS = 60.0


class Ground(Protocol):
    """A broker to connect to, and a way to end a connection without a goodbye."""

    def connect(self, name: str, *, will: Will | None = None, persistent: bool = True) -> Link: ...

    def cut(self, link: Link) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(
        self, name: str, *, will: Will | None = None, persistent: bool = True
    ) -> MemoryLink:
        return self._broker.connect(name, will=will, persistent=persistent)

    def cut(self, link: Link) -> None:
        assert isinstance(link, MemoryLink)
        link.end("the line was cut")


class AtBroker:
    """Every link has a line of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stack = ExitStack()
        self._lines: dict[int, Proxy] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, name: str, *, will: Will | None = None, persistent: bool = True) -> PahoLink:
        line = self._stack.enter_context(Proxy(self._broker.port))
        link = PahoLink(
            parse_broker(line.url),
            Credentials(),
            client_id=name,
            will=will,
            persistent=persistent,
        )
        self._stack.callback(link.close)
        link.connect()
        self._lines[id(link)] = line
        return link

    def cut(self, link: Link) -> None:
        line = self._lines[id(link)]
        line.wait_for_connections(1)
        line.connections[-1].close()
        wait_until_lost(link)


def wait_until_lost(link: Link) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while link.lost is None:
        assert time.monotonic() < limit
        link.step(0.1)


def subscribe(link: Link, topic_filter: str, *, qos: int = 1) -> list[Message]:
    """Subscribe, and wait for the broker's word; the messages that came before it."""
    wanted, arrived = link.granted + 1, list[Message]()
    link.subscribe([topic_filter], qos=qos)
    limit = time.monotonic() + PATIENCE_SECONDS
    while link.granted < wanted:
        assert time.monotonic() < limit
        assert link.lost is None, link.lost
        arrived += link.step(0.1)
    return arrived


def receive(link: Link, count: int) -> list[Message]:
    """That many messages, none of them acknowledged."""
    arrived: list[Message] = []
    limit = time.monotonic() + PATIENCE_SECONDS
    while len(arrived) < count:
        assert time.monotonic() < limit, arrived
        assert link.lost is None, link.lost
        arrived += link.step(0.1)
    return arrived


def publish(link: Link, topic: str, payload: bytes, *, retain: bool = False) -> str | None:
    """Publish, and wait for the broker's answer: None, or why it refused."""
    number = link.publish(topic, payload, retain=retain)
    limit = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < limit:
        assert link.lost is None, link.lost
        link.step(0.1)
        answers = link.answers()
        if number in answers:
            return answers[number]
    raise AssertionError("the broker did not answer")
