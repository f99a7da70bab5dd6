"""What only PostgreSQL has: connections that break, batches in one go, one device key for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from collector.data_dir import device_key, open_shared
from collector.errors import CollectorError, Fenced, StorageFailure
from collector.settings import StoreAddress, resolve
from collector.store.postgres import PostgresStore
from protocol_spec import Outcome
from tests.support.collector import FIRST, candidate, counts_of, seal, three_questions
from tests.support.databases import admin, new_schema, wait_for_a_lock

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
    again = store.enlist("worker")
    assert again > number
    assert list(store.commit([candidate(campaign, 1)], [])) == [ACCEPTED]
    assert [w.number for w in store.workers()] == [again]


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


def test_another_worker_was_faster(address: StoreAddress, store: PostgresStore) -> None:
    """I8: nobody saw the other's row, and the key finds out in the middle of the batch."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, 9)], [])
    other = psycopg.connect(address.url)
    other.execute("INSERT INTO report_1_0 VALUES (2, 0, 2, '\\000')")
    outcomes: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcomes.extend(store.commit([candidate(campaign, d) for d in (1, 2)], []))
    )
    thread.start()
    wait_for_a_lock(address, 'INSERT INTO "report_1_0"')
    other.commit()
    other.close()
    thread.join()
    assert outcomes == [ACCEPTED, DUPLICATE]
    assert counts_of(store, campaign, 0) == {0: [2, 0, 0, 0]}
    assert list(store.commit([candidate(campaign, 3)], [])) == [ACCEPTED]


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
        with pytest.raises(
            CollectorError, match=r"is missing.*copy it from the data directory of another"
        ):
            device_key(found[1], shared)
        (workers[1] / "device.key").write_bytes(b"x" * 32)
        (workers[1] / "device.key").chmod(0o600)
        with pytest.raises(
            CollectorError,
            match=r"is not the device key.*copy it from the data directory of another",
        ):
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
