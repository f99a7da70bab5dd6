"""A database from before small rounds were kept together: nothing published changes, and it goes
on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from collector.records import POOLED
from collector.store.sqlite import SqliteStore, schema
from collector.store.sqlite.utils import Migrations
from protocol_spec import RESULT_SERIES, Outcome, Result
from tests.support.collector_fakes import FIRST, FUEL, candidate, seal, three_questions

MANIFEST = three_questions(min_reports=4)
BIG, SMALL = [3, 1, 1, 0], [0, 0, 1, 1]  # counts of rounds with five reports and with two


def old_result(number: int | None, rounds: int, counts: list[int], devices: int) -> bytes:
    """As version 1 wrote them."""
    withheld = devices < MANIFEST.min_reports
    shown = () if withheld else tuple(counts)
    return Result(
        digest=MANIFEST.digest,
        attribute="fuel",
        round=number,
        rounds=rounds,
        protocol="L-GRR",
        n=sum(counts),
        devices=devices,
        min_reports=MANIFEST.min_reports,
        confidence=0.95,
        device_bound=0.0 if withheld else 0.5,
        counts=shown,
        outcomes={Outcome.ACCEPTED: sum(counts)},
        **dict.fromkeys(RESULT_SERIES, tuple(0.25 for _ in shown)),  # type: ignore[arg-type]
    ).encode()


def old_file(path: Path, rounds: list[list[int]], devices: dict[int, int]) -> list[bytes]:
    """Sealed rounds with these counts, and how many of them each device was in."""
    first = Migrations("allomfree-collector")
    first()(schema.first_tables)
    total = np.sum(rounds, axis=0).tolist()
    kept = [old_result(None, len(rounds), total, len(devices))]
    kept += [old_result(i, 1, counts, sum(counts)) for i, counts in enumerate(rounds)]
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        schema.upgrade(db, first)
        row = (1, MANIFEST.campaign, MANIFEST.to_bytes(), FIRST)
        db.execute("INSERT INTO campaign VALUES (?, ?, ?, ?, NULL)", row)
        for i, counts in enumerate(rounds):
            blob = np.array(counts, dtype="<i8").tobytes()
            db.execute("INSERT INTO round VALUES (1, ?, ?, 0)", (i, FIRST + i))
            db.execute("INSERT INTO tally VALUES (1, ?, 0, ?, ?)", (i, sum(counts), blob))
        for i, message in zip([POOLED, *range(len(rounds))], kept):
            db.execute("INSERT INTO result VALUES (1, 0, ?, ?, 1)", (i, message))
        db.executemany("INSERT INTO device VALUES (1, ?, 0, ?)", devices.items())
    return kept


def test_results_of_version_1_are_kept_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "collector.db"
    kept = old_file(path, [BIG, SMALL], {1: 2, 2: 2, 3: 1, 4: 1, 5: 1})
    with closing(SqliteStore(path)) as store:
        assert [result.encode() for result in store.results(1)] == kept
        assert [result.version for result in store.results(1)] == [1, 1, 1]
        assert store.unpublished() == []


def test_small_rounds_that_were_pooled_stay_pooled_and_are_kept_together(tmp_path: Path) -> None:
    path = tmp_path / "collector.db"
    old_file(path, [BIG, SMALL, SMALL], {1: 3, 2: 3, 3: 1, 4: 1, 5: 1})
    with closing(SqliteStore(path)) as store:
        assert [store.tallies(1, n)[FUEL].counts.tolist() for n in range(3)] == [BIG, [], []]
        assert [store.tallies(1, n)[FUEL].n for n in range(3)] == [5, 2, 2]
        assert store.unreleased(1, FUEL) is None
        campaign = store.campaign(None)
        store.commit([candidate(campaign, d, 3, body=0) for d in range(1, 6)], [])
        seal(store, campaign, 3)
        pooled = store.results(1, FUEL)[0]
        assert pooled.counts == (8, 1, 3, 2)
        assert (pooled.n, pooled.devices, pooled.rounds, pooled.version) == (14, 5, 4, 2)
        assert (pooled.first, pooled.last) == (0, 3)
        assert store.participation(1, FUEL) == ([2, 4], [3, 2])


def test_small_rounds_that_were_never_shown_wait_for_more(tmp_path: Path) -> None:
    path = tmp_path / "collector.db"
    old_file(path, [SMALL, SMALL], {1: 2, 2: 1, 3: 1})
    with closing(SqliteStore(path)) as store:
        waiting = store.unreleased(1, FUEL)
        assert waiting is not None
        assert (waiting.rounds, waiting.tally.n, waiting.tally.counts.tolist()) == (
            *(2, 4),
            [0, 0, 2, 2],
        )
        assert store.released(1, FUEL) is None
        assert store.participation(1, FUEL) == ([], [])
        assert store.participation(1, FUEL, released=False) == ([1, 2], [2, 1])


@pytest.mark.parametrize("times", [1, 2])
def test_an_upgrade_happens_once(tmp_path: Path, times: int) -> None:
    path = tmp_path / "collector.db"
    old_file(path, [BIG, SMALL], {1: 2, 2: 2, 3: 1, 4: 1, 5: 1})
    for _ in range(times):
        with closing(SqliteStore(path)) as store:
            released = store.released(1, FUEL)
    assert released is not None
    assert released.tally.counts.tolist() == [3, 1, 2, 1]
