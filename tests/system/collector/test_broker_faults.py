"""Brokers and networks that fail under a running collector: nothing lost, nothing twice."""

from __future__ import annotations

import random
import resource
import struct
import threading
from pathlib import Path

import pytest

from collector.mqtt.link import BATCH, Link
from protocol_spec import Outcome
from protocol_spec.programs.address import Credentials, parse_broker
from tests.support.brokers import Broker, Mosquitto, Nats
from tests.support.collector_processes.campaign import (
    ATTRIBUTE,
    Desk,
    assert_each_once,
    wait_until_open,
)
from tests.support.collector_processes.processes import CollectorProcess, facts
from tests.support.collector_processes.wire import Message, Publisher, Watcher, retained
from tests.support.edge_processes.processes import wait_until
from tests.support.peer import PUBACK, PUBLISH, Peer, Wire, frame, text
from tests.support.proxy import Proxy
from tests.system.collector.test_bad_input import resident

DEVICES = 20
NONSENSE = 6
FLOOD = 20_000


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk.opened(tmp_path / "data", DEVICES)


def publication(wire: Wire, message: Message, mid: int) -> bytes:
    """A message to the collector with QoS 1, as bytes."""
    topic, payload = message
    tail = b"\0" if wire.version == 5 else b""
    return frame(PUBLISH, text(topic) + struct.pack("!H", mid) + tail + payload, flags=2)


def send(broker: Broker, messages: list[Message]) -> None:
    with Publisher(broker.port) as publisher:
        publisher.send(messages)


@pytest.mark.slow
def test_a_broker_that_comes_later(desk: Desk, tmp_path: Path) -> None:
    broker = Nats(tmp_path / "nats")
    with CollectorProcess(desk.data, "--broker", broker.url) as process:
        process.wait_for("Connection refused; reports wait")
        wait_until(
            lambda: "Connection refused" in facts("health", "--data-dir", desk.data)["finding"]
        )
        with broker:
            wait_until_open(desk, broker.port)
            send(broker, desk.reports())
            wait_until(lambda: desk.look().n == DEVICES)
        assert_each_once(desk.look(), DEVICES)
        assert process.said("Connection refused") == 1, "once, not at every attempt"


@pytest.mark.slow
def test_a_broker_that_restarts(desk: Desk, broker: Broker) -> None:
    """NATS keeps the session and what is in it, mosquitto forgets everything."""
    half = DEVICES // 2
    with CollectorProcess(desk.data, "--broker", broker.url) as process:
        wait_until_open(desk, broker.port)
        send(broker, desk.reports()[:half])
        wait_until(lambda: desk.look().n == half)
        broker.kill()
        process.wait_for("reports wait at the broker")
        broker.start()
        process.wait_for("collecting for", times=2)
        with Watcher(broker.port, desk.topics.manifest) as watcher:
            assert watcher.wait_for_topic(desk.topics.manifest) == desk.manifest.to_bytes()
        send(broker, desk.reports())
        wait_until(lambda: desk.look().n == DEVICES)
        assert_each_once(desk.look(), DEVICES)
        wait_until(lambda: bool(retained(broker.port, f"{desk.topics.receipt_root}#")))


@pytest.mark.slow
def test_results_for_a_broker_that_forgot(tmp_path: Path, mosquitto: Mosquitto) -> None:
    desk = Desk.opened(tmp_path / "data", DEVICES, period=1, grace=0, count=1)
    topic = desk.topics.result(ATTRIBUTE)
    with CollectorProcess(desk.data, "--broker", mosquitto.url):
        wait_until_open(desk, mosquitto.port)
        send(mosquitto, desk.reports())
        with Watcher(mosquitto.port, topic) as watcher:
            first = watcher.wait_for_topic(topic)
        mosquitto.kill()
        mosquitto.start()
        with Watcher(mosquitto.port, topic) as watcher:
            assert watcher.wait_for_topic(topic) == first
    assert_each_once(desk.look(), DEVICES)


@pytest.mark.slow
def test_acknowledged_only_where_it_was_delivered(desk: Desk) -> None:
    """A batch that outlives its connection is not acknowledged on the next one (I7, R15)."""
    acknowledged: list[list[int]] = []
    deliver, cut = threading.Event(), threading.Event()

    def script(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        acknowledged.append([])
        if len(acknowledged) == 1:
            deliver.wait(60)
            wire.send(*(publication(wire, m, 7 + i) for i, m in enumerate(desk.reports())))
            cut.wait(60)
            wire.hang_up()
            return
        wire.send(*(publication(wire, m, 207 + i) for i, m in enumerate(desk.reports())))
        while (packet := wire.read()) is not None:
            if packet.kind == PUBACK:
                acknowledged[-1].append(int.from_bytes(packet.body[:2]))

    with Peer(script) as peer, CollectorProcess(desk.data, "--broker", peer.url) as process:
        process.wait_for("collecting for")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        deliver.set()
        process.wait_for("cannot be written")
        cut.set()
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        wait_until(lambda: desk.look().received == 2 * DEVICES)
        process.terminate()
    assert acknowledged[1] == [207 + i for i in range(DEVICES)], (
        "those of this connection, no other"
    )
    counted = desk.look()
    assert_each_once(counted, DEVICES)
    assert counted.outcomes[Outcome.DUPLICATE] == DEVICES


@pytest.mark.slow
def test_a_connection_cut_again_and_again(desk: Desk, quick_nats: Nats) -> None:
    with (
        Proxy(quick_nats.port) as proxy,
        CollectorProcess(desk.data, "--broker", proxy.url),
        Publisher(quick_nats.port) as publisher,
    ):
        wait_until_open(desk, quick_nats.port)
        for number, start in enumerate(range(0, DEVICES, 5), 1):
            publisher.send(desk.reports()[: start + 5])
            proxy.connections[-1].close()
            proxy.wait_for_connections(number + 1)
        wait_until(lambda: desk.look().n == DEVICES)
        assert_each_once(desk.look(), DEVICES)


def test_split_frames(desk: Desk, broker: Broker) -> None:
    with (
        Proxy(broker.port, one_by_one=True) as proxy,
        CollectorProcess(desk.data, "--broker", proxy.url) as process,
    ):
        wait_until_open(desk, broker.port)
        send(broker, desk.reports())
        wait_until(lambda: desk.look().n == DEVICES)
        assert_each_once(desk.look(), DEVICES)
        assert process.terminate() == 0


@pytest.mark.slow
def test_a_half_open_connection_is_noticed(desk: Desk, quick_broker: Broker) -> None:
    with (
        Proxy(quick_broker.port) as proxy,
        CollectorProcess(desk.data, "--broker", proxy.url, "--keepalive", "2") as process,
    ):
        wait_until_open(desk, quick_broker.port)
        proxy.hush()
        send(quick_broker, desk.reports())
        process.wait_for("reports wait at the broker")
        process.wait_for("collecting for", times=2)
        wait_until(lambda: desk.look().n == DEVICES, timeout=60)
        assert_each_once(desk.look(), DEVICES)


@pytest.mark.slow
def test_a_flood_does_not_fill_the_memory(desk: Desk, tmp_path: Path) -> None:
    """Ten times what a batch may hold, waiting at the broker."""

    class Patient(Mosquitto):
        extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"

    with Patient(tmp_path / "patient") as broker:
        with CollectorProcess(desk.data, "--broker", broker.url) as process:
            wait_until_open(desk, broker.port)
            before = resident(process.pid)
            process.terminate()
        send(broker, [desk.report(i % DEVICES) for i in range(FLOOD)])
        with CollectorProcess(desk.data, "--broker", broker.url) as process:
            wait_until(lambda: desk.look().received >= FLOOD, timeout=120)
            assert resident(process.pid) < before + 64
            health = facts("health", "--data-dir", desk.data)
            assert process.terminate() == 0
    assert 0 < health["largest_batch"] <= BATCH
    assert_each_once(desk.look(), DEVICES)


def test_a_broker_that_talks_nonsense(desk: Desk) -> None:
    """Bytes that are no MQTT cost the connection, never the collector."""
    noise = random.Random(5)
    connections: list[Wire] = []

    def babbling(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        connections.append(wire)
        wire.connack()
        if len(connections) > NONSENSE:
            wire.send(*(publication(wire, m, 1 + i) for i, m in enumerate(desk.reports())))
            wire.serve(lambda published: wire.puback(published.mid))
            return
        wire.send(frame(noise.randrange(1, 16), noise.randbytes(20), noise.randrange(16)))
        wire.send(noise.randbytes(30))
        wire.hang_up()

    with Peer(babbling) as peer, CollectorProcess(desk.data, "--broker", peer.url) as process:
        process.wait_for("connected to", times=NONSENSE + 1, timeout=200)
        wait_until(lambda: desk.look().n == DEVICES)
        assert process.is_running
    assert_each_once(desk.look(), DEVICES)


def test_nonsense_behind_a_full_batch(desk: Desk) -> None:
    sent = threading.Event()

    def script(wire: Wire) -> None:
        if wire.expect_connect():
            wire.connack()
            wire.send(wire.publication("t", b"") * BATCH + b"\xff" * 5)
            sent.set()
            wire.serve(lambda _: None)

    with Peer(script) as peer:
        link = Link(parse_broker(peer.url), Credentials(), client_id="test")
        link.connect()
        assert sent.wait(20)
        arrived = 0
        while link.lost is None:
            arrived += len(link.step(1.0))
        assert "BadPacket" in link.lost
        link.close()
    assert arrived == BATCH
