"""The store's claims, engine by engine: counted once, first stays, nothing half-written."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest
from sqlite_utils import Database, Migrations

from collector.errors import StorageFailure, UnknownCampaign
from collector.records import NO_CAMPAIGN, NO_ROUND, POOLED, Campaign, Candidate, Refusal
from collector.show import selection as views
from collector.store import schema
from collector.store import sqlite as sqlite_engine
from collector.store.sqlite import SqliteStore, count_bodies
from protocol_spec import BodyFormat, Outcome, Result, decode_result
from tests.support.collector_fakes import (
    COLOUR,
    FIRST,
    FUEL,
    TOWN,
    Engine,
    candidate,
    counts_of,
    everywhere,
    random_counts,
    recount,
    seal,
    three_questions,
)

ACCEPTED, DUPLICATE, CONFLICT = Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.CONFLICT
LATE, CHANGED = Outcome.LATE, Outcome.ATTRIBUTE_CHANGED


def rows(store: SqliteStore) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, as another process sees them."""
    with closing(sqlite3.connect(store.path)) as db:
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {n: db.execute(f"SELECT * FROM {n}").fetchall() for n in names}  # noqa: S608


# --- once (I8), and the first stays (I9) --------------------------------------------------------


def test_a_repetition_inside_a_batch_is_counted_once(
    store: SqliteStore, campaign: Campaign
) -> None:
    same = candidate(campaign, 1)
    outcomes = store.commit([same, candidate(campaign, 2), same, same], [])
    assert list(outcomes) == [ACCEPTED, ACCEPTED, DUPLICATE, DUPLICATE]
    assert counts_of(store, campaign, 0) == {FUEL: [2, 0, 0, 0]}


def test_a_repetition_in_a_later_batch_is_counted_once(
    store: SqliteStore, campaign: Campaign
) -> None:
    for expected in (ACCEPTED, DUPLICATE, DUPLICATE):
        assert list(store.commit([candidate(campaign, 1)], [])) == [expected]
    assert counts_of(store, campaign, 0) == {FUEL: [1, 0, 0, 0]}


def test_a_repetition_after_a_restart_is_counted_once(
    store: SqliteStore, campaign: Campaign, engine: Engine
) -> None:
    store.commit([candidate(campaign, 1)], [])
    with closing(engine(store.path)) as again:
        assert list(again.commit([candidate(campaign, 1)], [])) == [DUPLICATE]
        assert counts_of(again, campaign, 0) == {FUEL: [1, 0, 0, 0]}


def test_a_repetition_behind_a_chunks_end_is_counted_once(
    store: SqliteStore, campaign: Campaign
) -> None:
    many = [candidate(campaign, device, body=device) for device in range(sqlite_engine.CHUNK + 5)]
    outcomes = store.commit(many + many, [])
    assert list(outcomes) == [ACCEPTED] * len(many) + [DUPLICATE] * len(many)
    assert store.tallies(campaign.id, 0)[FUEL].n == len(many)


def test_two_connections_at_once_count_every_report_once(
    store: SqliteStore, campaign: Campaign, engine: Engine
) -> None:
    """R21: the unique key decides, not who looked first."""
    batches = [
        [candidate(campaign, d, body=d) for d in range(b, b + 40)] for b in range(0, 400, 20)
    ]
    start, told = threading.Barrier(2), list[Outcome]()

    def work() -> None:
        with closing(engine(store.path)) as mine:
            start.wait()
            for batch in batches:
                told.extend(mine.commit(batch, []))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    devices = {c.device for batch in batches for c in batch}
    assert told.count(ACCEPTED) == len(devices)
    assert store.tallies(campaign.id, 0)[FUEL].n == len(devices)
    assert store.received() == sum(store.outcomes().values()) == len(told)


@pytest.mark.parametrize("together", [True, False])
def test_other_bits_for_a_counted_round_change_nothing(
    store: SqliteStore, campaign: Campaign, together: bool
) -> None:
    first, second = candidate(campaign, 1, body=2), candidate(campaign, 1, body=3)
    batches = [[first, second]] if together else [[first], [second]]
    outcomes = [o for batch in batches for o in store.commit(batch, [])]
    assert outcomes == [ACCEPTED, CONFLICT]
    assert counts_of(store, campaign, 0) == {FUEL: [0, 0, 1, 0]}
    assert list(store.commit([first], [])) == [DUPLICATE]


def test_another_attribute_in_the_same_round_is_a_conflict(
    store: SqliteStore, campaign: Campaign
) -> None:
    batch = [candidate(campaign, 1), candidate(campaign, 1, attribute=COLOUR)]
    assert list(store.commit(batch, [])) == [ACCEPTED, CONFLICT]
    assert set(counts_of(store, campaign, 0)) == {FUEL}


# --- one attribute for life (I11) ---------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
def test_an_attribute_cannot_change_across_open_rounds(
    store: SqliteStore, campaign: Campaign, together: bool
) -> None:
    first, second = candidate(campaign, 1, 3), candidate(campaign, 1, 2, attribute=COLOUR)
    batches = [[first, second]] if together else [[first], [second]]
    assert [o for b in batches for o in store.commit(b, [])] == [ACCEPTED, CHANGED]
    assert counts_of(store, campaign, 2) == {}


def test_an_attribute_cannot_change_after_a_sealing(
    store: SqliteStore, campaign: Campaign, engine: Engine
) -> None:
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    changed, kept = candidate(campaign, 1, 1, attribute=TOWN), candidate(campaign, 1, 1)
    assert list(store.commit([changed, kept], [])) == [CHANGED, ACCEPTED]
    with closing(engine(store.path)) as again:
        assert list(again.commit([candidate(campaign, 1, 2, attribute=TOWN)], [])) == [CHANGED]


def test_an_attribute_cannot_change_after_a_restart(
    store: SqliteStore, campaign: Campaign, engine: Engine
) -> None:
    """The rounds that hold reports are found again."""
    store.commit([candidate(campaign, 1, 4)], [])
    with closing(engine(store.path)) as again:
        assert list(again.commit([candidate(campaign, 1, 5, attribute=TOWN)], [])) == [CHANGED]


def test_campaigns_do_not_know_each_others_devices(store: SqliteStore, campaign: Campaign) -> None:
    other = store.open_campaign(three_questions(slug="other"), FIRST)
    batch = [candidate(campaign, 1), candidate(other, 1, attribute=TOWN)]
    assert list(store.commit(batch, [])) == [ACCEPTED, ACCEPTED]


# --- sealed is final (I10) ----------------------------------------------------------------------


def test_a_report_for_a_sealed_round_is_only_late(store: SqliteStore, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    before = rows(store)
    late = [candidate(campaign, 1), candidate(campaign, 1, body=3), candidate(campaign, 2)]
    assert list(store.commit(late, [])) == [LATE] * 3
    after = rows(store)
    for table in ("report", "tally", "result", "device", "round"):
        assert after[table] == before[table]
    assert store.outcomes(campaign.id)[LATE] == 3
    assert store.outcomes(campaign.id, 0) == {ACCEPTED: 1}


# --- every message has one outcome (I12) --------------------------------------------------------


def test_refusals_are_counted_where_they_stand(store: SqliteStore, campaign: Campaign) -> None:
    refusals = [
        Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.TOPIC_MISMATCH),
        Refusal(campaign.id, NO_ROUND, Outcome.MALFORMED),
        Refusal(campaign.id, NO_ROUND, Outcome.MALFORMED),
    ]
    store.commit([candidate(campaign, 1)], refusals)
    store.commit([], refusals[:1])
    assert store.outcomes(NO_CAMPAIGN) == {Outcome.TOPIC_MISMATCH: 2}
    assert store.outcomes(campaign.id) == {ACCEPTED: 1, Outcome.MALFORMED: 2}
    assert store.received() == sum(store.outcomes().values()) == 5


# --- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", [FUEL, TOWN, COLOUR])
def test_counts_equal_a_slow_recount(
    store: SqliteStore, campaign: Campaign, attribute: int
) -> None:
    form = campaign.manifest.body_formats[attribute]
    bodies, quick = random_counts(form, 500, seed=attribute)
    reports = [candidate(campaign, d, 0, attribute, body) for d, body in enumerate(bodies)]
    for start in range(0, len(reports), 97):
        store.commit(reports[start : start + 97], [])
    assert counts_of(store, campaign, 0)[attribute] == recount(bodies, form) == quick.tolist()
    assert store.tallies(campaign.id, 0)[attribute].n == 500


@pytest.mark.parametrize("unary", [True, False])
@pytest.mark.parametrize("k", [2, 7, 8, 9, 16, 255, 256, 257, 4096])
def test_bodies_of_every_width_are_counted(unary: bool, k: int) -> None:
    form = BodyFormat(unary, k)
    bodies, quick = random_counts(form, 60, seed=k)
    bodies.append(form.encode(k - 1))
    quick[k - 1] += 1
    assert count_bodies(bodies, form).tolist() == recount(bodies, form) == quick.tolist()


# --- forgetting ---------------------------------------------------------------------------------


def test_a_withdrawn_report_leaves_no_trace_in_the_counts(
    store: SqliteStore, campaign: Campaign
) -> None:
    others = [candidate(campaign, d, r, COLOUR, 100 * d + r) for d in (1, 2) for r in (0, 1)]
    store.commit(others, [])
    before = {n: counts_of(store, campaign, n) for n in (0, 1, 2)}
    store.commit([candidate(campaign, 9, r, COLOUR, 2047 - r) for r in (0, 1, 2)], [])
    assert store.withdraw(campaign, 9) == 3
    assert {n: counts_of(store, campaign, n) for n in (0, 1, 2)} == before
    assert [store.tallies(campaign.id, n)[COLOUR].n for n in (0, 1, 2)] == [2, 2, 0]
    assert store.withdraw(campaign, 9) == 0


def test_a_withdrawn_device_is_unknown_again(store: SqliteStore, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    store.withdraw(campaign, 1)
    assert list(store.commit([candidate(campaign, 1, 1, COLOUR)], [])) == [ACCEPTED]
    assert 1 not in [row[1] for row in rows(store)["device"]]


def test_sealed_sums_keep_their_senders_count_after_a_withdrawal(
    store: SqliteStore, campaign: Campaign
) -> None:
    """Pooling divides sealed counts by the reports that made them, also those of who left."""
    for number in range(2):
        store.commit([candidate(campaign, d, number, body=d) for d in range(10)], [])
        seal(store, campaign, number)
    for device in range(5):
        assert store.withdraw(campaign, device) == 0
    rounds, total = store.sealed_total(campaign.id, FUEL)
    reports, devices = store.participation(campaign.id, FUEL)
    assert total is not None
    assert (rounds, total.n, reports, devices) == (2, 20, [2], [10])
    store.commit([candidate(campaign, 9, 2, body=1)], [])
    seal(store, campaign, 2)
    pooled = store.results(campaign.id, FUEL)[0]
    assert (pooled.n, pooled.devices) == (21, 10)
    assert sum(pooled.raw) == pytest.approx(1.0)


def test_only_the_rounds_asked_for_are_read(
    store: SqliteStore, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A campaign of many rounds and values is larger than a small machine's memory."""
    for number in range(4):
        store.commit([candidate(campaign, 1, number)], [])
        seal(store, campaign, number)
    decoded: list[int | None] = []

    def decoding(message: bytes) -> Result:
        made = decode_result(message)
        assert isinstance(made, Result)
        decoded.append(made.round)
        return made

    monkeypatch.setattr(sqlite_engine, "decode_result", decoding)
    store.results(campaign.id, FUEL, range(2, 4))
    store.results(campaign.id, FUEL, range(POOLED, POOLED + 1))
    assert decoded == [2, 3, None]
    decoded.clear()
    for wanted in ("latest", "1", "pooled"):
        views.chosen_results(store, campaign, "fuel", wanted)
    views.latest_results(store, campaign, FUEL, 2)
    assert decoded == [3, 1, None, None, 2, 3]
    assert [r.attribute for r in store.results(campaign.id, None, range(1))] == [
        a.name for a in campaign.manifest.attributes
    ]


def test_withdrawn_bytes_are_gone_from_the_files(
    store: SqliteStore, campaign: Campaign, tmp_path: Path
) -> None:
    device = 0x5A5A_A5A5_1234_5678
    store.commit([candidate(campaign, d) for d in range(1, 50)], [])
    store.commit([candidate(campaign, device)], [])
    assert device.to_bytes(8) in everywhere(tmp_path)
    store.withdraw(campaign, device)
    assert device.to_bytes(8) not in everywhere(tmp_path)


# --- campaigns ----------------------------------------------------------------------------------


def test_opening_a_campaign_again_changes_nothing(store: SqliteStore, campaign: Campaign) -> None:
    again = store.open_campaign(campaign.manifest, FIRST + 99)
    assert (again, store.campaigns()) == (campaign, [campaign])
    assert (again.opened, again.closed) == (FIRST, None)


def test_a_campaign_is_found_by_its_beginning(store: SqliteStore, campaign: Campaign) -> None:
    assert store.campaign(None) == store.campaign("te") == store.campaign(campaign.name) == campaign
    other = store.open_campaign(three_questions(slug="tent"), FIRST)
    assert store.campaign("ten") == other
    for name in (None, "te", "nosuch"):
        with pytest.raises(UnknownCampaign, match="tent-"):
            store.campaign(name)


def test_closing_twice_keeps_the_first_time(store: SqliteStore, campaign: Campaign) -> None:
    store.close_campaign(campaign, FIRST + 5)
    store.close_campaign(campaign, FIRST + 9)
    assert store.campaign(None).closed == FIRST + 5


def test_a_change_from_elsewhere_is_noticed(
    store: SqliteStore, campaign: Campaign, engine: Engine
) -> None:
    seen = store.changed_elsewhere()
    store.commit([candidate(campaign, 1)], [])
    assert store.changed_elsewhere() == seen
    with closing(engine(store.path)) as other:
        other.close_campaign(campaign, FIRST + 5)
        other.revoke("stolen-1", FIRST)
    assert store.changed_elsewhere() != seen
    assert store.campaign(None).closed == FIRST + 5
    assert store.revoked() == {"stolen-1"}
    store.reinstate("stolen-1")
    assert store.revoked() == frozenset()


# --- when the disk refuses ----------------------------------------------------------------------


def interruptions(apart: int) -> Iterator[Callable[[], int]]:
    """Stop SQLite once: at its first instruction, then ever later."""
    for moment in count(1, apart):
        instructions = count(1)
        yield lambda now=instructions, then=moment: int(next(now) == then)  # type: ignore[misc]


def attempts_until_done(store: SqliteStore, apart: int, act: Callable[[], object]) -> int:
    """Try with ever later interruptions; after each failed one nothing may have changed."""
    before = rows(store)
    for attempts, interruption in enumerate(interruptions(apart)):
        store._db.set_progress_handler(interruption, 1)
        try:
            act()
        except StorageFailure:
            store._db.set_progress_handler(None, 1)
            assert rows(store) == before
        else:
            store._db.set_progress_handler(None, 1)
            return attempts
    raise AssertionError


def test_a_batch_is_written_as_a_whole_or_not_at_all(
    store: SqliteStore, campaign: Campaign
) -> None:
    store.commit([candidate(campaign, 1)], [])
    batch = [candidate(campaign, 1), candidate(campaign, 2, 1, COLOUR, 5), candidate(campaign, 3)]
    refusal = Refusal(campaign.id, NO_ROUND, Outcome.MALFORMED)
    assert attempts_until_done(store, 13, lambda: store.commit(batch, [refusal])) > 20
    assert store.outcomes() == {ACCEPTED: 3, DUPLICATE: 1, Outcome.MALFORMED: 1}
    assert (store.received(), store.tallies(campaign.id, 0)[FUEL].n) == (5, 2)


def test_a_round_is_sealed_as_a_whole_or_not_at_all(
    store: SqliteStore, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "wipe_log", lambda: None)  # after the transaction, not part of it
    store.commit([candidate(campaign, d, body=d) for d in range(8)], [])
    attempts = attempts_until_done(store, 61, lambda: seal(store, campaign, 0))
    assert attempts > 10
    assert store.last_sealed(campaign.id) == 0
    assert store.participation(campaign.id, FUEL) == ([1], [8])
    assert rows(store)["report"] == []


def test_a_withdrawal_happens_as_a_whole_or_not_at_all(
    store: SqliteStore, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "wipe_log", lambda: None)
    store.commit([candidate(campaign, d, r, body=d) for d in range(3) for r in range(2)], [])
    assert attempts_until_done(store, 13, lambda: store.withdraw(campaign, 1)) > 10
    assert [counts_of(store, campaign, n)[FUEL] for n in (0, 1)] == [[1, 0, 1, 0]] * 2


def test_a_full_database_refuses_the_whole_batch_and_recovers(
    store: SqliteStore, campaign: Campaign
) -> None:
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    batch = [candidate(campaign, d, 0, COLOUR, d) for d in range(2000)]
    before = rows(store)
    with pytest.raises(StorageFailure, match="Nothing of it was acknowledged"):
        store.commit(batch, [])
    assert rows(store) == before
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert set(store.commit(batch, [])) == {ACCEPTED}
    assert store.tallies(campaign.id, 0)[COLOUR].n == store.received() == 2000


def test_a_full_disk_refuses_the_whole_batch_and_recovers(small_disk: Path, engine: Engine) -> None:
    with closing(engine(small_disk / "collector.db")) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        ballast = small_disk / "ballast"
        fill(ballast)
        batch = [candidate(campaign, d, 0, COLOUR, d) for d in range(3000)]
        with pytest.raises(StorageFailure, match="full"):
            store.commit(batch, [])
        assert (store.received(), store.open_rounds(campaign.id)) == (0, [])
        ballast.unlink()
        assert set(store.commit(batch, [])) == {ACCEPTED}
        assert store.received() == sum(store.outcomes().values()) == 3000


def fill(ballast: Path) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_read_only_store_cannot_write(store: SqliteStore, campaign: Campaign) -> None:
    with closing(SqliteStore(store.path, read_only=True)) as reader:
        assert reader.campaigns() == [campaign]
        with pytest.raises(StorageFailure, match="readonly"):
            reader.commit([candidate(campaign, 1)], [])
    assert store.received() == 0


@pytest.mark.parametrize("name", ["plain", "a?mode=rw#b %20"])
def test_a_path_is_only_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    path = tmp_path / name / "collector.db"
    SqliteStore(path).close()
    SqliteStore(path, read_only=True).close()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "collector.db"
    path.write_bytes(b"certainly not a database, but somebody's letters" * 100)
    before = path.read_bytes()
    with pytest.raises(StorageFailure, match="Nothing was changed"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_directory_in_the_databases_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "collector.db").mkdir()
    with pytest.raises(StorageFailure, match="directory"):
        SqliteStore(tmp_path / "collector.db")


def test_a_database_of_a_newer_version_is_refused(store: SqliteStore) -> None:
    store._db.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) "
        "VALUES ('allomfree-collector', 'of_next_year', '2099-01-01')"
    )
    before = rows(store)
    with pytest.raises(StorageFailure, match="newer version"):
        SqliteStore(store.path)
    assert rows(store) == before


def steps(*functions: Callable[[Database], None]) -> Migrations:
    """The shipped migrations and these."""
    longer = Migrations("allomfree-collector")
    for function in (schema.first_tables, *functions):
        longer()(function)
    return longer


def add_column(db: Database) -> None:
    db.execute("ALTER TABLE revoked ADD COLUMN reason TEXT")


def add_table_then_stop(db: Database) -> None:
    db.execute("CREATE TABLE half (done INTEGER)")
    raise sqlite3.OperationalError("the disk is full")


def test_an_upgrade_that_stops_is_undone_step_by_step(
    store: SqliteStore, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit([candidate(campaign, 1)], [])
    before = rows(store)
    longer = steps(add_column, add_table_then_stop)
    with monkeypatch.context() as newer:
        newer.setattr(schema, "migrations", longer)
        newer.setattr(sqlite_engine, "migrations", longer)
        with pytest.raises(StorageFailure, match="disk is full"):
            SqliteStore(store.path)
    after = rows(store)
    assert "half" not in after
    assert [m[2] for m in after.pop("_sqlite_migrations")] == ["first_tables", "add_column"]
    before.pop("_sqlite_migrations")
    assert after == before


def test_the_database_is_its_owners_alone(store: SqliteStore, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    files = list(store.path.parent.glob("collector.db*"))
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_shuffled_redelivery_counts_the_same(
    store: SqliteStore, campaign: Campaign, engine: Engine, tmp_path: Path
) -> None:
    """Duplicated, reordered and split deliveries end in the same counts."""
    reports = [candidate(campaign, d, d % 3, d % 3, 7 * d) for d in range(90)]
    store.commit(reports, [])
    shuffled: list[Candidate] = reports * 3
    random.Random(5).shuffle(shuffled)
    with closing(engine(tmp_path / "other.db")) as other:
        twin = other.open_campaign(campaign.manifest, FIRST)
        for start in range(0, len(shuffled), 7):
            other.commit(shuffled[start : start + 7], [])
        for number in range(3):
            assert counts_of(other, twin, number) == counts_of(store, campaign, number)
