"""Several workers on one store: who they are, who leads, what a fenced one can no longer do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest

from collector.errors import Fenced, NotLeading
from collector.records import Campaign
from collector.store import ReceiptBatch, ReceiptKind, Store
from collector.store.common import MOST_ANSWERS
from collector.store.postgres import PostgresStore
from collector.store.sqlite import SqliteStore
from protocol_spec import Outcome
from tests.support.collector import FIRST, candidate, counts_of, seal, three_questions
from tests.support.databases import new_schema, snapshot

ACCEPTED, DUPLICATE, LATE = Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.LATE
LONG = 3600.0
Open = Callable[[], Store]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens the same database as often as wanted."""
    address = new_schema()
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(PostgresStore(address)))


@pytest.fixture
def first(opened: Open) -> Store:
    return enlisted(opened(), "first")


@pytest.fixture
def second(opened: Open, first: Store) -> Store:
    return enlisted(opened(), "second")


@pytest.fixture
def campaign(first: Store) -> Campaign:
    return first.open_campaign(three_questions(), FIRST)


def enlisted(store: Store, name: str) -> Store:
    store.enlist(name)
    return store


def fence_everybody_else(leader: Store) -> list[str]:
    assert leader.lead(LONG)
    return [worker.name for worker in leader.fence(silent_seconds=-1)]


def receipts_of(
    batches: list[ReceiptBatch],
) -> list[tuple[ReceiptKind, int, list[tuple[int, int]]]]:
    return [(b.kind, b.round, sorted(zip(b.pages.tolist(), b.tags.tolist()))) for b in batches]


# --- who works here -----------------------------------------------------------------------------
def test_workers_come_and_go(first: Store, second: Store) -> None:
    assert [w.name for w in first.workers()] == ["first", "second"]
    before = first.now()
    assert second.beat(drained=before) >= before
    second.beat(drained=1.0)
    ours, theirs = second.workers()
    assert ours.drained == 0.0
    assert theirs.drained == pytest.approx(before, abs=1e-3), "it never goes back"
    assert theirs.seen >= before >= theirs.started
    second.lead(LONG)
    second.retire()
    assert [w.name for w in first.workers()] == ["first"]
    assert first.lead(LONG)


def test_a_number_is_never_used_again(first: Store, second: Store) -> None:
    """W1: what a commit of unknown outcome did belongs to a worker that no longer exists."""
    numbers = [w.number for w in first.workers()]
    second.retire()
    numbers += [second.enlist("second"), second.enlist("second")]
    assert len(set(numbers)) == 4
    assert [w.number for w in first.workers()] == [numbers[0], numbers[3]]


# --- counting together --------------------------------------------------------------------------
def test_two_workers_count_as_one_would(first: Store, second: Store, campaign: Campaign) -> None:
    assert list(first.commit([candidate(campaign, d) for d in (1, 2)], [])) == [ACCEPTED] * 2
    batch = [candidate(campaign, 2), candidate(campaign, 3), candidate(campaign, 1, 1, attribute=2)]
    assert list(second.commit(batch, [])) == [DUPLICATE, ACCEPTED, Outcome.ATTRIBUTE_CHANGED]
    assert counts_of(first, campaign, 0) == counts_of(second, campaign, 0) == {0: [3, 0, 0, 0]}
    assert first.outcomes(campaign.id, 0) == {ACCEPTED: 3, DUPLICATE: 1}
    assert [w.received for w in first.workers()] == [2, 3]
    (done,) = second.withdraw([(campaign.id, 1)])
    assert len(done.reports) == 1
    assert counts_of(first, campaign, 0) == {0: [2, 0, 0, 0]}
    assert list(first.commit([candidate(campaign, 1, 1)], [])) == [Outcome.FORGOTTEN]
    first.lead(LONG)
    seal(first, campaign, 0)
    before = snapshot(first)[campaign.name]
    assert list(second.commit([candidate(campaign, 2)], [])) == [LATE]
    assert snapshot(second)[campaign.name] == before


# --- fenced (W1) --------------------------------------------------------------------------------
def test_a_fenced_worker_changes_nothing_more(
    first: Store, second: Store, campaign: Campaign
) -> None:
    second.commit([candidate(campaign, 1)], [])
    assert fence_everybody_else(first) == ["second"]
    before = snapshot(first)
    for attempt in (
        lambda: second.commit([candidate(campaign, 2)], []),
        lambda: second.withdraw([(campaign.id, 1)]),
        lambda: second.beat(first.now()),
        lambda: second.lead(LONG),
    ):
        with pytest.raises(Fenced, match="enlists again"):
            attempt()
    assert snapshot(first) == before
    assert [(w.name, w.fenced) for w in first.workers()] == [("first", False), ("second", True)]


def test_a_fenced_worker_goes_on_under_another_number(
    first: Store, second: Store, campaign: Campaign
) -> None:
    fence_everybody_else(first)
    second.enlist("second")
    assert list(second.commit([candidate(campaign, 1)], [])) == [ACCEPTED]
    assert [(w.name, w.fenced) for w in first.workers()] == [("first", False), ("second", False)]


def test_a_worker_that_beats_is_not_fenced(first: Store, second: Store) -> None:
    first.lead(LONG)
    second.beat(0.0)
    assert first.fence(silent_seconds=60) == []
    assert second.beat(0.0)


# --- leading (W2) -------------------------------------------------------------------------------
def test_one_leads_until_it_resigns_or_is_late(first: Store, second: Store) -> None:
    epoch = first.lead(LONG)
    assert epoch is not None
    assert first.lead(LONG) == epoch
    assert second.lead(LONG) is None
    assert [w.leads for w in second.workers()] == [True, False]
    first.resign()
    assert second.lead(-1) == epoch + 1
    assert [w.leads for w in second.workers()] == [False, False]
    assert first.lead(LONG) == epoch + 2


LEADERS_ALONE: dict[str, Callable[[Store, Campaign], object]] = {
    "sealing": lambda store, campaign: seal(store, campaign, 0),
    "mark_published": lambda store, _: store.mark_published(store.unpublished()[0]),
    "publish_again": lambda store, _: store.publish_again(),
    "mark_receipts_cleared": lambda store, campaign: store.mark_receipts_cleared(campaign.id, 0),
    "drop_devices": lambda store, campaign: store.drop_devices(campaign.id),
    "drop_unreleased": lambda store, campaign: store.drop_unreleased(campaign.id),
    "fence": lambda store, _: store.fence(-1),
    "fresh_receipts": lambda store, _: store.fresh_receipts(),
    "drop_answers": lambda store, _: store.drop_answers([1]),
}


@pytest.mark.parametrize("what", LEADERS_ALONE)
def test_an_old_leader_can_no_longer_write_what_a_leader_writes(
    first: Store, second: Store, opened: Open, campaign: Campaign, what: str
) -> None:
    """W2: it was paused, and another took the lease meanwhile."""
    first.commit([candidate(campaign, 1), candidate(campaign, 1, 1)], [])
    first.lead(-1)
    seal(first, campaign, 0)
    first.queue_answers([("topic", b"payload")])
    assert second.lead(LONG)
    before = snapshot(first)
    stray = opened()  # a command next to the workers
    for store in (first, stray):
        with pytest.raises(NotLeading):
            LEADERS_ALONE[what](store, campaign)
    assert snapshot(first) == before
    assert len(first.queued_answers(9)) == 1
    assert not any(w.fenced for w in first.workers())


def test_a_store_that_never_enlisted_may_do_all_while_nobody_leads(
    opened: Open, campaign: Campaign
) -> None:
    store: Store = opened()
    store.commit([candidate(campaign, 1)], [])
    assert seal(store, campaign, 0)


# --- receipts and answers -----------------------------------------------------------------------
def assert_leader_learns(leader: Store, worker: Store, campaign: Campaign) -> None:
    leader.lead(LONG)
    worker.commit([candidate(campaign, 9)], [])
    assert leader.fresh_receipts() == []  # pages are built from the reports now
    one, two = candidate(campaign, 1), candidate(campaign, 2, 3)
    leader.commit([one, two], [])
    worker.commit([one], [])
    worker.withdraw([(campaign.id, 1)])
    places = [(one.page, one.tag)], [(two.page, two.tag)]
    assert receipts_of(leader.fresh_receipts()) == [
        (ReceiptKind.COUNTED, 0, places[0]),
        (ReceiptKind.COUNTED, 3, places[1]),
        (ReceiptKind.REPEATED, 0, places[0]),
        (ReceiptKind.WITHDRAWN, 0, places[0]),
    ]
    assert leader.fresh_receipts() == []


def test_the_leader_learns_what_workers_counted(
    first: Store, second: Store, campaign: Campaign
) -> None:
    assert_leader_learns(first, second, campaign)


def test_a_new_leader_begins_with_what_comes_after_it(
    first: Store, second: Store, campaign: Campaign
) -> None:
    first.lead(-1)
    first.fresh_receipts()
    first.commit([candidate(campaign, 1)], [])
    second.lead(LONG)
    assert second.fresh_receipts() == []
    assert len(list(second.receipt_tags(campaign.id, 0))) == 1
    first.commit([candidate(campaign, 2)], [])
    assert len(second.fresh_receipts()) == 1


def test_answers_wait_for_the_leader_until_the_broker_took_them(
    first: Store, second: Store
) -> None:
    second.queue_answers([("a", b"1"), ("b", b"2"), ("c", b"3")])
    first.lead(LONG)
    waiting = first.queued_answers(2)
    assert [(a.topic, a.payload) for a in waiting] == [("a", b"1"), ("b", b"2")]
    first.drop_answers([a.number for a in waiting])
    assert [a.topic for a in first.queued_answers(9)] == ["c"]


def test_all_workers_agree_on_a_key_and_a_session(first: Store, second: Store) -> None:
    assert first.agree_on_key(b"one") == second.agree_on_key(b"two") == b"one"
    assert first.leader_session() == second.leader_session()
    assert len(first.leader_session()) >= 22


# --- the only worker of a file -------------------------------------------------------------------
@pytest.fixture
def alone(tmp_path: Path) -> Iterator[SqliteStore]:
    times = count(1000.0)
    with closing(SqliteStore(tmp_path / "collector.db", now=lambda: next(times))) as store:
        yield store


def test_nobody_contests_the_only_worker(alone: SqliteStore) -> None:
    for attempt in (lambda: alone.beat(0.0), lambda: alone.lead(LONG)):
        with pytest.raises(Fenced):
            attempt()
    assert alone.enlist("only") == 1
    assert alone.workers()[0].leads is False
    epoch = alone.lead(LONG)
    assert epoch == alone.lead(LONG) == 1
    assert alone.beat(5.0) < alone.beat(4.0) < alone.now()
    assert alone.fence(-1) == []
    (worker,) = alone.workers()
    assert (worker.name, worker.leads, worker.drained) == ("only", True, 5.0)
    alone.resign()
    assert alone.lead(LONG) == 2
    assert_leader_learns(alone, alone, alone.open_campaign(three_questions(), FIRST))
    assert alone.workers()[0].received == 4
    alone.retire()
    assert alone.workers() == []


def test_answers_of_the_only_worker_are_bounded(alone: SqliteStore) -> None:
    alone.queue_answers([(f"t{n}", b"") for n in range(MOST_ANSWERS + 1)])
    waiting = alone.queued_answers(2)
    assert [a.topic for a in waiting] == ["t1", "t2"]
    alone.drop_answers([a.number for a in waiting])
    assert len(alone.queued_answers(2 * MOST_ANSWERS)) == MOST_ANSWERS - 2
