"""What a broker has acknowledged it keeps, however late the collector comes back (F2, P5)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_client import EdgeClient
from edge_client.clock import SystemClock
from edge_client.records import Queued
from protocol_spec import Manifest, Topics
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Broker, leave
from tests.support.campaigns import second_manifest
from tests.support.edge import QUICK, tick_until
from tests.support.edge_processes.loops import one_queued
from tests.support.network import PUBLISH, SUBSCRIBE, Peer, Wire

DEVICES: Final = 5
LEFT: Final = 1  # second until the deadline, by the device's clock
AWAY: Final = 2.5  # seconds


class JustBeforeTheDeadline(SystemClock):
    """Stands still there, so that a slow machine does not matter."""

    def __init__(self, asked: Manifest) -> None:
        self._now = float(asked.rounds.deadline(0) - LEFT)

    def wall(self) -> float:
        return self._now


@contextmanager
def session(port: int, name: str, pattern: str) -> Iterator[dict[str, bytes]]:
    """A collector's connection: its session outlives it. Yields what arrives."""
    arrived: dict[str, bytes] = {}
    subscribed = threading.Event()
    protocol = MQTTProtocolVersion.MQTTv311
    client = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False, protocol=protocol)

    def on_message(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        arrived[message.topic] = bytes(message.payload)

    def on_connect(*_: Any) -> None:
        client.subscribe(pattern, 1)

    client.on_message, client.on_connect = on_message, on_connect
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        assert subscribed.wait(30)
        yield arrived
    finally:
        leave(client)


def send_one(state: Path, asked: Manifest, broker: Broker) -> tuple[str, bytes]:
    """A device's report, handed over and acknowledged a second before the deadline."""
    points: list[str] = []
    clock = JustBeforeTheDeadline(asked)
    with EdgeClient(state, clock=clock, timing=QUICK, trace=points.append) as client:
        joined = client.join(client.invitation(manifest=asked, broker=broker.url))
        drawn = client.agent.draw(joined, lambda _: "wood")
        assert isinstance(drawn, Queued)
        with closing(client.runner(lambda _: "wood")) as runner:
            tick_until(runner, lambda: "acknowledged" in points)
    return joined.topics.report(joined.device), drawn.payload


def test_a_collector_away_until_after_the_deadline_gets_every_report(
    broker: Broker, tmp_path: Path
) -> None:
    """F2: acknowledged reports do not expire, on NATS and mosquitto."""
    asked = second_manifest(slug=f"t-{os.urandom(4).hex()}", count=1, grace=0)
    name, pattern = random_client_id("collector"), Topics(asked.campaign).all_reports
    with session(broker.port, name, pattern):
        pass
    sent = dict(send_one(tmp_path / str(i), asked, broker) for i in range(DEVICES))
    time.sleep(AWAY)  # the collector is away; what would expire does so meanwhile
    with session(broker.port, name, pattern) as arrived:
        limit = time.monotonic() + 30
        while len(arrived) < DEVICES and time.monotonic() < limit:
            time.sleep(0.01)
    assert arrived == sent


def test_a_publish_carries_no_property(tmp_path: Path) -> None:
    """P5: a message expiry interval would tell the device's clock to the second."""
    properties: list[int] = []

    def script(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        while (packet := wire.read()) is not None:
            if packet.kind == SUBSCRIBE:
                wire.suback(packet)
            elif packet.kind == PUBLISH:
                assert wire.version == 5
                topic = int.from_bytes(packet.body[:2])
                properties.append(packet.body[2 + topic + 2])
                wire.puback(wire.published(packet).mid)

    with Peer(script) as peer, one_queued(tmp_path / "state", peer.url) as (carrier, _):
        tick_until(carrier, lambda: bool(properties))
    assert set(properties) == {0}
