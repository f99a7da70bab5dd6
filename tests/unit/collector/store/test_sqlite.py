"""The SQLite engine: interruptions, full disks, other versions, its index, and long histories."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import StorageFailure
from collector.records import FORGOTTEN, NO_ROUND, POOLED, Campaign, Candidate, Refusal
from collector.results import facts
from collector.store import Store
from collector.store.common import TABLES
from collector.store.sqlite import (
    ABSENT,
    ATTRIBUTE_BITS,
    DeviceIndex,
    SqliteStore,
    attributes_of,
    place_of,
)
from collector.store.sqlite_database import LOG_BYTES
from protocol_spec import Outcome, Result, decode_result
from tests.support.collector import (
    COLOUR,
    FIRST,
    FUEL,
    candidate,
    counts_of,
    everywhere,
    seal,
    three_questions,
)
from tests.support.databases import Tap, withdraw
from tests.support.harness import rows

ACCEPTED, DUPLICATE = Outcome.ACCEPTED, Outcome.DUPLICATE


@pytest.fixture
def tap() -> Tap:
    return Tap()


@pytest.fixture
def store(tmp_path: Path, tap: Tap) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "collector.db", connect=tap)
    yield opened
    opened.close()


def test_only_the_rounds_asked_for_are_read(
    store: SqliteStore, tap: Tap, campaign: Campaign
) -> None:
    """A campaign of many rounds and values is larger than a small machine's memory."""
    for number in range(4):
        store.commit([candidate(campaign, 1, number)], [])
        seal(store, campaign, number)
    read: list[int | None] = []

    def reading(_cursor: sqlite3.Cursor, row: tuple[object, ...]) -> tuple[object, ...]:
        made = decode_result(row[-1]) if isinstance(row[-1], bytes) else None
        if isinstance(made, Result):
            read.append(made.round)
        return row

    tap.db.row_factory = reading
    store.results(campaign.id, FUEL, range(2, 4))
    store.results(campaign.id, FUEL, range(POOLED, POOLED + 1))
    assert read == [2, 3, None]
    read.clear()
    for wanted in ("latest", "1", "pooled"):
        facts.chosen_results(store, campaign, "fuel", wanted)
    facts.latest_results(store, campaign, FUEL, 2)
    assert read == [3, 1, None, 2, 3, None]
    assert [r.attribute for r in store.results(campaign.id, None, range(1))] == [
        a.name for a in campaign.manifest.attributes
    ]


def test_of_a_withdrawn_device_only_its_number_stays(
    store: SqliteStore, campaign: Campaign
) -> None:
    """A4: the rounds it reported in stand under a number that fits no device."""
    store.commit([candidate(campaign, 1), candidate(campaign, 1, 1)], [])
    seal(store, campaign, 0)
    withdraw(store, campaign, 1)
    tables = rows(store.path)
    assert tables["report"] == []
    (_, number, *known), forgotten = tables["device"]
    assert isinstance(number, int)
    assert number < 0
    assert known == [FUEL, 1, 0, 0, 0, b""]
    assert forgotten == (campaign.id, 1, FORGOTTEN, 0, 0, 0, 0, b"")
    store.drop_devices(campaign.id)
    assert rows(store.path)["device"] == []


def test_withdrawn_bytes_are_gone_from_the_files(
    store: SqliteStore, campaign: Campaign, tmp_path: Path
) -> None:
    tag, device = 0x5A5A_A5A5, 0x1234_5678_9ABC_DEF0
    store.commit([candidate(campaign, d) for d in range(1, 50)], [])
    store.commit([candidate(campaign, device)._replace(tag=tag)], [])
    assert tag.to_bytes(4) in everywhere(tmp_path)
    withdraw(store, campaign, device)
    assert tag.to_bytes(4) not in everywhere(tmp_path)
    assert everywhere(tmp_path).count(device.to_bytes(8)) == 1, "as one that is not counted again"


def test_the_log_leaves_the_file_room_to_grow(small_disk: Path) -> None:
    """F4: on a disk of a megabyte, and after others had filled it."""
    ballast = small_disk / "ballast"
    with closing(SqliteStore(small_disk / "collector.db")) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        devices = iter(range(1, 10_000))
        for device in islice(devices, 1_000):
            store.commit([candidate(campaign, device)], [])
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        full = next(d for d in devices if not fits(store, candidate(campaign, d)))
        os.truncate(ballast, ballast.stat().st_size - 16_384)  # for the file, but not for the log
        for device in range(full, full + 20):
            report = candidate(campaign, device)
            assert fits(store, report) or fits(store, report), "once the log is written back"
        assert store.tallies(campaign.id, 0)[FUEL].n == full + 19, "each once"


def fits(store: Store, report: Candidate) -> bool:
    try:
        store.commit([report], [])
    except StorageFailure:
        return False
    return True


def test_the_log_stays_small(store: SqliteStore, campaign: Campaign) -> None:
    """F4: it is written back after a few megabytes."""
    log, batch = store.path.with_name("collector.db-wal"), 4_000
    for start in range(0, 10 * batch, batch):
        numbers = range(start, start + batch)
        store.commit([candidate(campaign, n * 7_919_777_777 % (1 << 62)) for n in numbers], [])
        assert log.stat().st_size < 3 * LOG_BYTES


class Interruptions:
    """Stops SQLite once, at its first instruction and then ever later; never after a commit."""

    def __init__(self, db: sqlite3.Connection, apart: int) -> None:
        self._db = db
        self._moments = count(1, apart)

    def __enter__(self) -> None:
        self._left = next(self._moments)
        self._committed = False
        self._db.set_trace_callback(self._note)
        self._db.set_progress_handler(self._stop, 1)

    def __exit__(self, *_: object) -> None:
        self._db.set_progress_handler(None, 1)
        self._db.set_trace_callback(None)

    def _note(self, statement: str) -> None:
        self._committed = self._committed or statement == "COMMIT"

    def _stop(self) -> bool:
        self._left -= not self._committed
        return self._left == 0 and not self._committed


def attempts_until_done(store: SqliteStore, tap: Tap, apart: int, act: Callable[[], object]) -> int:
    """Try with ever later interruptions; after each failed one nothing may have changed."""
    before, interrupted = rows(store.path), Interruptions(tap.db, apart)
    for attempts in count():
        try:
            with interrupted:
                act()
        except StorageFailure:
            assert rows(store.path) == before
        else:
            return attempts
    raise AssertionError


def test_a_batch_a_sealing_and_a_withdrawal_happen_as_a_whole_or_not_at_all(
    store: SqliteStore, tap: Tap, campaign: Campaign
) -> None:
    store.commit([candidate(campaign, d, body=d) for d in range(8)], [])
    batch = [candidate(campaign, 1, 1), candidate(campaign, 2, 1), candidate(campaign, 1, body=1)]
    refusal = Refusal(campaign.id, NO_ROUND, Outcome.MALFORMED)
    store.enlist("only")
    store.lead(1.0)
    store.fresh_receipts()
    assert attempts_until_done(store, tap, 13, lambda: store.commit(batch, [refusal])) > 20
    assert [len(each.tags) for each in store.fresh_receipts()] == [2, 1]  # I6: once committed
    assert store.outcomes() == {ACCEPTED: 10, DUPLICATE: 1, Outcome.MALFORMED: 1}
    assert (store.received(), store.tallies(campaign.id, 1)[FUEL].n) == (12, 2)
    assert attempts_until_done(store, tap, 61, lambda: seal(store, campaign, 0)) > 10
    assert store.last_sealed(campaign.id) == 0
    assert store.participation(campaign.id, FUEL) == ([1], [8])
    assert attempts_until_done(store, tap, 13, lambda: withdraw(store, campaign, 1)) > 10
    assert counts_of(store, campaign, 1)[FUEL] == [1, 0, 0, 0]
    assert len(rows(store.path)["report"]) == 1
    assert [len(each.tags) for each in store.fresh_receipts()] == [1]


def test_a_full_database_refuses_the_whole_batch_and_recovers(
    store: SqliteStore, tap: Tap, campaign: Campaign
) -> None:
    tap.allow_no_growth()
    batch = [candidate(campaign, d, 0, COLOUR, d) for d in range(2000)]
    before = rows(store.path)
    with pytest.raises(StorageFailure, match="Nothing of it was acknowledged"):
        store.commit(batch, [])
    assert rows(store.path) == before
    tap.allow_growth()
    assert set(store.commit(batch, [])) == {ACCEPTED}
    assert store.tallies(campaign.id, 0)[COLOUR].n == store.received() == 2000


def test_a_read_only_store_cannot_write(store: SqliteStore, campaign: Campaign) -> None:
    with closing(SqliteStore(store.path, read_only=True)) as reader:
        assert reader.campaigns() == [campaign]
        with pytest.raises(StorageFailure, match="readonly"):
            reader.commit([candidate(campaign, 1)], [])
    assert store.received() == 0


def test_what_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "collector.db"
    path.mkdir()
    with pytest.raises(StorageFailure, match="directory"):
        SqliteStore(path)
    path.rmdir()
    before = b"certainly not a database, but somebody's letters" * 100
    path.write_bytes(before)
    with pytest.raises(StorageFailure, match="Nothing was changed"):
        SqliteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("PRAGMA user_version = 2", "a newer version of this program made it"),
        ("PRAGMA application_id = 0", "it was made by an earlier version of this program"),
    ],
)
def test_a_database_of_another_version_is_refused_and_kept(
    store: SqliteStore, tap: Tap, campaign: Campaign, statement: str, reason: str
) -> None:
    tap.db.execute(statement)
    tap.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = store.path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StorageFailure, match=reason):
            SqliteStore(store.path, read_only=read_only)
    assert store.path.read_bytes() == before


@pytest.mark.parametrize("name", ["plain", "a?mode=rw#b %20"])
def test_an_empty_file_becomes_a_database(tmp_path: Path, name: str) -> None:
    """Whatever its path is: to SQLite that could be an address with options."""
    (tmp_path / name).mkdir()
    path = tmp_path / name / "collector.db"
    path.touch(mode=0o600)
    with pytest.raises(StorageFailure, match="it is empty"):
        SqliteStore(path, read_only=True)
    SqliteStore(path).close()
    SqliteStore(path, read_only=True).close()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_making_the_tables_is_one_transaction(tmp_path: Path, tap: Tap) -> None:
    """Stopped at any step, there are none or all of them."""
    path, left = tmp_path / "collector.db", [0]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    tap.made = lambda db: db.set_progress_handler(stop, 1)
    for moment in count(1, 97):
        left[0] = moment
        try:
            SqliteStore(path, connect=tap).close()
        except StorageFailure:
            tap.db.close()
            assert rows(path).keys() in (set(), {*TABLES, "report"})
        else:
            break
    assert moment > 500


def test_the_database_is_its_owners_alone(store: SqliteStore, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    files = list(store.path.parent.glob("collector.db*"))
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


# --- the index of devices (I8) ------------------------------------------------------------------
devices = st.integers(0, 40) | st.integers(0, 2**63 - 1)


@given(st.lists(st.dictionaries(devices, st.integers(0, 127)) | devices, max_size=25))
def test_the_index_is_a_dictionary(acts: list[dict[int, int] | int]) -> None:
    """Batches of new devices with their attributes are added, and single devices removed."""
    index, model = DeviceIndex(), dict[int, tuple[int, int]]()
    places = 0
    for act in acts:
        if isinstance(act, int):
            index.remove(act)
            model.pop(act, None)
            continue
        new = {device: attribute for device, attribute in act.items() if device not in model}
        got = index.add(np.array([*new], np.int64), np.array([*new.values()], np.int64))
        assert got == range(places, places + len(new))
        model |= {d: (place, a) for (d, a), place in zip(new.items(), got)}
        places += len(new)
    asked = [*model, *range(45), 2**63 - 1]
    found = index.find(np.array(asked, np.int64))
    entries = [
        None if e == ABSENT else (place_of(e), a)
        for e, a in zip(found.tolist(), attributes_of(found).tolist())
    ]
    assert entries == [model.get(device) for device in asked]
    again = DeviceIndex((d, place << ATTRIBUTE_BITS | a) for d, (place, a) in model.items())
    assert again.find(np.array(asked, np.int64)).tolist() == found.tolist()


def test_a_batch_that_failed_left_nothing_in_memory(
    store: SqliteStore, tap: Tap, campaign: Campaign
) -> None:
    """A disk that is full at the very end: after the reports were inserted."""
    store.commit([candidate(campaign, 1)], [])
    tap.db.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON outcome_total "
        "BEGIN SELECT raise(FAIL, 'disk full'); END"
    )
    batch = [candidate(campaign, d) for d in range(1, 5)]
    with pytest.raises((StorageFailure, sqlite3.Error)):
        store.commit(batch, [])
    tap.db.execute("DROP TRIGGER full")
    assert list(store.commit(batch, [])) == [DUPLICATE] + [ACCEPTED] * 3
    assert store.tallies(campaign.id, 0)[0].n == 4


# --- a long history costs nothing (F6) ----------------------------------------------------------
DEVICES = 6


def one_round(store: Store, campaign: Campaign, number: int, devices: int = DEVICES) -> None:
    """Everything that the service and its page do in a round."""
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
    store: SqliteStore, tap: Tap, min_reports: int
) -> None:
    """The tenth and the fiftieth take as many steps."""
    costs = []
    campaign = store.open_campaign(three_questions(min_reports=min_reports), FIRST)
    for number in range(50):
        with steps_of(tap.db) as taken:
            one_round(store, campaign, number)
        costs.append(taken[0])
    assert costs[49] == costs[9] > 500


def test_publishing_again_reads_only_what_can_be_sent(
    store: SqliteStore, tap: Tap, campaign: Campaign
) -> None:
    """After a broker lost its data, each query reads what fits, not all that is left."""
    costs = []
    for number in range(40):
        one_round(store, campaign, number)
        store.publish_again()
        with steps_of(tap.db) as taken:
            waiting = store.unpublished(4)
        costs.append(taken[0])
        assert len(waiting) == 4
    assert costs[39] == costs[9]
