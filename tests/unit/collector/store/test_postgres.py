"""The PostgreSQL engine: lost connections, concurrent workers, servers that refuse."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from collector.data_dir import device_key, open_shared, read_store
from collector.errors import CollectorError, Fenced, StorageFailure
from collector.settings import StoreAddress, resolve
from collector.store.postgres import PostgresStore
from collector.store.postgres_connection import VERSION
from protocol_spec import Outcome
from protocol_spec.programs.settings import SettingsError
from testbed.processes import free_port
from tests.support.collector import FIRST, candidate, counts_of, seal, three_questions
from tests.support.databases import admin, as_user, new_schema, server, wait_for_a_lock

ACCEPTED, DUPLICATE = Outcome.ACCEPTED, Outcome.DUPLICATE


@pytest.fixture
def address() -> StoreAddress:
    return new_schema()


@pytest.fixture
def store(address: StoreAddress) -> Iterator[PostgresStore]:
    with closing(PostgresStore(address)) as opened:
        yield opened


# --- lost connections -----------------------------------------------------------------------------


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


# --- the fast path --------------------------------------------------------------------------------


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


# --- several workers at the same moment ----------------------------------------------------------


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
    batch.execute("INSERT INTO report_1_0 VALUES (2, 0, 2, '\\000')")
    batch.commit()
    batch.close()
    thread.join()
    if what == "seal":
        assert store.participation(campaign.id, 0) == ([1], [2])
    else:
        assert [tag for _, tag in store.receipt_tags(campaign.id, 0)] == [1]


def all_asked(number: int) -> bool:
    """Whether a worker's session has answered the last question of a batch, and waits."""
    told = admin(
        "SELECT wait_event FROM pg_stat_activity "  # noqa: S608
        f"WHERE application_name = 'allomfree worker {number}' AND query LIKE '%known <>%'"
    )
    return told == [("ClientRead",)]


def test_an_attribute_that_nobody_saw_changing_is_taken_out_when_its_round_is_sealed(
    address: StoreAddress, store: PostgresStore
) -> None:
    """I11: two workers count a device for two rounds at one moment, under two attributes."""
    campaign = store.open_campaign(three_questions(), FIRST)
    number, waits = store.enlist("slow"), list[str]()

    def count_round_0() -> None:
        waits.append("for what the server knows, then for the end")
        if len(waits) > 1:
            return
        limit = time.monotonic() + 60
        while not all_asked(number):
            assert time.monotonic() < limit
            time.sleep(0.01)
        with closing(PostgresStore(address)) as fast:
            fast.commit([candidate(campaign, d, 0, 0) for d in (2, 3)], [])

    store.meanwhile = count_round_0
    assert list(store.commit([candidate(campaign, d, 1, 2) for d in (2, 4)], [])) == [ACCEPTED] * 2
    assert store.lead(3600)
    seal(store, campaign, 0)
    assert store.received() == 4
    seal(store, campaign, 1)
    assert store.tallies(campaign.id, 0)[0].n == 2
    assert store.tallies(campaign.id, 1)[2].n == 1
    assert store.outcomes(campaign.id, 1) == {
        ACCEPTED: 1,
        Outcome.ATTRIBUTE_CHANGED: 1,
    }
    assert (store.received(), store.outcomes()[ACCEPTED]) == (4, 3)
    assert list(store.commit([candidate(campaign, 2, 2, 2)], [])) == [Outcome.ATTRIBUTE_CHANGED]
    assert list(store.commit([candidate(campaign, 2, 2, 0)], [])) == [ACCEPTED]


def test_workers_that_count_a_device_at_once_agree_on_its_attribute(
    address: StoreAddress, store: PostgresStore
) -> None:
    """I11: at the latest when rounds are sealed, every device is counted under one attribute."""
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
    assert all(ACCEPTED in both for both in zip(told[0], told[1]))
    for number in range(2):
        seal(store, campaign, number)
    counted = [store.tallies(campaign.id, number) for number in range(2)]
    assert sum(tally.n for tallies in counted for tally in tallies.values()) == 2000
    assert store.outcomes() == {
        ACCEPTED: 2000,
        Outcome.ATTRIBUTE_CHANGED: 2000,
    }


def test_who_is_forgotten_when_its_first_round_is_sealed_stays_in_its_count(
    address: StoreAddress, store: PostgresStore
) -> None:
    """Its row is just being made, and nobody else can see it: the request waits for it."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, d) for d in range(3)], [])

    def forget() -> None:
        with closing(PostgresStore(address)) as other:
            other.withdraw([(campaign.id, 1)])

    thread = threading.Thread(target=forget)
    with store.sealing(campaign, 0, FIRST) as sealing:
        assert sealing is not None
        sealing.end_reports({0}, set())
        thread.start()
        wait_for_a_lock(address, "INSERT INTO device")
    thread.join()
    assert store.participation(campaign.id, 0) == ([1], [3])
    assert list(store.commit([candidate(campaign, 1, 1)], [])) == [Outcome.FORGOTTEN]


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
            assert list(other.commit(batch, [])) == [
                ACCEPTED,
                ACCEPTED,
                Outcome.LATE,
            ]
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


# --- addresses ----------------------------------------------------------------------------------


def refusal(address: StoreAddress, *, read_only: bool = False) -> str:
    """The one message with which a store cannot be opened; never a password."""
    with pytest.raises(StorageFailure) as caught:
        PostgresStore(address, read_only=read_only)
    told = str(caught.value)
    assert "\n" not in told
    assert "open-sesame" not in told
    return told


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://db/x", "use postgresql://USER@HOST/DATABASE"),
        ("postgresql://db", "name the database"),
        ("postgresql://[::1/x", "use postgresql://USER@HOST/DATABASE"),
        ("postgresql://me:open-sesame@db/x", "a password must not be in the address"),
        ("postgresql://db/x?password=open-sesame", "a password must not be in the address"),
    ],
)
def test_a_wrong_address_is_a_wrong_setting(url: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({"store": url}, environ={})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("postgresql://db.example/x", "verify-full"),
        ("postgresql://localhost,db.example/x", "verify-full"),
        ("postgresql:///x?host=db.example", "verify-full"),
        ("postgresql://me@127.0.0.1:5433/x", None),
        ("postgresql://[::1]:5433/x", None),
        ("postgresql:///x", None),
        ("postgresql:///x?host=/run/postgresql", None),
        ("postgresql://db.example/x?sslmode=disable", None),
    ],
)
def test_the_server_is_verified_off_this_machine(url: str, mode: str | None) -> None:
    """Plain text to another machine only by name."""
    assert StoreAddress(url).options().get("sslmode") == mode


def test_a_password_comes_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("open-sesame\n")
    file.chmod(0o600)
    found = resolve({"store": "postgresql://db/x", "store_password_file": file}, environ={})
    assert found.store is not None
    assert found.store.options()["password"] == "open-sesame"  # noqa: S105
    assert "sesame" not in f"{found.store} {found}"
    file.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        found.store.options()
    file.unlink()
    with pytest.raises(SettingsError, match="cannot be read"):
        found.store.options()


# --- servers that refuse ------------------------------------------------------------------------


def test_nobody_listens() -> None:
    told = refusal(StoreAddress(f"postgresql://me@127.0.0.1:{free_port()}/x"))
    assert "Nothing was changed; check that PostgreSQL runs there" in told


def test_no_such_database_or_user() -> None:
    for url in (server().address("nowhere").url, as_user("nobody-here").url):
        assert "the server has no such database or user" in refusal(StoreAddress(url))


def test_a_wrong_password(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("open-sesame")
    file.chmod(0o600)
    told = refusal(StoreAddress(as_user("locked").url, file))
    assert "the server refuses the user or its password" in told
    assert "--store-password-file" in told


def test_missing_rights() -> None:
    assert "GRANT the user CREATE and USAGE" in refusal(as_user("guest", new_schema()))
    told = refusal(as_user("guest"))
    assert "the database user may not do this (permission denied for schema public)" in told
    assert "GRANT it CREATE and USAGE on the schema" in told


def test_out_of_connections() -> None:
    address = as_user("lonely", new_schema())
    with closing(psycopg.connect(address.url)):
        told = refusal(address)
    assert "the server has no connection left" in told
    assert "max_connections" in told


def test_a_schema_from_the_future(address: StoreAddress) -> None:
    PostgresStore(address).close()
    admin("UPDATE allomfree_store SET version = version + 1", address)
    for read_only in (True, False):
        assert "update allomfree on this machine" in refusal(address, read_only=read_only)


def test_tables_of_an_earlier_version(address: StoreAddress) -> None:
    admin("CREATE TABLE allomfree_schema (version integer)", address)
    for read_only in (True, False):
        assert "made by an earlier version" in refusal(address, read_only=read_only)
    assert admin("SELECT to_regclass('allomfree_store')", address) == [(None,)]


def test_a_reader_of_an_empty_database(address: StoreAddress) -> None:
    assert "open a campaign first" in refusal(address, read_only=True)
    assert admin("SELECT to_regclass('allomfree_store')", address) == [(None,)]


def test_a_server_that_only_reads(address: StoreAddress, store: PostgresStore) -> None:
    campaign = store.open_campaign(three_questions(), FIRST)
    only = StoreAddress(f"{address.url}%20-cdefault_transaction_read_only%3Don")
    with closing(PostgresStore(only)) as other:
        with pytest.raises(StorageFailure, match="the server only reads"):
            other.commit([candidate(campaign, 1)], [])
        assert other.received() == 0
    assert list(store.commit([candidate(campaign, 1)], [])) == [ACCEPTED]


def test_a_reader_changes_nothing(address: StoreAddress, store: PostgresStore) -> None:
    campaign = store.open_campaign(three_questions(), FIRST)
    with closing(read_store(Path("unused"), address)) as reader:
        assert [c.name for c in reader.campaigns()] == [campaign.name]
        with pytest.raises(StorageFailure, match="only reads"):
            reader.revoke("kitchen-7", 0)


def test_two_that_begin_at_once_make_the_tables_once(address: StoreAddress) -> None:
    failed: list[BaseException] = []
    start = threading.Barrier(4)

    def begin() -> None:
        start.wait()
        try:
            PostgresStore(address).close()
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert admin("SELECT version FROM allomfree_store", address) == [(VERSION,)]


# --- servers that are no usable PostgreSQL ------------------------------------------------------


class Impostor:
    """Something that answers a connection with bytes, and keeps what it was sent."""

    def __init__(self, *answers: bytes) -> None:
        self.heard = b""
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        connection, _ = self._listener.accept()
        with connection, suppress(OSError):
            for answer in self._answers:
                self.heard += connection.recv(1 << 16)
                connection.sendall(answer)
            while piece := connection.recv(1 << 16):
                self.heard += piece

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)


def test_no_password_goes_to_a_server_without_tls(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("open-sesame")
    file.chmod(0o600)
    with closing(Impostor(b"N")) as plain:  # "no TLS here", which anybody on the way could say
        url = f"postgresql://me@127.0.0.1:{plain.port}/x?sslmode=verify-full&sslrootcert=system"
        with pytest.raises(StorageFailure) as caught:
            PostgresStore(StoreAddress(url, file))
    assert "there is no TLS connection that can be trusted" in str(caught.value)
    assert plain.heard == struct.pack(">ii", 8, 80877103), "only the question for TLS"


def said(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", 4 + len(body)) + body


def test_a_server_that_is_too_old() -> None:
    """Only its greeting is made up: nobody packages such a server any more."""
    greeting = said(b"R", bytes(4)) + said(b"S", b"server_version\0" + b"13.22\0")
    old = Impostor(greeting + said(b"Z", b"I"))
    with closing(old), pytest.raises(StorageFailure) as caught:
        PostgresStore(StoreAddress(f"postgresql://me@127.0.0.1:{old.port}/x?sslmode=disable"))
    assert "is PostgreSQL 13.22; version 14 or newer is needed. Nothing was changed" in str(
        caught.value
    )
    assert b"CREATE" not in old.heard
