"""Brokers and networks that fail under a running collector: nothing lost, nothing twice."""

from __future__ import annotations

import random
import resource
import struct
import threading
from pathlib import Path

import pytest

from collector.health import examine
from collector.links import BATCH
from collector.links.mqtt import PahoLink
from protocol_spec import Outcome
from protocol_spec.programs.settings import Credentials, parse_broker
from testbed.brokers import Broker, Mosquitto, Nats
from tests.support.collector_processes.campaign import (
    ATTRIBUTE,
    Collection,
    assert_each_once,
    wait_until_open,
)
from tests.support.collector_processes.driver import Launcher
from tests.support.collector_processes.processes import facts, resident
from tests.support.collector_processes.wire import (
    Message,
    Publisher,
    Watcher,
    retained,
    send_quickly,
)
from tests.support.edge_processes import wait_until
from tests.support.network import CONNACK, PUBACK, PUBLISH, Peer, Proxy, Wire, frame, text

DEVICES = 20
NONSENSE = 6
FLOOD = 20_000


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.shared(tmp_path / "data", DEVICES)


def publication(wire: Wire, message: Message, mid: int) -> bytes:
    """A message to the collector with QoS 1, as bytes."""
    topic, payload = message
    tail = b"\0" if wire.version == 5 else b""
    return frame(PUBLISH, text(topic) + struct.pack("!H", mid) + tail + payload, flags=2)


def send(broker: Broker, messages: list[Message]) -> None:
    with Publisher(broker.port) as publisher:
        publisher.send(messages)


@pytest.mark.slow
def test_a_broker_that_comes_later(
    collection: Collection, launcher: Launcher, tmp_path: Path
) -> None:
    broker = Nats(tmp_path / "nats")
    run = launcher.start(collection.options(broker))
    run.wait_for("Connection refused; reports wait")
    wait_until(
        lambda: "Connection refused" in facts("health", "--data-dir", collection.data)["finding"]
    )
    with broker:
        wait_until_open(collection, broker.port)
        send(broker, collection.reports())
        collection.wait_for(DEVICES)
    assert_each_once(collection.look(), DEVICES)
    assert run.said("Connection refused") == 1, "once, not at every attempt"


@pytest.mark.slow
def test_a_broker_that_restarts(
    collection: Collection, own_broker: Broker, launcher: Launcher
) -> None:
    """NATS keeps the session and what is in it, mosquitto forgets everything."""
    half, broker = DEVICES // 2, own_broker
    run = launcher.start(collection.options(broker))
    wait_until_open(collection, broker.port)
    send(broker, collection.reports()[:half])
    collection.wait_for(half)
    broker.kill()
    run.wait_for("reports wait at the broker")
    broker.start()
    run.wait_for("collecting for", times=2)
    with Watcher(broker.port, collection.topics.manifest) as watcher:
        assert watcher.wait_for_topic(collection.topics.manifest) == collection.manifest.to_bytes()
    send(broker, collection.reports())
    collection.wait_for(DEVICES)
    assert_each_once(collection.look(), DEVICES)
    wait_until(lambda: bool(retained(broker.port, f"{collection.topics.receipt_root}#")))


@pytest.mark.slow
def test_results_for_a_broker_that_forgot(
    tmp_path: Path, own_mosquitto: Mosquitto, launcher: Launcher
) -> None:
    collection = Collection.opened(tmp_path / "data", DEVICES, period=1, grace=0, count=1)
    topic, port = collection.topics.result(ATTRIBUTE), own_mosquitto.port
    launcher.start(collection.options(own_mosquitto))
    wait_until_open(collection, port)
    send(own_mosquitto, collection.reports())
    with Watcher(port, topic) as watcher:
        first = watcher.wait_for_topic(topic)
    own_mosquitto.kill()
    own_mosquitto.start()
    with Watcher(port, topic) as watcher:
        assert watcher.wait_for_topic(topic) == first
    assert_each_once(collection.look(), DEVICES)


@pytest.mark.slow
def test_acknowledged_only_where_it_was_delivered(
    collection: Collection, launcher: Launcher
) -> None:
    """A batch that outlives its connection is not acknowledged on the next one (I7, R15)."""
    acknowledged: list[list[int]] = []
    deliver, cut = threading.Event(), threading.Event()
    reports = collection.reports()

    def script(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        acknowledged.append([])
        if len(acknowledged) == 1:
            deliver.wait(60)
            wire.send(*(publication(wire, m, 7 + i) for i, m in enumerate(reports)))
            cut.wait(60)
            wire.hang_up()
            return
        wire.send(*(publication(wire, m, 207 + i) for i, m in enumerate(reports)))
        while (packet := wire.read()) is not None:
            if packet.kind == PUBACK:
                acknowledged[-1].append(int.from_bytes(packet.body[:2]))

    with Peer(script) as peer:
        run = launcher.start(collection.options(peer))
        run.wait_for("collecting for")
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        deliver.set()
        run.wait_for("cannot be written")
        cut.set()
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, unlimited)
        wait_until(lambda: collection.store.received() == 2 * DEVICES)
        run.terminate()
    assert acknowledged[1] == [207 + i for i in range(DEVICES)], (
        "those of this connection, no other"
    )
    counted = collection.look()
    assert_each_once(counted, DEVICES)
    assert counted.outcomes[Outcome.DUPLICATE] == DEVICES


@pytest.mark.slow
def test_a_connection_cut_again_and_again(
    collection: Collection, quick_nats: Broker, launcher: Launcher
) -> None:
    with Proxy(quick_nats.port) as proxy, Publisher(quick_nats.port) as publisher:
        launcher.start(collection.options(proxy))
        wait_until_open(collection, quick_nats.port)
        for number, start in enumerate(range(0, DEVICES, 5), 1):
            publisher.send(collection.reports()[: start + 5])
            proxy.connections[-1].close()
            proxy.wait_for_connections(number + 1)
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)


def test_split_frames(collection: Collection, broker: Broker, launcher: Launcher) -> None:
    with Proxy(broker.port, one_by_one=True) as proxy:
        run = launcher.start(collection.options(proxy))
        wait_until_open(collection, broker.port)
        send(broker, collection.reports())
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        assert run.terminate() == 0


@pytest.mark.slow
def test_a_half_open_connection_is_noticed(
    collection: Collection, quick_broker: Broker, launcher: Launcher
) -> None:
    with Proxy(quick_broker.port) as proxy:
        run = launcher.start(collection.options(proxy, keepalive=2))
        wait_until_open(collection, quick_broker.port)
        proxy.hush()
        send(quick_broker, collection.reports())
        run.wait_for("reports wait at the broker")
        run.wait_for("collecting for", times=2)
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        run.kill()


@pytest.mark.slow
def test_a_flood_does_not_fill_the_memory(
    collection: Collection, launcher: Launcher, tmp_path: Path
) -> None:
    """Five times what a batch may hold, waiting at the broker."""

    class Patient(Mosquitto):
        extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"

    with Patient(tmp_path / "patient") as broker:
        first = launcher.start(collection.options(broker))
        wait_until_open(collection, broker.port)
        before = resident(first.pid)
        first.terminate()
        send_quickly(broker.port, [collection.report(i % DEVICES) for i in range(FLOOD)])
        second = launcher.start(collection.options(broker))
        wait_until(lambda: collection.store.received() >= FLOOD, timeout=120)
        assert resident(second.pid) < before + 64
        wait_until(lambda: examine(collection.data).facts().get("received") == FLOOD)
        health = examine(collection.data).facts()
        assert second.terminate() == 0
    assert 0 < health["largest_batch"] <= BATCH
    assert_each_once(collection.look(), DEVICES)


def test_a_broker_that_talks_nonsense(collection: Collection, launcher: Launcher) -> None:
    """Bytes that are no MQTT cost the connection, never the collector."""
    noise = random.Random(5)
    connections: list[Wire] = []
    reports = collection.reports()

    def babbling(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        connections.append(wire)
        wire.connack()
        if len(connections) > NONSENSE:
            wire.send(*(publication(wire, m, 1 + i) for i, m in enumerate(reports)))
            wire.serve(lambda published: wire.puback(published.mid))
            return
        wire.send(frame(noise.randrange(1, 16), noise.randbytes(20), noise.randrange(16)))
        wire.send(noise.randbytes(30))
        wire.hang_up()

    with Peer(babbling) as peer:
        run = launcher.start(collection.options(peer))
        run.wait_for("connected to", times=NONSENSE + 1)
        collection.wait_for(DEVICES)
        assert run.is_running
        run.kill()
    assert_each_once(collection.look(), DEVICES)


def test_nonsense_behind_a_full_batch(collection: Collection) -> None:
    sent = threading.Event()

    def script(wire: Wire) -> None:
        if wire.expect_connect():
            wire.connack()
            wire.send(wire.publication("t", b"") * BATCH + b"\xff" * 5)
            sent.set()
            wire.serve(lambda _: None)

    with Peer(script) as peer:
        link = PahoLink(parse_broker(peer.url), Credentials(), client_id="test")
        link.connect()
        assert sent.wait(20)
        arrived = 0
        while link.lost is None:
            arrived += len(link.step(1.0))
        assert "broke the rules of MQTT" in link.lost
        link.close()
    assert arrived == BATCH


def test_what_came_with_the_answer_to_connect_counts_for_the_batch() -> None:
    """I13: a session's backlog follows at once, and a batch is never more than a batch."""

    def script(wire: Wire) -> None:
        if wire.expect_connect():
            tail = b"\0" if wire.version == 5 else b""
            accepted = frame(CONNACK, b"\0\0" + tail)
            wire.send(accepted + wire.publication("t", b"") * (2 * BATCH))
            wire.serve(lambda _: None)

    with Peer(script) as peer:
        link = PahoLink(parse_broker(peer.url), Credentials(), client_id="test")
        link.connect()
        sizes: list[int] = []
        while sum(sizes) < 2 * BATCH:
            sizes.append(len(link.step(1.0)))
            assert link.lost is None
        link.close()
    assert max(sizes) <= BATCH
