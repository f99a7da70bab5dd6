"""A long history costs nothing: running totals are a recount, and nobody reads earlier rounds."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from collector.records import NO_ROUND, Campaign, Refusal
from collector.store import Store
from collector.store.sqlite import SqliteStore
from protocol_spec import Outcome
from tests.support.collector import FIRST, FUEL, candidate, seal, three_questions
from tests.support.databases import Tap
from tests.support.harness import QUICK_DISK

DEVICES = 6


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
