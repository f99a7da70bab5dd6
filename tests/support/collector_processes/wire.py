"""Devices and onlookers at a real broker, made of plain paho."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from testbed.brokers import leave
from tests.support.network import CONNACK, CONNECT, PUBACK, PUBLISH, Wire, frame, text

Message = tuple[str, bytes]

ASK_AGAIN_SECONDS = 5.0


def _client(name: str) -> mqtt.Client:
    return mqtt.Client(
        CallbackAPIVersion.VERSION2, name, clean_session=True, protocol=MQTTProtocolVersion.MQTTv311
    )


class Publisher:
    """A connection that may speak for any device, where the broker asks for no name."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client = _client("")
        self._client.max_inflight_messages_set(1000)
        self._client.max_queued_messages_set(0)

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        leave(self._client)

    def send(
        self, messages: Iterable[Message], *, retain: bool = False, wait_seconds: float = 60.0
    ) -> None:
        """Publish with QoS 1, and wait until the broker has acknowledged every one."""
        sent = [self._client.publish(topic, payload, 1, retain) for topic, payload in messages]
        for message in sent:
            message.wait_for_publish(wait_seconds)
            assert message.is_published()


class Watcher:
    """Sees what is published under some topics: first what is retained, then the rest."""

    def __init__(self, port: int, *filters: str) -> None:
        self.latest: dict[str, bytes] = {}
        self.history: list[Message] = []
        self._port = port
        self._filters = filters
        self._heard = threading.Condition()
        self._subscribed = threading.Event()
        self._client = _client("")
        self._client.on_message = self._on_message
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.reconnect_delay_set(1, 1)

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._subscribed.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        leave(self._client)

    def wait_for(self, done: Callable[[], bool], timeout: float = 60.0) -> None:
        """Until what was heard is as wanted. What is retained is asked for again now and then: NATS
        may take a subscription after it has handed a message on and before it keeps it."""
        limit = time.monotonic() + timeout
        with self._heard:
            while not self._heard.wait_for(done, min(ASK_AGAIN_SECONDS, timeout)):
                assert time.monotonic() < limit, sorted(self.latest)
                self._ask(self._client)

    def wait_for_topic(self, topic: str, payload: bytes | None = None) -> bytes:
        """Until a topic was published, with these bytes if they are given."""

        def done() -> bool:
            found = self.latest.get(topic)
            return found is not None if payload is None else found == payload

        self.wait_for(done)
        return self.latest[topic]

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        self._ask(client)

    def _ask(self, client: mqtt.Client) -> None:
        client.subscribe([(name, 1) for name in self._filters])

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        topic, payload = message.topic, bytes(message.payload)
        with self._heard:
            if not message.retain or self.latest.get(topic) != payload:  # else it was asked for
                self.history.append((topic, payload))
            self.latest[topic] = payload
            self._heard.notify_all()


def retained(port: int, *filters: str) -> dict[str, bytes]:
    """What a broker keeps under these topics; a mark of our own, set after asking, ends it."""
    mark = "allomfree-test/mark"
    with Watcher(port, *filters, mark) as watcher, Publisher(port) as publisher:
        publisher.send([(mark, b"end")])
        watcher.wait_for_topic(mark)
        return {topic: payload for topic, payload in watcher.latest.items() if topic != mark}


def send_quickly(port: int, messages: Sequence[Message]) -> None:
    """Publish thousands with QoS 1 without paho, and wait until all are acknowledged."""
    hello = text("MQTT") + bytes([4, 2, 0, 60]) + text("quick")
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.sendall(frame(CONNECT, hello))
        wire = Wire(sock)
        answer = wire.read()
        assert answer is not None
        assert answer.kind == CONNACK
        packets = (
            frame(PUBLISH, text(topic) + (1 + i % 65_535).to_bytes(2) + payload, flags=2)
            for i, (topic, payload) in enumerate(messages)
        )
        sender = threading.Thread(target=sock.sendall, args=(b"".join(packets),))
        sender.start()
        for _ in messages:
            answer = wire.read()
            assert answer is not None
            assert answer.kind == PUBACK
        sender.join(60)
        wire.close()
