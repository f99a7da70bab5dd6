"""Brokers, networks and disks that fail under a running collector: nothing lost, nothing twice."""

from __future__ import annotations

import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from collector.health import examine
from collector.links import BATCH, Link, Message
from collector.links.mqtt import PahoLink
from edge_client.link import PahoLink as AgentLink
from edge_client.link import connect as connect_agent
from protocol_spec import Outcome
from protocol_spec.programs.settings import Credentials, parse_broker
from testbed.brokers import Broker, Mosquitto, Nats, publish, with_tls
from testbed.processes import peak_memory_mib
from tests.support.collector_processes import (
    Collection,
    CollectorRun,
    Launcher,
    Options,
    Watcher,
    assert_each_once,
    facts,
    publication,
    retained,
    wait_until_open,
)
from tests.support.harness import need
from tests.support.hostile import ATTACKS, Hostile
from tests.support.network import CONNACK, PINGREQ, PUBACK, Peer, Proxy, Script, Wire, frame
from tests.support.processes import wait_until

DEVICES = 20
FLOOD = 20_000
EXTRA_MIB = 20
SMALLEST = 8192  # bytes of a file: enough for the heartbeat, too little for the database
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
PATIENCE_SECONDS = 60.0
pytestmark = pytest.mark.slow


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.shared(tmp_path / "data", DEVICES)


def send(broker: Broker, collection: Collection) -> None:
    publish(broker.url, collection.reports())


def deliver(wire: Wire, collection: Collection, first_mid: int = 1) -> None:
    """As a broker with a session: every report, with QoS 1."""
    reports = enumerate(collection.reports(), first_mid)
    wire.send(*(publication(wire, message, mid) for mid, message in reports))


# --- brokers and networks -------------------------------------------------------------------------


def test_a_broker_that_restarts(
    collection: Collection, own_broker: Broker, launcher: Launcher
) -> None:
    """NATS keeps the session and what is in it, mosquitto forgets everything."""
    half, broker = DEVICES // 2, own_broker
    run = launcher.start(collection.options(broker))
    wait_until_open(collection, broker.port)
    publish(broker.url, collection.reports()[:half])
    collection.wait_for(half)
    broker.kill()
    run.wait_for("reports wait at the broker")
    broker.start()
    run.wait_for("collecting for", times=2)
    with Watcher(broker.port, collection.topics.manifest) as watcher:
        assert watcher.wait_for_topic(collection.topics.manifest) == collection.manifest.to_bytes()
    send(broker, collection)
    collection.wait_for(DEVICES)
    assert_each_once(collection.look(), DEVICES)
    wait_until(lambda: bool(retained(broker.port, f"{collection.topics.receipt_root}#")))


def test_acknowledged_only_where_it_was_delivered(
    collection: Collection, launcher: Launcher
) -> None:
    """A batch that outlives its connection is not acknowledged on the next one (I7, R15)."""
    acknowledged: list[list[int]] = []
    begin, cut = threading.Event(), threading.Event()

    def script(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        acknowledged.append([])
        if len(acknowledged) == 1:
            begin.wait(60)
            deliver(wire, collection, 7)
            cut.wait(60)
            wire.hang_up()
            return
        deliver(wire, collection, 207)
        while (packet := wire.read()) is not None:
            if packet.kind == PUBACK:
                acknowledged[-1].append(int.from_bytes(packet.body[:2]))

    with Peer(script) as peer:
        run = launcher.start(collection.options(peer))
        run.wait_for("collecting for")
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (SMALLEST, resource.RLIM_INFINITY))
        begin.set()
        run.wait_for("cannot be written")
        cut.set()
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, UNLIMITED)
        wait_until(lambda: collection.store.received() == 2 * DEVICES)
        run.terminate()
    assert acknowledged[1] == list(range(207, 207 + DEVICES)), "those of this connection, no other"
    counted = collection.look()
    assert_each_once(counted, DEVICES)
    assert counted.outcomes[Outcome.DUPLICATE] == DEVICES


def test_a_half_open_connection_is_noticed(
    collection: Collection, quick_broker: Broker, launcher: Launcher
) -> None:
    with Proxy(quick_broker.port) as proxy:
        run = launcher.start(collection.options(proxy, keepalive=2))
        wait_until_open(collection, quick_broker.port)
        proxy.go_half_open()
        send(quick_broker, collection)
        run.wait_for("reports wait at the broker")
        run.wait_for("collecting for", times=2)
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        run.kill()


class Busy:
    """Delivers steadily and never answers a PINGREQ, until it has seen enough of them."""

    def __init__(self) -> None:
        self.pings = 0
        self.enough = threading.Event()

    def __call__(self, wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        delivering = threading.Thread(target=self._deliver, args=[wire])
        delivering.start()
        while (packet := wire.read()) is not None:
            self.pings += packet.kind == PINGREQ
            if self.pings >= 3:
                self.enough.set()
        self.enough.set()
        delivering.join()

    def _deliver(self, wire: Wire) -> None:
        while not self.enough.wait(0.05):
            wire.publish("some/topic", b"x")


@pytest.mark.parametrize("program", ["collector", "agent"])
def test_a_busy_broker_is_not_taken_for_a_dead_one(program: str) -> None:
    """A1: it has so much to deliver that its answers to PINGREQ are far behind."""
    busy = Busy()
    with Peer(busy) as peer:
        link: PahoLink | AgentLink
        url = parse_broker(peer.url)
        if program == "agent":
            link = AgentLink(url, Credentials(), keepalive=3)
            connect_agent(link)
        else:
            link = PahoLink(url, Credentials(), client_id="test", keepalive=3)
            link.connect()
        limit = time.monotonic() + PATIENCE_SECONDS
        while not busy.enough.is_set():
            assert time.monotonic() < limit
            link.step(0.1)
            assert link.lost is None
        link.close()
    assert busy.pings >= 3, "a client that only listens must still be heard"


class Roomy(Mosquitto):
    """Keeps more than a thousand messages for a collector that is away."""

    extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 2000\n"


@pytest.mark.parametrize("kind", ["nats", "mosquitto"])
def test_what_waits_is_read_in_whole_batches_over_tls(kind: str, tmp_path: Path) -> None:
    """A1: brokers send nearly every message as a TLS record of its own."""
    if kind == "mosquitto":
        need("mosquitto")
    count, batches = 1_000, list[list[Message]]()
    with with_tls(Nats if kind == "nats" else Roomy)(tmp_path / "broker") as broker:
        trusted = Credentials(ca_file=str(broker.ca_file))
        link = PahoLink(parse_broker(broker.url), trusted, client_id="reader")
        link.connect()
        link.subscribe(["batches/#"])
        limit = time.monotonic() + PATIENCE_SECONDS
        while not link.granted:
            assert time.monotonic() < limit
            link.step(0.1)
        waiting = [(f"batches/{number}", b"%d" % number) for number in range(count)]
        publish(broker.url, waiting, ca_file=broker.ca_file)
        while sum(map(len, batches)) < count:
            assert time.monotonic() < limit, [len(batch) for batch in batches]
            batches.append(link.step(0.1))
            link.acknowledge(batches[-1])
        link.close()
    found = sorted(int(message.payload) for batch in batches for message in batch)
    assert found == list(range(count))
    assert max(map(len, batches)) >= 50, "far more than one, far less than what waits"


# --- brokers that break the rules, and memory (A5, I13) -------------------------------------------
def test_a_flood_does_not_fill_the_memory(
    collection: Collection, launcher: Launcher, tmp_path: Path
) -> None:
    """Five times what a batch may hold, waiting at the broker."""

    class Patient(Mosquitto):
        extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"

    with Patient(tmp_path / "patient") as broker:
        first = launcher.start(collection.options(broker))
        wait_until_open(collection, broker.port)
        before = peak_memory_mib(first.pid)
        first.terminate()
        publish(broker.url, [collection.report(i % DEVICES) for i in range(FLOOD)])
        second = launcher.start(collection.options(broker))
        wait_until(lambda: collection.store.received() >= FLOOD, timeout=120)
        assert peak_memory_mib(second.pid) < before + 64
        wait_until(lambda: examine(collection.data).facts().get("received") == FLOOD)
        health = examine(collection.data).facts()
        assert second.terminate() == 0
    assert 0 < health["largest_batch"] <= BATCH
    assert_each_once(collection.look(), DEVICES)


def linked(script: Script) -> Iterator[Link]:
    with Peer(script) as peer:
        link = PahoLink(parse_broker(peer.url), Credentials(), client_id="test")
        link.connect()
        yield link
        link.close()


def test_nonsense_behind_a_full_batch() -> None:
    sent = threading.Event()

    def script(wire: Wire) -> None:
        if wire.expect_connect():
            wire.connack()
            wire.send(wire.publication("t", b"") * BATCH + b"\xff" * 5)
            sent.set()
            wire.serve(lambda _: None)

    for link in linked(script):
        assert sent.wait(20)
        arrived = 0
        while link.lost is None:
            arrived += len(link.step(1.0))
        assert "broke the rules of MQTT" in link.lost
        assert arrived == BATCH


def test_what_came_with_the_answer_to_connect_counts_for_the_batch() -> None:
    """I13: a session's backlog follows at once, and a batch is never more than a batch."""

    def script(wire: Wire) -> None:
        if wire.expect_connect():
            accepted = frame(CONNACK, b"\0\0" + (b"\0" if wire.version == 5 else b""))
            wire.send(accepted + wire.publication("t", b"") * (2 * BATCH))
            wire.serve(lambda _: None)

    for link in linked(script):
        sizes: list[int] = []
        while sum(sizes) < 2 * BATCH:
            sizes.append(len(link.step(1.0)))
            assert link.lost is None
        assert max(sizes) <= BATCH


def test_a_collector_outlives_every_attack_in_little_memory(
    collection: Collection, launcher: Launcher
) -> None:
    def delivering(wire: Wire) -> None:
        wire.connack()
        deliver(wire, collection)
        wire.serve(lambda published: wire.puback(published.mid))

    hostile = Hostile(delivering)
    with Peer(hostile) as peer:
        run = launcher.start(collection.options(peer, reconnect_longest=0.05))
        wait_until(lambda: len(hostile.left) < len(ATTACKS))
        before = peak_memory_mib(run.pid)
        wait_until(lambda: not hostile.left, timeout=120)
        collection.wait_for(DEVICES)
        assert peak_memory_mib(run.pid) < before + EXTRA_MIB
        assert run.said("it sent a SUBACK of") == 2
        run.kill()
    assert_each_once(collection.look(), DEVICES)


def test_a_long_message_is_refused_and_acknowledged_where_brokers_cannot_limit_it(
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
        large = (collection.topics.report("kitchen-7"), bytes(60_000_000))
        wire.send(publication(wire, large, 100))
        deliver(wire, collection)
        while (packet := wire.read()) is not None:
            if packet.kind == PUBACK:
                acknowledged.append(int.from_bytes(packet.body))

    with Peer(old) as peer:
        run = launcher.start(collection.options(peer))
        run.wait_for("connected to")
        before = peak_memory_mib(run.pid)
        collection.wait_for(DEVICES)
        wait_until(lambda: len(acknowledged) == DEVICES + 1)
        assert peak_memory_mib(run.pid) < before + EXTRA_MIB
        run.kill()
    assert set(acknowledged) == {100, *range(1, DEVICES + 1)}
    assert_each_once(collection.look(), DEVICES)
    assert collection.look().received == DEVICES + 1


def test_a_device_cannot_lock_the_collector_out_with_one_long_message(
    collection: Collection, launcher: Launcher, tmp_path: Path
) -> None:
    class Generous(Nats):
        extra = "max_payload: 16MB"

    with Generous(tmp_path / "nats") as broker:
        run = launcher.start(collection.options(broker))
        wait_until_open(collection, broker.port)
        before = peak_memory_mib(run.pid)
        publish(broker.url, [(collection.topics.report("kitchen-7"), bytes(8_000_000))])
        send(broker, collection)
        collection.wait_for(DEVICES)
        assert peak_memory_mib(run.pid) < before + EXTRA_MIB
        assert run.said("reports wait at the broker") == 0
        assert run.terminate() == 0
    assert_each_once(collection.look(), DEVICES)


# --- disks: nothing is acknowledged, the collector lives and reports it; then all is counted (F4) -
def wait_for_alarm(collection: Collection) -> None:
    wait_until(lambda: "cannot be written" in examine(collection.data).finding)


def wait_until_well(collection: Collection) -> None:
    wait_until(lambda: examine(collection.data).well, timeout=60)


def start_and_fill(collection: Collection, broker: Broker, launcher: Launcher) -> CollectorRun:
    """Files of the running process cannot grow, which any user may set; then devices report."""
    run = launcher.start(collection.options(broker, keepalive=2))
    wait_until_open(collection, broker.port)
    wait_until_well(collection)
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (SMALLEST, resource.RLIM_INFINITY))
    send(broker, collection)
    wait_for_alarm(collection)
    return run


def test_files_that_cannot_grow(collection: Collection, broker: Broker, launcher: Launcher) -> None:
    """For so long that the broker gives the silent connection up."""
    run = start_and_fill(collection, broker, launcher)
    receipts = f"{collection.topics.receipt_root}#"
    health = facts("health", "--data-dir", collection.data)
    assert not health["healthy"]
    failures = health["storage_failures"]
    wait_until(lambda: examine(collection.data).facts()["storage_failures"] > failures + 1)
    assert run.is_running
    assert run.said("cannot be written") == 1, "once, not once a second"
    assert collection.look().n == 0
    assert not retained(broker.port, receipts)
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, UNLIMITED)
    collection.wait_for(DEVICES)
    wait_until_well(collection)
    assert_each_once(collection.look(), DEVICES)
    wait_until(lambda: bool(retained(broker.port, receipts)))
    assert run.terminate() == 0


@pytest.fixture(params=["size=24m", "size=64m,nr_inodes=120"], ids=["space", "inodes"])
def shared_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"{request.param},mode=700", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_that_the_embedded_broker_shares(shared_disk: Path, launcher: Launcher) -> None:
    """F4: NATS takes no message any more after its disk was full, until it is restarted; the
    collector notices, restarts it and goes on by itself."""
    devices = 400
    collection = Collection.opened(shared_disk / "data", devices)
    run = launcher.start(Options(str(collection.data), "", collection.namespace, embedded=True))
    port = collection.data / "broker" / "port"
    wait_until(port.exists, timeout=60)
    wait_until_well(collection)
    send_until_counted(collection, port, devices // 4)
    taken = list(use_all_space_and_names(shared_disk))
    try_to_send(collection, port, devices)
    for file in taken:
        file.unlink()
    send_until_counted(collection, port, devices)
    wait_until_well(collection)
    assert_each_once(collection.look(), devices)
    collection.close()
    assert run.terminate() == 0


def use_all_space_and_names(place: Path) -> Iterator[Path]:
    """Until nothing more fits, and no file can be created, which on a disk of few names is soon."""
    with (place / "ballast").open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    yield place / "ballast"
    with suppress(OSError):
        for number in range(500):
            (place / f"name-{number}").touch()
            yield place / f"name-{number}"


def try_to_send(collection: Collection, port: Path, devices: int) -> None:
    with suppress(OSError, RuntimeError):
        url = f"mqtt://127.0.0.1:{port.read_text()}"
        publish(url, collection.reports()[:devices], answer_seconds=3.0)


def send_until_counted(collection: Collection, port: Path, devices: int) -> None:
    """As devices do: again and again until it is counted."""
    limit = time.monotonic() + 90
    while collection.counted() < devices:
        assert time.monotonic() < limit, collection.counted()
        try_to_send(collection, port, devices)
