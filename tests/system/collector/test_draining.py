"""What the broker took in time is counted, whatever stands still at the deadline (F1, A3).

The collector's clock is a file, so a deadline passes when the test says so: no waiting for it, and
no luck. On NATS and mosquitto.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from collector.data_dir import DATABASE, open_store
from collector.health import examine
from protocol_spec import Manifest, Outcome, Request, RequestKind, digest8
from protocol_spec.topics import marker
from testbed.brokers import Broker, Mosquitto, Nats
from tests.support.campaigns import manifest_text
from tests.support.collector_processes.campaign import (
    Collection,
    assert_each_once,
    own_bits,
    wait_until_open,
)
from tests.support.collector_processes.driver import TIMING, Launcher
from tests.support.collector_processes.processes import facts
from tests.support.collector_processes.wire import Publisher, Watcher, send_quickly
from tests.support.edge_processes import wait_until
from tests.support.harness import need
from tests.support.network import Peer, Proxy, Published, Wire

DEVICES = 40
BACKLOG = 12_000
LONG = 300  # hourly rounds
COPIES = 9  # of each report, in the two hours until its deadline


class Roomy(Mosquitto):
    """Keeps more than a thousand messages for a collector that is away."""

    extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 2000\n"


@pytest.fixture(params=["nats", "mosquitto"])
def patient(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    need(request.param if request.param == "mosquitto" else "nats-server")
    kind = Roomy if request.param == "mosquitto" else Nats
    with kind(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.shared(tmp_path / "data", DEVICES)
    made.set_clock(made.manifest.rounds.opens(0) + 1)
    return made


def pass_deadline(collection: Collection) -> None:
    collection.set_clock(collection.manifest.rounds.deadline(0) + 1)


def wait_until_sealed(collection: Collection) -> None:
    wait_until(lambda: collection.look().sealed, timeout=90)


def test_a_network_that_stands_still_over_the_deadline(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """For three times as long as silence was waited for before; all reports were in time."""
    with Proxy(broker.port) as proxy:
        run = launcher.start(collection.options(proxy, clock=str(collection.clock)))
        wait_until_open(collection, broker.port)
        proxy.hold()
        with Publisher(broker.port) as publisher:
            publisher.send(collection.reports())
        pass_deadline(collection)
        still = threading.Event()
        still.wait(12 * TIMING.upkeep_every_seconds)
        assert not collection.look().sealed
        proxy.release()
        wait_until_sealed(collection)
        run.kill()
    assert_each_once(collection.look(), DEVICES)


def test_a_database_that_is_held_over_the_deadline(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """A lock, or a disk that takes seconds to sync: what is read waits, and what is behind it."""
    run = launcher.start(collection.options(broker, clock=str(collection.clock)))
    wait_until_open(collection, broker.port)
    half = DEVICES // 2
    nonsense = collection.topics.report("device-0"), b"nonsense"
    with (
        closing(sqlite3.connect(collection.data / DATABASE, isolation_level=None)) as other,
        Publisher(broker.port) as publisher,
    ):
        publisher.send(collection.reports()[:half])
        collection.wait_for(half)
        other.execute("BEGIN IMMEDIATE")
        publisher.send([nonsense])
        threading.Event().wait(3 * TIMING.step_seconds)  # it is being committed
        publisher.send(collection.reports()[half:])
        pass_deadline(collection)
        threading.Event().wait(12 * TIMING.upkeep_every_seconds)
        other.execute("COMMIT")
    wait_until_sealed(collection)
    run.kill()
    assert_each_once(collection.look(), DEVICES)


@pytest.mark.slow
def test_a_campaign_behind_the_queue_of_another(
    collection: Collection, patient: Broker, launcher: Launcher
) -> None:
    """The collector comes back after the deadline; the broker holds A's reports, then B's."""
    other = own_bits(DEVICES, slug="other")
    with closing(open_store(collection.data)) as store:
        store.open_campaign(other, collection.manifest.rounds.opens(0))
    second = replace(collection, manifest=other)
    first = launcher.start(collection.options(patient, clock=str(collection.clock)))
    wait_until_open(second, patient.port)
    assert first.terminate() == 0
    send_quickly(patient.port, [collection.report(i % DEVICES) for i in range(BACKLOG)])
    send_quickly(patient.port, second.reports())
    pass_deadline(collection)
    run = launcher.start(collection.options(patient, clock=str(collection.clock)))
    wait_until_sealed(second)
    run.kill()
    counted = second.look()
    assert counted.counts == [1] * DEVICES
    assert counted.outcomes[Outcome.DUPLICATE] == BACKLOG - DEVICES
    assert Outcome.LATE not in counted.outcomes


@pytest.mark.slow
def test_killed_with_reports_unacknowledged_over_the_deadline(
    collection: Collection, quick_broker: Broker, launcher: Launcher
) -> None:
    """On NATS these come again a while after everything newer, the marker included."""
    first = launcher.start(
        collection.options(
            quick_broker, clock=str(collection.clock), die_at="batch in memory", nth=1
        )
    )
    wait_until_open(collection, quick_broker.port)
    with Publisher(quick_broker.port) as publisher:
        publisher.send(collection.reports())
        first.wait_for_end()
        pass_deadline(collection)
        launcher.start(collection.options(quick_broker, clock=str(collection.clock)))
        wait_until_sealed(collection)
    assert_each_once(collection.look(), DEVICES)


def test_a_device_that_reports_and_withdraws_in_turn(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """A3: it does not delay the sealing; nor do markers that it makes up."""
    run = launcher.start(collection.options(broker, clock=str(collection.clock)))
    wait_until_open(collection, broker.port)
    request = Request(digest8(collection.manifest), RequestKind.FORGET, b"8 bytes.").encode()
    nuisance = [
        collection.report(0),
        (collection.topics.request("device-0"), request),
        (marker(collection.namespace), bytes(16)),
    ]
    done = threading.Event()

    def pester() -> None:
        with Publisher(broker.port) as device:
            while not done.is_set():
                device.send(nuisance)

    with Publisher(broker.port) as publisher:
        publisher.send(collection.reports()[1:])
    pestering = threading.Thread(target=pester)
    pestering.start()
    try:
        pass_deadline(collection)
        wait_until_sealed(collection)
    finally:
        done.set()
        pestering.join(60)
    assert run.said("without proof") == 0
    run.kill()
    assert collection.look().counts[1:] == [1] * (DEVICES - 1)


def test_forged_markers_seal_nothing(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """On a broker without access lists anybody can write there, also what was sent before."""
    with Proxy(broker.port) as proxy, Watcher(broker.port, marker(collection.namespace)) as watcher:
        launcher.start(collection.options(proxy, clock=str(collection.clock)))
        wait_until_open(collection, broker.port)
        proxy.hold()
        with Publisher(broker.port) as publisher:
            publisher.send(collection.reports())
            pass_deadline(collection)
            threading.Event().wait(5 * TIMING.upkeep_every_seconds)
            publisher.send([(marker(collection.namespace), bytes(16))])
            publisher.send([(topic, payload) for topic, payload in watcher.history])
        proxy.release()
        wait_until_sealed(collection)
    assert_each_once(collection.look(), DEVICES)


def test_a_broker_that_drops_markers_is_waited_for_as_long_as_the_manifest_says(
    tmp_path: Path, launcher: Launcher
) -> None:
    text = manifest_text()
    made = Manifest.from_toml(text.replace("grace =", "drain = 2\ngrace ="))
    with closing(open_store(tmp_path / "data")) as store:
        store.open_campaign(made, made.rounds.first)
    collection = Collection(tmp_path / "data", made, 0)
    pass_deadline(collection)
    taken: list[str] = []

    def script(wire: Wire) -> None:
        def take(published: Published) -> None:
            taken.append(published.topic)
            wire.puback(published.mid)

        if wire.expect_connect():
            wire.connack()
            wire.serve(take)

    with Peer(script) as peer:
        run = launcher.start(collection.options(peer, clock=str(collection.clock)))
        wait_until_sealed(collection)
        run.wait_for("sealed without proof")
        run.kill()
    assert marker() in taken


def why_it_waits(collection: Collection) -> str:
    (campaign,) = facts("status", "--data-dir", collection.data)["campaigns"]
    return str(campaign["waiting"]["why"])


def test_a_clock_that_is_set_ahead(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """F8: it is said, and nothing is sealed by it; set back, all goes on as before."""
    options = collection.options(broker, clock=str(collection.clock), jump_seconds=60.0)
    run = launcher.start(options)
    wait_until_open(collection, broker.port)
    pass_deadline(collection)
    run.wait_for("the clock was set ahead")
    wait_until(lambda: "set ahead" in examine(collection.data).finding)
    wait_until(lambda: "clock" in why_it_waits(collection))  # which its next beat says
    collection.set_clock(collection.manifest.rounds.opens(0) + 2)
    with Publisher(broker.port) as publisher:
        publisher.send(collection.reports())
    collection.wait_for(DEVICES)
    wait_until(lambda: examine(collection.data).finding == "connected and counting")
    assert_each_once(collection.look(), DEVICES)
    assert not collection.look().sealed
    run.kill()


def test_what_the_broker_kept_for_weeks_is_no_flood(
    tmp_path: Path, patient: Broker, launcher: Launcher
) -> None:
    """The devices had no receipt and sent each report again: all of their rounds are counted, and
    nobody is called a flooder (A8)."""
    away = Collection.shared(tmp_path / "data", 2)
    away.set_clock(away.manifest.rounds.opens(0) + 1)
    options = away.options(patient, clock=str(away.clock))
    run = launcher.start(options)
    wait_until_open(away, patient.port)
    run.terminate()
    reports = [sent for number in range(LONG) for sent in away.reports(number) * COPIES]
    send_quickly(patient.port, reports)
    away.set_clock(away.manifest.rounds.opens(LONG))
    back = launcher.start(options)
    wait_until(lambda: away.look().received == len(reports), timeout=90)
    counted = away.store.outcomes()
    assert counted[Outcome.ACCEPTED] == 2 * LONG
    assert Outcome.SUSPENDED not in counted
    assert back.said("is suspended") == 0
