"""What only PostgreSQL has: connections that break, rows that are held, one device key for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from collector.data_dir import device_key, open_shared
from collector.errors import CollectorError, Fenced, StorageFailure
from collector.settings import resolve
from collector.store.postgres import PostgresStore
from collector.store_address import StoreAddress
from protocol_spec import Outcome
from tests.support.collector_fakes import FIRST, candidate, counts_of, seal, three_questions
from tests.support.postgres import admin, new_schema

ACCEPTED, DUPLICATE = Outcome.ACCEPTED, Outcome.DUPLICATE


@pytest.fixture
def address() -> StoreAddress:
    return new_schema()


@pytest.fixture
def store(address: StoreAddress) -> Iterator[PostgresStore]:
    with closing(PostgresStore(address)) as opened:
        yield opened


# --- connections that break ---------------------------------------------------------------------


def end_session(number: int) -> None:
    told = admin(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "  # noqa: S608
        f"WHERE application_name = 'allomfree worker {number}'"
    )
    assert told == [(True,)]


def test_a_worker_that_lost_its_connection_enlists_again(store: PostgresStore) -> None:
    """W1: what it was about to write belongs to a number that is gone."""
    campaign = store.open_campaign(three_questions(), FIRST)
    number = store.enlist("worker")
    end_session(number)
    with pytest.raises(StorageFailure, match="Nothing of it was acknowledged"):
        store.commit([candidate(campaign, 1)], [])
    with pytest.raises(Fenced):
        store.commit([candidate(campaign, 1)], [])
    assert store.enlist("worker") > number
    assert list(store.commit([candidate(campaign, 1)], [])) == [ACCEPTED]
    assert [w.number for w in store.workers()] == [store.worker]


def test_a_reader_connects_again(address: StoreAddress, store: PostgresStore) -> None:
    with closing(PostgresStore(address, read_only=True)) as reader:
        admin(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name = 'allomfree' AND pid <> pg_backend_pid()"
        )
        with pytest.raises(StorageFailure):
            reader.received()
        assert reader.received() == 0


def test_a_batch_whose_end_is_unknown_is_counted_once(
    address: StoreAddress, store: PostgresStore
) -> None:
    """The commit arrived and its answer did not: the batch comes again under another number."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.enlist("worker")
    batch = [candidate(campaign, d) for d in range(5)]
    store.commit(batch, [])  # and then nothing was heard
    with closing(PostgresStore(address)) as again:
        again.enlist("worker")
        assert list(again.commit(batch, [])) == [DUPLICATE] * 5
    assert counts_of(store, campaign, 0) == {0: [5, 0, 0, 0]}


def test_devices_are_looked_up_by_key_in_tables_without_statistics(
    address: StoreAddress, store: PostgresStore
) -> None:
    """A planner that believes a fresh table to be empty would compare all with all."""
    campaign = store.open_campaign(three_questions(), FIRST)
    for number in range(3):
        store.commit([candidate(campaign, d, number) for d in range(500)], [])
    store.commit([candidate(campaign, d) for d in range(500)], [])  # not new: with care
    store.close()  # tells the server's statistics
    asked = (
        "SELECT idx_scan >= 3000 FROM pg_stat_user_tables "
        "WHERE relname = 'device' AND schemaname = current_schema()"
    )
    limit = time.monotonic() + 30
    while admin(asked, address) != [(True,)] and time.monotonic() < limit:
        time.sleep(0.05)
    assert admin(asked, address) == [(True,)]


# --- batches in which all is new ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("INSERT INTO report_1_0 VALUES (2, 0, 2, '\\000')", Outcome.DUPLICATE),
        ("INSERT INTO device (campaign, device, attribute) VALUES (1, 2, 1)", None),
    ],
)
def test_another_worker_was_faster(
    address: StoreAddress, store: PostgresStore, row: LiteralString, told: Outcome | None
) -> None:
    """I8, I11: nobody saw the other's row, and the key finds out in the middle of the batch."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, 9)], [])
    other = psycopg.connect(address.url)
    if told is not None:
        other.execute("INSERT INTO device (campaign, device, attribute) VALUES (1, 2, 0)")
    other.execute(row)
    outcomes: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcomes.extend(store.commit([candidate(campaign, d) for d in (1, 2)], []))
    )
    thread.start()
    wait_for_a_lock(address, "INSERT INTO device")
    other.commit()
    other.close()
    thread.join()
    assert outcomes == [ACCEPTED, told or Outcome.ATTRIBUTE_CHANGED]
    assert counts_of(store, campaign, 0) == {0: [2, 0, 0, 0]}
    assert list(store.commit([candidate(campaign, 3)], [])) == [ACCEPTED]


def wait_for_a_lock(address: StoreAddress, query: str) -> None:
    limit = time.monotonic() + 60
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "  # noqa: S608
        f"AND query LIKE '%{query}%'"
    )
    while admin(waiting, address) != [(1,)]:
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_devices_of_several_rounds_and_campaigns_in_one_batch(store: PostgresStore) -> None:
    """Each gets its one row, whatever rounds it reported in."""
    one = store.open_campaign(three_questions(), FIRST)
    two = store.open_campaign(three_questions(slug="other"), FIRST)
    batch = [
        *(candidate(one, d, number) for number in (1, 0) for d in range(5, 0, -1)),
        *(candidate(two, d, 0, 2) for d in range(3)),
    ]
    assert list(store.commit(batch, [])) == [ACCEPTED] * 13
    assert list(store.commit(batch, [])) == [DUPLICATE] * 13
    mixed = [candidate(one, d, 2) for d in (1, 6, 2, 7)]  # known and unknown ones
    assert list(store.commit(mixed, [])) == [ACCEPTED] * 4
    both = [candidate(one, 8, 0, 0), candidate(one, 8, 1, 1)]
    assert list(store.commit(both, [])) == [ACCEPTED, Outcome.ATTRIBUTE_CHANGED]
    seal(store, one, 0)
    assert store.participation(one.id, 0) == ([1], [6])


# --- rows that are held -------------------------------------------------------------------------


def stop_in_a_batch(address: StoreAddress, number: int) -> psycopg.Connection[tuple[object, ...]]:
    """A worker that was paused inside its transaction: the server sees an idle session."""
    db = psycopg.connect(address.url, application_name=f"allomfree worker {number}")
    db.execute("UPDATE worker SET received = received + 1 WHERE number = %s", (number,))
    return db


def test_a_worker_stopped_inside_a_batch_holds_up_nobody(
    address: StoreAddress, store: PostgresStore
) -> None:
    campaign = store.open_campaign(three_questions(), FIRST)
    with closing(PostgresStore(address)) as leader:
        leader.enlist("leader")
        number = store.enlist("stopped")
        held = stop_in_a_batch(address, number)
        leader.commit([candidate(campaign, 1)], [])
        assert leader.lead(3600)
        begun = time.monotonic()
        assert [w.number for w in leader.fence(silent_seconds=-1)] == [number]
        assert seal(leader, campaign, 0)
        assert time.monotonic() - begun < 10  # not as long as the server would wait
        held.close()
        with pytest.raises(Fenced):
            store.commit([candidate(campaign, 2, 1)], [])


def somebody_waits(address: StoreAddress) -> bool:
    told = admin(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND query LIKE '%FROM worker ORDER BY number FOR UPDATE%'",
        address,
    )
    return told == [(1,)]


@pytest.mark.parametrize("what", ["withdraw", "seal"])
def test_who_must_be_alone_waits_for_the_batches_at_hand(
    address: StoreAddress, store: PostgresStore, what: str
) -> None:
    """A batch is wholly before the end of a round, or before a device is forgotten, or after."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, 1)], [])
    batch = stop_in_a_batch(address, 0)

    def work() -> None:
        with closing(PostgresStore(address)) as other:
            if what == "seal":
                seal(other, campaign, 0)
            else:
                other.withdraw([(campaign.id, 2)])

    thread = threading.Thread(target=work)
    thread.start()
    limit = time.monotonic() + 60
    while not somebody_waits(address) and time.monotonic() < limit:
        time.sleep(0.01)
    assert thread.is_alive()
    batch.execute("INSERT INTO device (campaign, device, attribute) VALUES (1, 2, 0)")
    batch.execute("INSERT INTO report_1_0 VALUES (2, 0, 2, '\\000')")
    batch.commit()
    batch.close()
    thread.join()
    if what == "seal":
        assert store.participation(campaign.id, 0) == ([1], [2])
    else:
        assert [tag for _, tag in store.receipt_tags(campaign.id, 0)] == [1]


def test_workers_that_count_a_device_at_once_agree_on_its_attribute(
    address: StoreAddress, store: PostgresStore
) -> None:
    """I11: the key of the device decides, not who looked first."""
    campaign = store.open_campaign(three_questions(), FIRST)
    start, told = threading.Barrier(2), dict[int, list[Outcome]]()

    def work(number: int) -> None:
        with closing(PostgresStore(address)) as mine:
            mine.enlist(f"worker {number}")
            start.wait()
            told[number] = [
                outcome
                for first in range(0, 2000, 100)
                for outcome in mine.commit(
                    [candidate(campaign, d, number, 2 * number) for d in range(first, first + 100)],
                    [],
                )
            ]

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changed = Outcome.ATTRIBUTE_CHANGED
    assert {frozenset(both) for both in zip(told[0], told[1])} == {frozenset({ACCEPTED, changed})}


def test_sealing_does_not_hold_up_other_rounds(address: StoreAddress, store: PostgresStore) -> None:
    """Batches of other rounds are committed while a round is made final; its own are late."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, d) for d in range(3)], [])
    with closing(PostgresStore(address)) as other:
        with store.sealing(campaign, 0, FIRST) as sealing:
            assert sealing is not None
            sealing.end_reports({0}, set())
            batch = [
                candidate(campaign, 1, 1),
                candidate(campaign, 7, 1),
                candidate(campaign, 8, 0),
            ]
            assert list(other.commit(batch, [])) == [ACCEPTED, ACCEPTED, Outcome.LATE]
        assert other.last_sealed(campaign.id) == 0


def test_who_is_forgotten_while_a_round_is_sealed_stays_in_its_count(
    address: StoreAddress, store: PostgresStore
) -> None:
    """The sealed sum has its report, and the variance needs to know of how many devices."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, d) for d in range(3)], [])
    with closing(PostgresStore(address)) as other:
        with store.sealing(campaign, 0, FIRST) as sealing:
            assert sealing is not None
            (gone,) = other.withdraw([(campaign.id, 1)])
            assert gone.reports == ()
            sealing.end_reports({0}, set())
        assert other.participation(campaign.id, 0) == ([1], [3])
        assert list(other.commit([candidate(campaign, 1, 1)], [])) == [Outcome.FORGOTTEN]


# --- the key of the devices ---------------------------------------------------------------------


def test_a_worker_with_another_device_key_is_turned_away(
    tmp_path: Path, address: StoreAddress
) -> None:
    workers = [tmp_path / "one", tmp_path / "two"]
    found = [resolve({"store": address.url, "data_dir": place}, environ={}) for place in workers]
    for place in workers:
        place.mkdir(mode=0o700)
    with closing(open_shared(address)) as shared:
        key = device_key(found[0], shared)
        with pytest.raises(CollectorError, match=r"is missing.*Copy device.key"):
            device_key(found[1], shared)
        (workers[1] / "device.key").write_bytes(b"x" * 32)
        (workers[1] / "device.key").chmod(0o600)
        with pytest.raises(CollectorError, match=r"is not the device key.*Copy device.key"):
            device_key(found[1], shared)
        (workers[1] / "device.key").write_bytes((workers[0] / "device.key").read_bytes())
        assert device_key(found[1], shared).fingerprint == key.fingerprint


def test_the_database_holds_no_device_key(tmp_path: Path, address: StoreAddress) -> None:
    found = resolve({"store": address.url, "data_dir": tmp_path}, environ={})
    tmp_path.chmod(0o700)
    with closing(open_shared(address)) as shared:
        device_key(found, shared)
    ((stored,),) = admin("SELECT value FROM setting WHERE name = 'device key'", address)
    assert isinstance(stored, bytes)
    assert len(stored) == 16
    assert stored not in (tmp_path / "device.key").read_bytes()
