"""Where sources lead in tests: a broker in memory, mosquitto, and NATS's own stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from collector.links import Link, Message, Source
from collector.links.mqtt import PahoLink, SharedSubscription
from collector.links.stream import StreamConnector
from collector.settings import StreamAddress
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import Credentials, parse_broker
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Broker, Nats
from tests.support.links import publish
from tests.support.shared_brokers import SharedBrokers

PATIENCE_SECONDS = 60.0


class SourceGround(Protocol):
    """Workers of one namespace at one broker, and a device."""

    whole: bool

    def source(self, name: str, *, again: bool = False) -> Source: ...

    def send(self, topic: str, payload: bytes) -> None: ...

    def close(self) -> None: ...


class Shared:
    """Shared subscriptions, of MQTT 5 or in memory."""

    whole = False

    def __init__(self, namespace: str, connect: Callable[[str, bool], Link]) -> None:
        self._namespace = namespace
        self._connect = connect
        self._device = connect(random_client_id("device"), False)
        self._made: list[Link] = [self._device]

    def source(self, name: str, *, again: bool = False) -> SharedSubscription:
        """Ready to be dealt to: the broker has confirmed what it subscribed to, or knew it."""
        link = self._connect(f"{self._namespace}-{name}", True)
        self._made.append(link)
        source = SharedSubscription(link, self._namespace)
        limit = time.monotonic() + PATIENCE_SECONDS
        while link.granted < 3 and not again:
            assert time.monotonic() < limit
            assert source.step(0.05) == []
        return source

    def send(self, topic: str, payload: bytes) -> None:
        assert publish(self._device, topic, payload) is None

    def close(self) -> None:
        for link in self._made:
            link.close()


class Streamed:
    """NATS's own stream, whose consumer delivers again after a second."""

    whole = True

    def __init__(self, namespace: str, broker: Nats) -> None:
        here = StreamAddress(False, "127.0.0.1", broker.stream_port)
        self._connect = StreamConnector(lambda: [here], Credentials(), namespace, ack_seconds=1)
        self._device = paho(broker)(random_client_id("device"), False)
        self._made: list[Source] = []

    def source(self, name: str, *, again: bool = False) -> Source:  # noqa: ARG002 - nothing is kept for one worker
        self._made.append(self._connect())
        return self._made[-1]

    def send(self, topic: str, payload: bytes) -> None:
        assert publish(self._device, topic, payload) is None

    def close(self) -> None:
        self._device.close()
        for source in self._made:
            source.close()


def paho(broker: Broker) -> Callable[[str, bool], PahoLink]:
    def connect(name: str, persistent: bool) -> PahoLink:
        link = PahoLink(
            parse_broker(broker.url), Credentials(), client_id=name, persistent=persistent
        )
        link.connect()
        return link

    return connect


def nats_with_a_stream(brokers: SharedBrokers) -> Nats:
    """The NATS that tests share; it makes its stream for the first client."""
    found = brokers.get("nats")
    assert isinstance(found, Nats)
    paho(found)(random_client_id("first"), False).close()
    return found


def in_memory(namespace: str) -> Shared:
    broker = MemoryBroker()
    return Shared(namespace, lambda name, persistent: broker.connect(name, persistent=persistent))


def receive(sources: list[Source], count: int) -> list[list[Message]]:
    """What each of them gets, that many together; nothing is acknowledged."""
    found: list[list[Message]] = [[] for _ in sources]
    limit = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, found)) < count:
        assert time.monotonic() < limit, found
        for source, got in zip(sources, found):
            assert source.lost is None
            got += [m for m in source.step(0.05) if "/drain/" not in (m.topic or "")]
    return found


def until(source: Source, done: Callable[[], bool], moment: float | None = None) -> None:
    """Let a source work, acknowledging only its own markers, until something is so."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < limit
        assert source.lost is None
        if moment is not None:
            source.mark(moment)
        source.acknowledge([m for m in source.step(0.05) if "/drain/" in (m.topic or "")])
