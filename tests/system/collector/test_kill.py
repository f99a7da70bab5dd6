"""kill -9 at every step, and a broker that forgets: every report counted once, the same bytes."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from collector.data_dir import DeviceKey
from collector.rounds.results import pooled_result, round_results
from protocol_spec import Manifest, Outcome, Report, decode_report
from testbed.brokers import Broker, Mosquitto, publish
from tests.support.agents import Fleet
from tests.support.collector_processes import (
    ACKNOWLEDGED,
    ATTRIBUTE,
    COMMITTED,
    IN_MEMORY,
    IN_SEALING,
    IN_TRANSACTION,
    LOG_NOT_WIPED,
    SEALED,
    SEALING,
    Collection,
    Counted,
    Launcher,
    Message,
    Options,
    Watcher,
    assert_each_once,
    assert_one_outcome_each,
    wait_until_open,
)
from tests.support.harness import all_at_once
from tests.support.processes import wait_until

DEVICES = 20
LOST = (IN_MEMORY, IN_TRANSACTION)
KEPT = (COMMITTED, ACKNOWLEDGED)
OPEN = (SEALING, IN_SEALING)
FINAL = (LOG_NOT_WIPED, SEALED)


@pytest.fixture
def broker(quick_broker: Broker) -> Broker:
    return quick_broker


def opened(place: Path, point: str = "any") -> Collection:
    """A campaign for one collector to die in, whose clock the test holds."""
    made = Collection.shared(place / point, DEVICES, count=2)
    made.set_clock(made.manifest.rounds.opens(0) + 1)
    return made


def order(collection: Collection, broker: Broker, **changed: object) -> Options:
    return collection.options(broker, clock=str(collection.clock), **changed)


def send_from_both_sides(broker: Broker, messages: list[Message]) -> None:
    """All of them twice, at the same time, over two connections (R21)."""

    def send(some: list[Message]) -> None:
        publish(broker.url, some)

    other = Thread(target=send, args=(messages[::-1],))
    other.start()
    send(messages)
    other.join(60)


def finish(collection: Collection, broker: Broker) -> Counted:
    """Let the round end, and wait for its results at the broker, which are those stored."""
    collection.pass_deadline()
    collection.wait_until_sealed()
    wait_until(lambda: collection.look().unpublished == 0, timeout=60)
    counted = collection.look()
    assert_each_once(counted, DEVICES)
    assert counted.rows == 0
    topics = [collection.topics.result(ATTRIBUTE), collection.topics.result(ATTRIBUTE, 0)]
    with Watcher(broker.port, *topics) as watcher:
        published = {watcher.wait_for_topic(topic) for topic in topics}
    assert published == set(counted.results) == recomputed(collection)
    return counted


def recomputed(collection: Collection) -> set[bytes]:
    """The results once more from the stored counts."""
    store, campaign = collection.store, collection.campaign()
    released = store.released(campaign.id, 0)
    assert released
    participation, outcomes = store.participation(campaign.id, 0), store.outcomes(campaign.id)
    pooled = pooled_result(
        campaign,
        0,
        released.rounds,
        released.tally,
        participation,
        outcomes,
        first=released.first,
        last=released.last,
    )
    of_round = round_results(
        campaign, 0, store.tallies(campaign.id, 0), store.outcomes(campaign.id, 0)
    )
    return {pooled.encode(), *(result.encode() for result in of_round)}


@pytest.mark.slow
def test_killed_while_counting(broker: Broker, launcher: Launcher, tmp_path: Path) -> None:
    """In the second batch: one report is counted and acknowledged already."""

    def die_and_return(point: str) -> None:
        collection = opened(tmp_path, point)
        first = launcher.start(order(collection, broker, die_at=point, nth=2))
        wait_until_open(collection, broker.port)
        publish(broker.url, collection.reports()[:1])
        collection.wait_for(1)
        send_from_both_sides(broker, collection.reports())
        assert first.wait_for_end() == -signal.SIGKILL
        left = collection.look()
        assert set(left.counts) <= {0, 1}
        assert sum(left.outcomes.values()) == left.received
        assert (left.received > 1) == (point in KEPT)
        again = launcher.start(order(collection, broker))
        every_copy = 2 * DEVICES + 1
        wait_until(lambda: collection.store.received() >= every_copy, timeout=60)
        counted = finish(collection, broker)
        assert counted.outcomes.keys() <= {Outcome.ACCEPTED, Outcome.DUPLICATE}
        assert again.terminate() == 0

    all_at_once(die_and_return, LOST + KEPT)


@pytest.mark.slow
def test_killed_at_the_deadline(broker: Broker, launcher: Launcher, tmp_path: Path) -> None:
    """What was sent in time and died with the collector is not late when it comes again: on NATS
    a while after everything newer, the marker included (F1)."""

    def die_and_return(point: str) -> None:
        collection = opened(tmp_path, point)
        first = launcher.start(order(collection, broker, die_at=point))
        wait_until_open(collection, broker.port)
        publish(broker.url, collection.reports())
        assert first.wait_for_end() == -signal.SIGKILL
        collection.pass_deadline()
        again = launcher.start(order(collection, broker))
        finish(collection, broker)
        assert again.terminate() == 0

    all_at_once(die_and_return, LOST)


@pytest.mark.slow
def test_killed_while_sealing(broker: Broker, launcher: Launcher, tmp_path: Path) -> None:
    def die_and_return(point: str) -> None:
        collection = opened(tmp_path, point)
        first = launcher.start(order(collection, broker, die_at=point))
        wait_until_open(collection, broker.port)
        send_from_both_sides(broker, collection.reports())
        collection.wait_for(DEVICES)
        collection.pass_deadline()
        assert first.wait_for_end() == -signal.SIGKILL
        left = collection.look()
        assert left.sealed == bool(left.results) == (left.unpublished == 2) == (point in FINAL)
        assert left.rows == (0 if point in FINAL else DEVICES)
        assert collection.betrayed() == (0 if point == SEALED else DEVICES)
        again = launcher.start(order(collection, broker))
        counted = finish(collection, broker)
        if point in FINAL:
            assert counted.results == left.results
        wait_until(lambda: collection.betrayed() == 0)
        publish(broker.url, collection.reports())  # which are late, and change nothing
        wait_until(lambda: collection.store.outcomes().get(Outcome.LATE) == DEVICES)
        after = collection.look()
        assert (after.counts, after.results) == (counted.counts, counted.results)
        assert again.terminate() == 0

    all_at_once(die_and_return, OPEN + FINAL)


# --- a broker that forgets ------------------------------------------------------------------------


Row = tuple[int, int, bytes]


def believed(collection: Collection, fleets: list[Fleet]) -> list[Row]:
    """(round, device, bits) of every report that its device drew and holds for counted.

    The oracle is the memory of the devices themselves: the collector must hold exactly the reports
    that they drew, each once and with their bytes.
    """
    key, found = DeviceKey(collection.data / "device.key", make=False), []
    for fleet in fleets:
        for name, rows in fleet.outbox().items():
            assert {row.fate for row in rows} == {"counted"}
            device = key.number(collection.manifest, name)
            for row in rows:
                report = decode_report(row.payload)
                assert isinstance(report, Report)
                found.append((row.round, device, report.body))
    return sorted(found)


def counted(collection: Collection) -> list[Row]:
    """The same from the collector's database."""
    with closing(sqlite3.connect(collection.data / "collector.db")) as db:
        return sorted(db.execute("SELECT round, device, body FROM report").fetchall())


def assert_nothing_lost_or_doubled(collection: Collection, fleets: list[Fleet]) -> None:
    wanted, held = believed(collection, fleets), counted(collection)
    assert not set(wanted) - set(held), "a report was lost"
    assert held == wanted
    campaign, form = collection.campaign().id, collection.manifest.body_formats[0]
    for number in {number for number, _, _ in wanted}:
        bodies = [body for n, _, body in wanted if n == number]
        bits = Counter(value for body in bodies for value in form.supported(body))
        tally = collection.store.tallies(campaign, number)[0]
        assert tally.n == len(bodies)
        assert tally.counts.tolist() == [bits[value] for value in range(form.k)]
    assert_one_outcome_each(collection.look())


@contextmanager
def running(fleets: list[Fleet]) -> Iterator[None]:
    with ExitStack() as stack:
        for fleet in fleets:
            fleet.start()
            stack.callback(fleet.kill)
        yield


def two_fleets(place: Path, asked: Manifest, broker: Broker, *, naive: bool = False) -> list[Fleet]:
    names = [[f"device-{side}-{i}" for i in range(4)] for side in "ab"]
    return [Fleet(place / n[0], asked, broker.url, n, naive=naive) for n in names]


def past_a_broker_that_forgets(
    broker: Broker, launcher: Launcher, place: Path, *, naive: bool
) -> None:
    """Reports are acknowledged while the collector is away; then the broker loses its memory."""
    collection = Collection.opened(place / "data", 8, count=1)
    fleets = two_fleets(place, collection.manifest, broker, naive=naive)
    options = collection.options(broker, receipts=not naive)
    with Watcher(broker.port, collection.topics.state) as watcher:
        first = launcher.start(options)
        watcher.wait_for_topic(collection.topics.state)
    first.kill()
    with Watcher(broker.port, collection.topics.all_reports) as reports, running(fleets):
        reports.wait_for(lambda: len(reports.latest) == 8)
        if naive:
            wait_until(lambda: all(fleet.has_delivered for fleet in fleets), timeout=60)
        broker.kill()
        broker.start()
        with Watcher(broker.port, collection.topics.state) as watcher:
            second = launcher.start(options)
            watcher.wait_for_topic(collection.topics.state)
            wait_until(lambda: all(fleet.has_delivered for fleet in fleets), timeout=60)
        second.terminate()
    assert_nothing_lost_or_doubled(collection, fleets)


@pytest.mark.slow
@pytest.mark.parametrize("receipts", [True, False])
def test_a_broker_that_forgets(
    own_mosquitto: Mosquitto, launcher: Launcher, tmp_path: Path, receipts: bool
) -> None:
    """The negative control: without receipts, agents that take the broker's acknowledgement for
    delivery lose reports, and the same check shows it."""
    if receipts:
        past_a_broker_that_forgets(own_mosquitto, launcher, tmp_path, naive=False)
    else:
        with pytest.raises(AssertionError, match="a report was lost"):
            past_a_broker_that_forgets(own_mosquitto, launcher, tmp_path, naive=True)
