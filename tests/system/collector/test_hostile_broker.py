"""A5: no broker, and no device through one, makes the collector use memory without bound."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from protocol_spec import Outcome
from testbed.brokers import Nats
from tests.support.collector_processes.campaign import (
    Collection,
    assert_each_once,
    wait_until_open,
)
from tests.support.collector_processes.driver import Launcher
from tests.support.collector_processes.processes import resident
from tests.support.collector_processes.wire import Message, Publisher
from tests.support.edge_processes import wait_until
from tests.support.hostile import ATTACKS, Hostile
from tests.support.network import CONNACK, PUBACK, PUBLISH, Peer, Wire, frame, text

DEVICES = 6
EXTRA_MIB = 20
LARGE = 8_000_000
HUGE = 60_000_000

pytestmark = pytest.mark.slow


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.shared(tmp_path / "data", DEVICES)


def publication(wire: Wire, message: Message, mid: int) -> bytes:
    topic, payload = message
    tail = b"\0" if wire.version == 5 else b""
    return frame(PUBLISH, text(topic) + struct.pack("!H", mid) + tail + payload, flags=2)


def test_a_collector_outlives_every_attack_in_little_memory(
    collection: Collection, launcher: Launcher
) -> None:
    def delivering(wire: Wire) -> None:
        wire.connack()
        wire.send(*(publication(wire, m, 1 + i) for i, m in enumerate(collection.reports())))
        wire.serve(lambda published: wire.puback(published.mid))

    hostile = Hostile(delivering)
    with Peer(hostile) as peer:
        run = launcher.start(collection.options(peer, reconnect_longest=0.05))
        wait_until(lambda: len(hostile.left) < len(ATTACKS))
        before = resident(run.pid)
        wait_until(lambda: not hostile.left, timeout=120)
        collection.wait_for(DEVICES)
        assert resident(run.pid) < before + EXTRA_MIB
        assert run.said("it sent a SUBACK of") == 2
        run.kill()
    assert_each_once(collection.look(), DEVICES)


def test_a_message_too_long_is_refused_and_acknowledged_where_brokers_cannot_be_told(
    collection: Collection, launcher: Launcher
) -> None:
    """MQTT 3.1.1 has no largest packet: ending the connection would bring it back for ever."""
    acknowledged: list[int] = []

    def old(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        if wire.version == 5:
            wire.send(frame(CONNACK, b"\0\1"))
            return
        wire.connack()
        large = (collection.topics.report("kitchen-7"), bytes(HUGE))
        wire.send(publication(wire, large, 100))
        wire.send(*(publication(wire, m, 1 + i) for i, m in enumerate(collection.reports())))
        while (packet := wire.read()) is not None:
            if packet.kind == PUBACK:
                acknowledged.append(int.from_bytes(packet.body))

    with Peer(old) as peer:
        run = launcher.start(collection.options(peer))
        run.wait_for("connected to")
        before = resident(run.pid)
        collection.wait_for(DEVICES)
        wait_until(lambda: len(acknowledged) == DEVICES + 1)
        assert resident(run.pid) < before + EXTRA_MIB
        run.kill()
    assert set(acknowledged) == {100, *range(1, DEVICES + 1)}
    counted = collection.look()
    assert_each_once(counted, DEVICES)
    assert counted.outcomes[Outcome.ACCEPTED] == DEVICES
    assert counted.received == DEVICES + 1


def test_a_device_cannot_lock_the_collector_out_with_one_long_message(
    collection: Collection, launcher: Launcher, tmp_path: Path
) -> None:
    class Generous(Nats):
        extra = "max_payload: 16MB"

    with Generous(tmp_path / "nats") as broker:
        run = launcher.start(collection.options(broker))
        wait_until_open(collection, broker.port)
        before = resident(run.pid)
        with Publisher(broker.port) as publisher:
            publisher.send([(collection.topics.report("kitchen-7"), bytes(LARGE))])
            publisher.send(collection.reports())
        collection.wait_for(DEVICES)
        assert resident(run.pid) < before + EXTRA_MIB
        assert run.said("reports wait at the broker") == 0
        assert run.terminate() == 0
    assert_each_once(collection.look(), DEVICES)
