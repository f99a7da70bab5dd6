"""kill -9 of the collector at every step: every report counted once, every result the same bytes.

Every device has a bit of its own, so every counter must be exactly 1.
"""

from __future__ import annotations

import signal
from pathlib import Path
from threading import Thread

import pytest

from collector.rounds.results import pooled_result, round_results
from protocol_spec import Outcome
from testbed.brokers import Broker
from tests.support.collector_processes.campaign import (
    ATTRIBUTE,
    Collection,
    Counted,
    assert_each_once,
    wait_until_open,
)
from tests.support.collector_processes.driver import (
    ACKNOWLEDGED,
    COMMITTED,
    IN_MEMORY,
    IN_SEALING,
    IN_TRANSACTION,
    LOG_NOT_WIPED,
    SEALED,
    SEALING,
    Launcher,
    Options,
)
from tests.support.collector_processes.wire import Message, Publisher, Watcher
from tests.support.edge_processes import wait_until
from tests.support.harness import all_at_once

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
        with Publisher(broker.port) as publisher:
            publisher.send(some)

    other = Thread(target=send, args=(messages[::-1],))
    other.start()
    send(messages)
    other.join(60)


def finish(collection: Collection, broker: Broker) -> Counted:
    """Let the round end, and wait for its results at the broker, which are those stored."""
    collection.set_clock(collection.manifest.rounds.deadline(0) + 1)
    wait_until(lambda: collection.look().sealed, timeout=60)
    wait_until(lambda: collection.look().unpublished == 0, timeout=60)
    counted = collection.look()
    assert_each_once(counted, DEVICES)
    assert counted.rows == 0
    assert published(collection, broker) == set(counted.results) == recomputed(collection)
    return counted


def published(collection: Collection, broker: Broker) -> set[bytes]:
    topics = [collection.topics.result(ATTRIBUTE), collection.topics.result(ATTRIBUTE, 0)]
    with Watcher(broker.port, *topics) as watcher:
        return {watcher.wait_for_topic(topic) for topic in topics}


def recomputed(collection: Collection) -> set[bytes]:
    """The results once more from the stored counts."""
    store, campaign = collection.store, collection.campaign()
    released = store.released(campaign.id, 0)
    assert released
    participation, outcomes = store.participation(campaign.id, 0), store.outcomes(campaign.id)
    span = {"first": released.first, "last": released.last}
    pooled = pooled_result(
        campaign, 0, released.rounds, released.tally, participation, outcomes, **span
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
        with Publisher(broker.port) as publisher:
            publisher.send(collection.reports()[:1])
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
    """What was sent in time and died with the collector is not late when it comes again."""

    def die_and_return(point: str) -> None:
        collection = opened(tmp_path, point)
        first = launcher.start(order(collection, broker, die_at=point))
        wait_until_open(collection, broker.port)
        with Publisher(broker.port) as publisher:
            publisher.send(collection.reports())
        assert first.wait_for_end() == -signal.SIGKILL
        collection.set_clock(collection.manifest.rounds.deadline(0) + 1)
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
        collection.set_clock(collection.manifest.rounds.deadline(0) + 1)
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
        late_changes_nothing(collection, broker, counted)
        assert again.terminate() == 0

    all_at_once(die_and_return, OPEN + FINAL)


def late_changes_nothing(collection: Collection, broker: Broker, sealed: Counted) -> None:
    with Publisher(broker.port) as publisher:
        publisher.send(collection.reports())
    wait_until(lambda: collection.store.outcomes().get(Outcome.LATE) == DEVICES)
    after = collection.look()
    assert (after.counts, after.results) == (sealed.counts, sealed.results)


@pytest.mark.slow
def test_killed_at_every_step_in_turn(
    quick_nats: Broker, launcher: Launcher, tmp_path: Path
) -> None:
    """One round, one collector after the other, until one is left alive."""
    collection = opened(tmp_path)
    reports = collection.reports()
    for step, point in enumerate(LOST + KEPT):
        run = launcher.start(order(collection, quick_nats, die_at=point))
        if step == 0:
            wait_until_open(collection, quick_nats.port)
        send_from_both_sides(quick_nats, reports[: 5 * (step + 1)])
        assert run.wait_for_end() == -signal.SIGKILL
    for point in OPEN:
        collection.set_clock(collection.manifest.rounds.opens(0) + 1)
        run = launcher.start(order(collection, quick_nats, die_at=point))
        collection.wait_for(DEVICES)
        collection.set_clock(collection.manifest.rounds.deadline(0) + 1)
        assert run.wait_for_end() == -signal.SIGKILL
    again = launcher.start(order(collection, quick_nats))
    finish(collection, quick_nats)
    assert again.terminate() == 0
