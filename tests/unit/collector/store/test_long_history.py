"""A long history costs nothing: running totals are a recount, and nobody reads earlier rounds."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.errors import StorageFailure
from collector.records import NO_ROUND, Campaign, Refusal
from collector.store import Store
from collector.store.memory import MemoryStore
from collector.store.sqlite import SqliteStore
from protocol_spec import Outcome
from tests.support.collector_fakes import COLOUR, FIRST, FUEL, candidate, seal, three_questions
from tests.support.places import QUICK_DISK
from tests.support.stores import Tap, rows, withdraw

DEVICES = 6
TOTALS = ("released_total", "outcome_total", "unpublished")


@pytest.fixture
def quick() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=QUICK_DISK) as directory:
        yield Path(directory)


def one_round(store: Store, campaign: Campaign, number: int, devices: int = DEVICES) -> None:
    """Everything that the service and its page do in a round, and once in a while."""
    reports = [candidate(campaign, d, number, FUEL, d) for d in range(devices)]
    refusal = Refusal(campaign.id, NO_ROUND, Outcome.MALFORMED)
    store.commit([*reports, reports[0]], [refusal])
    assert store.open_rounds(campaign.id) == [number]
    assert seal(store, campaign, number)
    for result in store.unpublished():
        store.mark_published(result)
    for cleared in store.clearable_receipts(campaign.id):
        store.mark_receipts_cleared(campaign.id, cleared)
    assert store.last_sealed(campaign.id) == number
    assert store.outcomes(campaign.id)[Outcome.ACCEPTED] == devices * (number + 1)
    assert store.outcomes()[Outcome.MALFORMED] == store.received() - (devices + 1) * (number + 1)


@contextmanager
def steps_of(db: sqlite3.Connection) -> Iterator[list[int]]:
    """How many steps SQLite's machine takes meanwhile; each row that is read takes several."""
    taken = [0]

    def step() -> int:
        taken[0] += 1
        return 0

    db.set_progress_handler(step, 1)
    yield taken
    db.set_progress_handler(None, 1)


@pytest.mark.parametrize("min_reports", [1, DEVICES + 1], ids=["released", "set aside"])
def test_what_a_round_costs_does_not_depend_on_earlier_rounds(
    quick: Path, min_reports: int
) -> None:
    """The tenth and the fiftieth take as many steps (F6)."""
    tap, costs = Tap(), []
    with closing(SqliteStore(quick / "collector.db", connect=tap)) as store:
        campaign = store.open_campaign(three_questions(min_reports=min_reports), FIRST)
        for number in range(50):
            with steps_of(tap.db) as taken:
                one_round(store, campaign, number)
            costs.append(taken[0])
    assert costs[49] == costs[9] > 500


def test_publishing_again_reads_only_what_can_be_sent(quick: Path) -> None:
    """After a broker that forgot, every look takes what fits, not all that is left (F6)."""
    tap = Tap()
    with closing(SqliteStore(quick / "collector.db", connect=tap)) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        costs = []
        for number in range(40):
            one_round(store, campaign, number)
            store.publish_again()
            with steps_of(tap.db) as taken:
                waiting = store.unpublished(4)
            costs.append(taken[0])
            assert len(waiting) == 4
    assert costs[39] == costs[9]
    assert {row[4] for row in rows(quick / "collector.db")["result"]} == {0, 1}


def downgrade(path: Path) -> None:
    """As the version before running totals left it."""
    with closing(sqlite3.connect(path)) as db, db:
        for table in TOTALS:
            db.execute(f"DROP TABLE {table}")
        db.execute("DROP INDEX round_with_receipts")
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'running_totals'")


def totals_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    found = rows(path)
    return {table: found[table] for table in TOTALS}


Histories = list[tuple[set[int], set[int]]]  # who reports in a round, and who leaves before its end
some = st.sets(st.integers(0, DEVICES - 1))
histories = st.lists(st.tuples(some, st.sets(st.integers(0, DEVICES - 1), max_size=1)), max_size=8)


def play(store: Store, history: Histories, min_reports: int) -> None:
    campaign = store.open_campaign(three_questions(min_reports=min_reports), FIRST)
    for number, (reporting, leaving) in enumerate(history):
        attributes = [(d, (FUEL, COLOUR)[d % 2]) for d in sorted(reporting)]
        store.commit([candidate(campaign, d, number, a, d) for d, a in attributes], [])
        for device in leaving:
            withdraw(store, campaign, device)
        seal(store, campaign, number)
        for result in store.unpublished(number):
            store.mark_published(result)


@settings(max_examples=20)
@given(history=histories, min_reports=st.integers(1, 4))
def test_an_old_file_is_added_up_to_the_same_totals(history: Histories, min_reports: int) -> None:
    """What the upgrade sums over all rounds is what both engines had kept on the way (F6)."""
    with tempfile.TemporaryDirectory(dir=QUICK_DISK) as directory:
        path = Path(directory) / "collector.db"
        with closing(SqliteStore(path)) as store:
            play(store, history, min_reports)
        kept = totals_of(path)
        downgrade(path)
        with closing(SqliteStore(path, read_only=True)) as old:
            before = old.outcomes(1), old.outcomes()
        with (
            closing(SqliteStore(path)) as upgraded,
            closing(MemoryStore()) as other,
        ):
            assert totals_of(path) == kept
            play(other, history, min_reports)
            assert told(upgraded) == told(other)
            assert before == (other.outcomes(1), other.outcomes())


def told(store: Store) -> list[object]:
    sums = [store.released(1, attribute) for attribute in (FUEL, COLOUR)]
    seen = [
        (s.first, s.last, s.rounds, s.tally.n, s.tally.counts.tolist()) if s else None for s in sums
    ]
    return [seen, store.unpublished(), store.outcomes(1), store.open_rounds(1)]


def test_an_upgrade_that_is_cut_off_begins_again(quick: Path) -> None:
    path, tap = quick / "collector.db", Tap()
    with closing(SqliteStore(path)) as store:
        play(store, [({0, 1, 2}, set())] * 3, 1)
    kept = totals_of(path)
    downgrade(path)
    before = rows(path)
    for moment in count(1, 97):
        try:
            with stopped_at(moment, tap):
                SqliteStore(path, connect=tap).close()
        except StorageFailure:
            assert rows(path) == before
        else:
            break
    assert moment > 1
    assert totals_of(path) == kept


@contextmanager
def stopped_at(moment: int, tap: Tap) -> Iterator[None]:
    """SQLite stops at so many steps after a connection was made."""
    left = [moment]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    tap.made = lambda db: db.set_progress_handler(stop, 1)
    yield
    tap.made = lambda _: None
