"""kill -9 of the collector at every step: every report counted once, every result the same bytes.

Every device has a bit of its own, so every counter must be exactly 1.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from collector.data_dir import read_store
from collector.rounds.results import pooled_result, round_results
from protocol_spec import Outcome
from tests.support.brokers import Broker, Nats
from tests.support.collector_processes.campaign import (
    ATTRIBUTE,
    Counted,
    Desk,
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
    Nursery,
    Order,
)
from tests.support.collector_processes.wire import Message, Publisher, Watcher
from tests.support.edge_processes.processes import wait_until

DEVICES = 20

LOST = (IN_MEMORY, IN_TRANSACTION)
KEPT = (COMMITTED, ACKNOWLEDGED)
OPEN = (SEALING, IN_SEALING)
FINAL = (LOG_NOT_WIPED, SEALED)


@pytest.fixture
def broker(quick_broker: Broker) -> Broker:
    return quick_broker


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk.opened(tmp_path / "data", DEVICES, count=2)
    made.set_clock(made.manifest.rounds.opens(0) + 1)
    return made


def order(desk: Desk, broker: Broker) -> Order:
    return Order(str(desk.data), broker.url, clock=str(desk.clock))


def send_from_both_sides(broker: Broker, messages: list[Message]) -> None:
    """All of them twice, at the same time, over two connections (R21)."""

    def send(some: list[Message]) -> None:
        with Publisher(broker.port) as publisher:
            publisher.send(some)

    other = Thread(target=send, args=(messages[::-1],))
    other.start()
    send(messages)
    other.join(60)


def finish(desk: Desk, broker: Broker) -> Counted:
    """Let the round end, and wait for its results at the broker, which are those stored."""
    desk.set_clock(desk.manifest.rounds.deadline(0) + 1)
    wait_until(lambda: desk.look().sealed, timeout=60)
    wait_until(lambda: desk.look().unpublished == 0, timeout=60)
    counted = desk.look()
    assert_each_once(counted, DEVICES)
    assert counted.rows == 0
    assert published(desk, broker) == set(counted.results) == recomputed(desk)
    return counted


def published(desk: Desk, broker: Broker) -> set[bytes]:
    topics = [desk.topics.result(ATTRIBUTE), desk.topics.result(ATTRIBUTE, 0)]
    with Watcher(broker.port, *topics) as watcher:
        return {watcher.wait_for_topic(topic) for topic in topics}


def recomputed(desk: Desk) -> set[bytes]:
    """The results once more from the stored counts."""
    store = read_store(desk.data)
    campaign = store.campaign(None)
    rounds, total = store.sealed_total(campaign.id, 0)
    assert total
    participation, outcomes = store.participation(campaign.id, 0), store.outcomes(campaign.id)
    pooled = pooled_result(campaign, 0, rounds, total, participation, outcomes)
    of_round = round_results(
        campaign, 0, store.tallies(campaign.id, 0), store.outcomes(campaign.id, 0)
    )
    store.close()
    return {pooled.encode(), *(result.encode() for result in of_round)}


@pytest.mark.slow
@pytest.mark.parametrize("point", LOST + KEPT)
def test_killed_while_counting(point: str, desk: Desk, broker: Broker, nursery: Nursery) -> None:
    """In the second batch: one report is counted and acknowledged already."""
    life = nursery.start(replace(order(desk, broker), die_at=point, nth=2))
    wait_until_open(desk, broker.port)
    with Publisher(broker.port) as publisher:
        publisher.send(desk.reports()[:1])
    wait_until(lambda: desk.look().n == 1)
    send_from_both_sides(broker, desk.reports())
    assert life.end() == -signal.SIGKILL
    left = desk.look()
    assert set(left.counts) <= {0, 1}
    assert sum(left.outcomes.values()) == left.received
    assert (left.received > 1) == (point in KEPT)
    again = nursery.start(order(desk, broker))
    wait_until(lambda: desk.look().received >= 2 * DEVICES + 1, timeout=60)  # every copy, once
    counted = finish(desk, broker)
    assert counted.outcomes.keys() <= {Outcome.ACCEPTED, Outcome.DUPLICATE}
    again.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("point", LOST)
def test_killed_at_the_deadline(point: str, desk: Desk, broker: Broker, nursery: Nursery) -> None:
    """What was sent in time and died with the collector is not late when it comes again."""
    life = nursery.start(replace(order(desk, broker), die_at=point))
    wait_until_open(desk, broker.port)
    with Publisher(broker.port) as publisher:
        publisher.send(desk.reports())
    assert life.end() == -signal.SIGKILL
    desk.set_clock(desk.manifest.rounds.deadline(0) + 1)
    again = nursery.start(order(desk, broker))
    finish(desk, broker)
    again.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("point", OPEN + FINAL)
def test_killed_while_sealing(point: str, desk: Desk, broker: Broker, nursery: Nursery) -> None:
    life = nursery.start(replace(order(desk, broker), die_at=point))
    wait_until_open(desk, broker.port)
    send_from_both_sides(broker, desk.reports())
    wait_until(lambda: desk.look().n == DEVICES)
    desk.set_clock(desk.manifest.rounds.deadline(0) + 1)
    assert life.end() == -signal.SIGKILL
    left = desk.look()
    assert left.sealed == bool(left.results) == (left.unpublished == 2) == (point in FINAL)
    assert left.rows == (0 if point in FINAL else DEVICES)
    assert desk.betrayed() == (0 if point == SEALED else DEVICES)
    again = nursery.start(order(desk, broker))
    counted = finish(desk, broker)
    if point in FINAL:
        assert counted.results == left.results
    wait_until(lambda: desk.betrayed() == 0)
    late_changes_nothing(desk, broker, counted)
    again.terminate()


def late_changes_nothing(desk: Desk, broker: Broker, sealed: Counted) -> None:
    with Publisher(broker.port) as publisher:
        publisher.send(desk.reports())
    wait_until(lambda: desk.look().outcomes.get(Outcome.LATE) == DEVICES)
    after = desk.look()
    assert (after.counts, after.results) == (sealed.counts, sealed.results)


@pytest.mark.slow
def test_killed_at_every_step_in_turn(desk: Desk, quick_nats: Nats, nursery: Nursery) -> None:
    """One round, one collector after the other, until one is left alive."""
    reports = desk.reports()
    for step, point in enumerate(LOST + KEPT):
        life = nursery.start(replace(order(desk, quick_nats), die_at=point))
        if step == 0:
            wait_until_open(desk, quick_nats.port)
        send_from_both_sides(quick_nats, reports[: 5 * (step + 1)])
        assert life.end() == -signal.SIGKILL
    for point in OPEN:
        desk.set_clock(desk.manifest.rounds.opens(0) + 1)
        life = nursery.start(replace(order(desk, quick_nats), die_at=point))
        wait_until(lambda: desk.look().n == DEVICES)
        desk.set_clock(desk.manifest.rounds.deadline(0) + 1)
        assert life.end() == -signal.SIGKILL
    again = nursery.start(order(desk, quick_nats))
    finish(desk, quick_nats)
    again.terminate()
