"""Sealing: all or nothing, once, in order, after the deadline; and then the reports are gone."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from collector.records import Campaign
from collector.rounds import sealing as rounds
from collector.rounds.results import round_results
from collector.store.sqlite import SqliteStore
from protocol_spec import Outcome
from tests.support.collector import (
    ATTRIBUTES,
    COLOUR,
    FIRST,
    HOUR,
    answer,
    asked,
    candidate,
    counts_of,
    everywhere,
    seal,
    three_questions,
)
from tests.support.databases import withdraw
from tests.support.harness import rows

BODY = bytes.fromhex("c0ffee5ea1ed") * 4
DEVICES = [0x7E57_0000_DE71_CE00 + i for i in range(20)]
WIDE = f"""[[attributes]]
name = "wide"
question = "Which of many?"
protocol = "L-OSUE"
values = [{", ".join(f'"c{i}"' for i in range(8 * len(BODY)))}]
"""


# --- when ---------------------------------------------------------------------------------------
def test_rounds_are_due_at_their_deadline_and_sealed_in_order_once(
    store: SqliteStore, campaign: Campaign
) -> None:
    first = campaign.manifest.rounds.deadline(0)
    assert first == FIRST + 2 * HOUR
    for now, expected in [
        (FIRST, []),
        (first - 0.001, []),
        (first, [0]),
        (first + 2 * HOUR, [0, 1, 2]),
    ]:
        assert list(rounds.due(store, campaign, now)) == expected
    for number in rounds.due(store, campaign, first + 2 * HOUR):
        assert rounds.seal(store, campaign, number, first + 2 * HOUR)
        assert store.last_sealed(campaign.id) == number
    assert list(rounds.due(store, campaign, first + 2 * HOUR)) == []
    assert list(rounds.due(store, campaign, first + 3 * HOUR)) == [3]
    short = store.open_campaign(three_questions(slug="short", count=2), FIRST)
    assert list(rounds.due(store, short, FIRST + 1e9)) == [0, 1], "the last round is the last"


@pytest.mark.parametrize(
    ("closed", "expected"),
    [(FIRST - 1, []), (FIRST, [0]), (FIRST + HOUR - 1, [0]), (FIRST + 2 * HOUR + 5, [0, 1, 2])],
)
def test_closing_seals_what_has_begun_at_once(
    store: SqliteStore, campaign: Campaign, closed: int, expected: list[int]
) -> None:
    ended = replace(campaign, closed=closed)
    assert list(rounds.due(store, ended, closed)) == expected
    assert list(rounds.due(store, ended, closed + 1e9)) == expected


# --- all or nothing -----------------------------------------------------------------------------
@pytest.fixture
def filled(store: SqliteStore, campaign: Campaign) -> Campaign:
    store.commit([candidate(campaign, d, n, d % 3, d) for d in range(30) for n in range(3)], [])
    return campaign


@pytest.mark.parametrize("enough", [3, 6])
def test_a_sealing_whose_results_cannot_be_computed_changes_nothing(
    store: SqliteStore, enough: int
) -> None:
    """With 3 reports already those of the round cannot, with 6 only the pooled ones."""
    campaign = store.open_campaign(three_questions(min_reports=enough), FIRST)
    store.commit([candidate(campaign, d, 0) for d in range(3)], [])
    store.commit([candidate(campaign, d, 1) for d in range(3, 6)], [])
    seal(store, campaign, 0)
    before = rows(store.path)
    others = three_questions(min_reports=enough, attributes=ATTRIBUTES.replace(', "pump"', ""))
    with pytest.raises(ValueError):
        seal(store, replace(campaign, manifest=others), 1)
    assert rows(store.path) == before
    assert store.last_sealed(campaign.id) == 0
    assert seal(store, campaign, 1)
    assert list(store.commit([candidate(campaign, 0, 1)], [])) == [Outcome.LATE]


def test_sealing_again_gives_nothing_and_changes_nothing(
    store: SqliteStore, filled: Campaign
) -> None:
    assert len(seal(store, filled, 0)) == 2 * 3
    before = rows(store.path)
    assert seal(store, filled, 0) == []
    assert rows(store.path) == before


def test_sealing_in_another_process_is_noticed(store: SqliteStore, filled: Campaign) -> None:
    """`allomfree-collector seal` beside the running service."""
    with closing(SqliteStore(store.path)) as other:
        seal(other, other.campaign(None), 0)
    late, good = candidate(filled, 50, 0), candidate(filled, 50, 1)
    assert list(store.commit([late, good], [])) == [Outcome.LATE, Outcome.ACCEPTED]
    assert seal(store, filled, 0) == []


# --- final --------------------------------------------------------------------------------------
def test_recomputation_gives_identical_bytes(store: SqliteStore, filled: Campaign) -> None:
    """I10, whatever comes afterwards."""
    made = seal(store, filled, 0)[:3]
    store.commit([candidate(filled, d, n, d % 3, 5) for d in range(40) for n in range(3)], [])
    withdraw(store, filled, 3)
    seal(store, filled, 1)
    again = round_results(filled, 0, store.tallies(filled.id, 0), store.outcomes(filled.id, 0))
    assert [result.encode() for result in again] == made
    assert [r.encode() for r in store.results(filled.id) if r.round == 0] == made


def test_an_empty_round_is_sealed_too(store: SqliteStore, campaign: Campaign) -> None:
    made = rounds.seal(store, campaign, 0, campaign.manifest.rounds.deadline(0))
    assert [(r.attribute, r.round, r.n, r.withheld) for r in made] == [
        (name, 0, 0, True) for name in ("fuel", "town", "colour")
    ]
    assert store.last_sealed(campaign.id) == 0


# --- nothing left (R24) -------------------------------------------------------------------------
@pytest.fixture
def marked(store: SqliteStore) -> Campaign:
    """A campaign whose reports can be told from all other bytes; two rounds of them."""
    campaign = store.open_campaign(three_questions(attributes=WIDE), FIRST)
    for number in range(2):
        store.commit([candidate(campaign, d, number, 0, BODY) for d in DEVICES], [])
    return campaign


def sealed_twice(store: SqliteStore, campaign: Campaign) -> None:
    for number in range(2):
        seal(store, campaign, number)


def test_no_report_is_left_after_sealing_and_no_device_after_retention(
    store: SqliteStore, marked: Campaign, tmp_path: Path
) -> None:
    """What is kept holds how many rounds, not which ones."""
    seal(store, marked, 0)
    left = everywhere(tmp_path)
    assert BODY in left, "the search can find what it looks for"
    assert DEVICES[0].to_bytes(8) in left
    seal(store, marked, 1)
    assert rows(store.path)["report"] == []
    left = everywhere(tmp_path)
    assert BODY not in left
    assert BODY[:6] not in left
    assert [left.count(d.to_bytes(8)) for d in DEVICES] == [1] * len(DEVICES)
    assert rows(store.path)["device"] == [(marked.id, d, 0, 2, 0, 0, 0, b"") for d in DEVICES]
    assert store.drop_devices(marked.id)
    left = everywhere(tmp_path)
    assert not any(d.to_bytes(8) in left for d in DEVICES)


@pytest.mark.parametrize("end", ["last round", "closed", "forgotten"])
def test_the_latest_report_of_a_nested_device_is_kept_once_until_the_campaign_ends(
    store: SqliteStore, tmp_path: Path, end: str
) -> None:
    """In place of the one before; the device's owner can have it deleted earlier."""
    wide = WIDE.replace("L-OSUE", "OUE")
    campaign = store.open_campaign(asked("nested", attributes=wide, count=3), FIRST)
    for number in range(3):
        body = bytes((number,)) + BODY[number:] + BODY[:number] + b"\0"
        store.commit([candidate(campaign, d, number, 0, body) for d in DEVICES], [])
        if number < 2:
            seal(store, campaign, number)
            left = everywhere(tmp_path)
            assert left.count(body) == len(DEVICES)
            assert number == 0 or left.count(b"\0" + BODY) == 0
    if end == "last round":
        seal(store, campaign, 2)
    elif end == "closed":
        store.close_campaign(campaign, FIRST)
        seal(store, campaign, 2)
        rounds.delete_expired(store, store.campaigns(), FIRST)
    else:
        store.withdraw([(campaign.id, device) for device in DEVICES])
        assert store.unreleased(campaign.id, 0).tally.n == 0  # type: ignore[union-attr]
    left = everywhere(tmp_path)
    assert BODY[2:8] not in left


@pytest.fixture
def reader(store: SqliteStore, marked: Campaign) -> Iterator[sqlite3.Connection]:
    """Somebody who reads slowly."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM report").fetchone()
        yield db


def test_a_reader_delays_the_wiping_but_does_not_prevent_it(
    store: SqliteStore, marked: Campaign, tmp_path: Path, reader: sqlite3.Connection
) -> None:
    sealed_twice(store, marked)
    assert BODY in everywhere(tmp_path)
    reader.execute("COMMIT")
    store.wipe_log()
    assert BODY not in everywhere(tmp_path)


def test_a_killed_process_leaves_nothing_that_the_next_one_does_not_wipe(
    store: SqliteStore, marked: Campaign, tmp_path: Path, reader: sqlite3.Connection
) -> None:
    """The files as they are between the commit and the wiping, for which a reader holds them."""
    sealed_twice(store, marked)
    left = tmp_path / "left"
    left.mkdir()
    for path in tmp_path.glob("collector.db*"):
        shutil.copy(path, left / path.name)
    assert BODY in everywhere(left)
    with closing(SqliteStore(left / "collector.db")) as next_one:
        next_one.wipe_log()
        assert BODY not in everywhere(left)
        assert next_one.last_sealed(marked.id) == 1


def test_open_rounds_are_not_touched_by_sealing(store: SqliteStore, filled: Campaign) -> None:
    before = [counts_of(store, filled, n) for n in range(3)]
    tags = sorted(store.receipt_tags(filled.id, 2))
    seal(store, filled, 0)
    assert [counts_of(store, filled, n) for n in range(3)] == before
    assert sorted(store.receipt_tags(filled.id, 2)) == tags
    assert list(store.receipt_tags(filled.id, 0)) == []
    assert answer(filled, COLOUR, 2) in [row[6] for row in rows(store.path)["report"]]
