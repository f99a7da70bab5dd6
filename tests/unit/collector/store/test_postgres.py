"""The PostgreSQL engine: lost connections, concurrent workers, servers that refuse, fail or die."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from collector.brokers.authority import Authority
from collector.brokers.config import Pair
from collector.data_dir import device_key, open_shared
from collector.errors import CollectorError, Fenced, StorageFailure
from collector.settings import StoreAddress, resolve
from collector.store.postgres import PostgresStore
from collector.store.postgres_connection import VERSION
from protocol_spec import Manifest, Outcome
from protocol_spec.programs.settings import SettingsError
from testbed.collector import PostgresProcess, as_server_user, give_to_server
from testbed.processes import free_port
from tests.support.collector import FIRST, asked, candidate, counts_of, seal, three_questions
from tests.support.databases import admin, as_user, new_schema, server, wait_for_a_lock
from tests.support.harness import QUICK_DISK, has_ended, need
from tests.support.processes import wait_until

ACCEPTED, DUPLICATE = Outcome.ACCEPTED, Outcome.DUPLICATE


@pytest.fixture
def address() -> StoreAddress:
    return new_schema()


@pytest.fixture
def store(address: StoreAddress) -> Iterator[PostgresStore]:
    with closing(PostgresStore(address)) as opened:
        yield opened


# --- lost connections -----------------------------------------------------------------------------
def end_sessions(condition: str) -> None:
    """End the sessions of the server that meet an SQL condition."""
    ended = admin(
        f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {condition}"  # noqa: S608
    )
    assert ended == [(True,)]


def of_worker(number: int) -> str:
    return f"application_name = 'allomfree worker {number}'"


def join_threads(*work: Callable[[], object]) -> None:
    """Run functions at the same time, to their end."""
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_worker_that_lost_its_connection_enlists_again(store: PostgresStore) -> None:
    """W1: what it was about to write belongs to a number that is gone."""
    campaign = store.open_campaign(three_questions(), FIRST)
    number = store.enlist("worker")
    end_sessions(of_worker(number))
    with pytest.raises(StorageFailure, match="Nothing of it was acknowledged"):
        store.commit([candidate(campaign, 1)], [])
    with pytest.raises(Fenced):
        store.commit([candidate(campaign, 1)], [])
    again = store.enlist("worker")
    assert again > number
    assert list(store.commit([candidate(campaign, 1)], [])) == [ACCEPTED]
    assert [w.number for w in store.workers()] == [again]


def test_a_reader_connects_again_and_changes_nothing(
    address: StoreAddress, store: PostgresStore
) -> None:
    with closing(PostgresStore(address, read_only=True)) as reader:
        store.close()
        end_sessions("application_name = 'allomfree' AND pid <> pg_backend_pid()")
        with pytest.raises(StorageFailure):
            reader.received()
        assert reader.received() == 0
        with pytest.raises(StorageFailure, match="only reads"):
            reader.revoke("kitchen-7", 0)


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
        "SELECT idx_scan >= 2500 FROM pg_stat_user_tables "
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


# --- the key of the devices ---------------------------------------------------------------------
def test_a_worker_with_another_device_key_is_refused(tmp_path: Path, address: StoreAddress) -> None:
    workers = [tmp_path / "one", tmp_path / "two"]
    found = [resolve({"store": address.url, "data_dir": place}, environ={}) for place in workers]
    for place in workers:
        place.mkdir(mode=0o700)
    copy = "copy it from the data directory of another"
    with closing(open_shared(address)) as shared:
        key = device_key(found[0], shared)
        with pytest.raises(CollectorError, match=rf"is missing.*{copy}"):
            device_key(found[1], shared)
        secret = workers[1] / "device.key"
        secret.write_bytes(b"x" * 32)
        secret.chmod(0o600)
        with pytest.raises(CollectorError, match=rf"is not the device key.*{copy}"):
            device_key(found[1], shared)
        secret.write_bytes((workers[0] / "device.key").read_bytes())
        assert device_key(found[1], shared).fingerprint == key.fingerprint
    ((stored,),) = admin("SELECT value FROM setting WHERE name = 'device key'", address)
    assert isinstance(stored, bytes)
    assert stored not in secret.read_bytes(), "the database does not hold the key"


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


@pytest.mark.parametrize("what", ["withdraw", "seal"])
def test_sealing_and_forgetting_wait_for_running_batches(
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
    wait_for_a_lock(address, "FROM worker ORDER BY number FOR UPDATE")
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
    found = admin(
        f"SELECT wait_event FROM pg_stat_activity WHERE {of_worker(number)} "  # noqa: S608
        "AND query LIKE '%d.lead <%'"
    )
    return found == [("ClientRead",)]


@pytest.mark.parametrize(
    ("manifest", "attribute", "outcome"),
    [
        (three_questions(), 2, Outcome.ATTRIBUTE_CHANGED),
        (asked("once", each=1), 0, Outcome.TOO_MANY),
    ],
    ids=["another attribute", "one answer too many"],
)
def test_what_two_workers_did_not_see_of_each_other_is_taken_out_when_the_round_is_sealed(
    address: StoreAddress,
    store: PostgresStore,
    manifest: Manifest,
    attribute: int,
    outcome: Outcome,
) -> None:
    """I11: they count a device for two rounds at one moment."""
    campaign = store.open_campaign(manifest, FIRST)
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
    reports = [candidate(campaign, d, 1, attribute) for d in (2, 4)]
    assert list(store.commit(reports, [])) == [ACCEPTED] * 2
    assert store.lead(3600)
    seal(store, campaign, 0)
    assert store.received() == 4
    seal(store, campaign, 1)
    assert store.tallies(campaign.id, 0)[0].n == 2
    assert store.tallies(campaign.id, 1)[attribute].n == 1
    assert store.outcomes(campaign.id, 1) == {ACCEPTED: 1, outcome: 1}
    assert (store.received(), store.outcomes()[ACCEPTED]) == (4, 3)
    assert list(store.commit([candidate(campaign, 2, 2, attribute)], [])) == [outcome]


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


def test_who_is_forgotten_after_a_round_ended_is_not_among_its_latest_reports(
    address: StoreAddress, store: PostgresStore
) -> None:
    """The report is deleted with the round: nobody looks for it in a round that is being sealed."""
    campaign = store.open_campaign(asked("nested"), FIRST)
    body = b"\0" + campaign.manifest.mechanisms[0].counted.encode(1)
    store.commit([candidate(campaign, d, body=body) for d in range(3)], [])
    admin("UPDATE round SET ended = true", address)
    (done,) = store.withdraw([(campaign.id, 1)])
    assert done.reports == ()
    seal(store, campaign, 0)
    released = store.released(campaign.id, 0)
    assert released is not None
    assert (released.tally.n, store.heard(campaign.id)) == (2, {0: 2})


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


# --- addresses ----------------------------------------------------------------------------------
def refusal(address: StoreAddress, *, read_only: bool = False) -> str:
    """The one-line message with which a store cannot be opened; never a password."""
    with pytest.raises(StorageFailure) as caught:
        PostgresStore(address, read_only=read_only)
    text = str(caught.value)
    assert "\n" not in text
    assert "open-sesame" not in text
    return text


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("open-sesame\n")
    file.chmod(0o600)
    return file


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


def test_a_password_comes_from_a_private_file(secret: Path) -> None:
    found = resolve({"store": "postgresql://db/x", "store_password_file": secret}, environ={})
    assert found.store is not None
    assert found.store.options()["password"] == "open-sesame"  # noqa: S105
    assert "sesame" not in f"{found.store} {found}"
    secret.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        found.store.options()
    secret.unlink()
    with pytest.raises(SettingsError, match="cannot be read"):
        found.store.options()


# --- servers that refuse ------------------------------------------------------------------------
REFUSALS: dict[str, tuple[Callable[[], StoreAddress], str]] = {
    "nobody listens": (
        lambda: StoreAddress(f"postgresql://me@127.0.0.1:{free_port()}/x"),
        "Nothing was changed; check that PostgreSQL runs there",
    ),
    "no such database": (
        lambda: server().address("nowhere"),
        "the server has no such database or user",
    ),
    "no such user": (lambda: as_user("nobody-here"), "the server has no such database or user"),
    "no right to a schema": (
        lambda: as_user("guest", new_schema()),
        "GRANT the user CREATE and USAGE",
    ),
    "no right to create": (
        lambda: as_user("guest"),
        "the database user may not do this (permission denied for schema public)",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_what_to_do(case: str) -> None:
    make, text = REFUSALS[case]
    assert text in refusal(make())


def test_a_server_with_no_connection_left() -> None:
    lonely = as_user("lonely", new_schema())
    with closing(psycopg.connect(lonely.url)):
        assert "no connection left" in refusal(lonely)


def test_a_wrong_password(secret: Path) -> None:
    text = refusal(StoreAddress(as_user("locked").url, secret))
    assert "the server refuses the user or its password" in text
    assert "--store-password-file" in text


@pytest.mark.parametrize("read_only", [True, False])
def test_tables_of_another_version_are_refused_and_kept(
    address: StoreAddress, read_only: bool
) -> None:
    admin("CREATE TABLE allomfree_store (version integer)", address)
    assert "made by an earlier version" in refusal(address, read_only=read_only)
    assert admin("SELECT to_regclass('allomfree')", address) == [(None,)]
    newer = new_schema()
    PostgresStore(newer).close()
    admin("UPDATE allomfree SET version = version + 1", newer)
    assert "update allomfree on this machine" in refusal(newer, read_only=read_only)


def test_a_reader_of_an_empty_database(address: StoreAddress) -> None:
    assert "open a campaign first" in refusal(address, read_only=True)
    assert admin("SELECT to_regclass('allomfree')", address) == [(None,)]


def test_stores_that_open_at_once_make_the_tables_once(address: StoreAddress) -> None:
    opened, start = list[int](), threading.Barrier(4)

    def begin() -> None:
        start.wait()
        PostgresStore(address).close()
        opened.append(1)

    join_threads(*[begin] * 4)
    assert len(opened) == 4
    assert admin("SELECT version FROM allomfree", address) == [(VERSION,)]


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


def test_no_password_goes_to_a_server_without_tls(secret: Path) -> None:
    with closing(Impostor(b"N")) as plain:  # "no TLS here", which anybody on the way could say
        url = f"postgresql://me@127.0.0.1:{plain.port}/x?sslmode=verify-full&sslrootcert=system"
        text = refusal(StoreAddress(url, secret))
    assert "there is no TLS connection that can be trusted" in text
    assert plain.heard == struct.pack(">ii", 8, 80877103), "only the question for TLS"


def test_a_server_that_is_too_old() -> None:
    """Only its greeting is made up: nobody packages such a server any more."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack(">i", 4 + len(body)) + body

    version = message(b"S", b"server_version\0" + b"13.22\0")
    with closing(Impostor(message(b"R", bytes(4)) + version + message(b"Z", b"I"))) as old:
        text = refusal(StoreAddress(f"postgresql://me@127.0.0.1:{old.port}/x?sslmode=disable"))
    assert "is PostgreSQL 13.22; version 14 or newer is needed. Nothing was changed" in text
    assert b"CREATE" not in old.heard


# --- faults of a real server: killed, out of space, a replica, promoted, another's certificate ----
@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A directory that the server's user, if another, may enter."""
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=QUICK_DISK) as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.fixture(scope="module")
def mortal(scratch: Path) -> Iterator[PostgresProcess]:
    """A server of its own, to be killed and copied."""
    need("postgres")
    lazy = ("wal_writer_delay=10s", "wal_writer_flush_after=100MB")
    place = scratch / "mortal"
    with PostgresProcess(place, quick=True, trusting=True, settings=lazy) as started:
        yield started


def database(of: PostgresProcess, name: str) -> StoreAddress:
    admin(f"CREATE DATABASE {name}", of.address())
    return of.address(name)


# --- killed -------------------------------------------------------------------------------------
def kill_everything(of: PostgresProcess) -> None:
    """kill -9 of the postmaster and of all that it started. It is stopped before, so that it starts
    nothing more, and the next server finds nobody in the memory that they share."""
    os.kill(of.pid, signal.SIGSTOP)
    children = Path(f"/proc/{of.pid}/task/{of.pid}/children").read_text().split()
    for pid in map(int, children):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(has_ended(int(pid)) for pid in children))
    of.kill()


def until_committed(store: PostgresStore, batch: list[object]) -> list[Outcome]:
    """As a worker does: again and again, under a new number."""
    while True:
        try:
            return list(store.commit(batch, []))  # type: ignore[arg-type]
        except Fenced:
            store.enlist("worker")
        except StorageFailure:
            continue


@pytest.mark.parametrize("at", [1, 2], ids=["asked", "outcomes to commit"])
def test_killed_in_the_middle_of_batches(mortal: PostgresProcess, at: int) -> None:
    """Whether the commit at hand was durable or not, every report is counted once. A batch waits
    for what the server knows, and then for the end: everything was sent, nothing was answered."""
    with closing(PostgresStore(database(mortal, f"killed_{at}"))) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        store.enlist("worker")
        kills = waits = 0

        def kill() -> None:
            nonlocal kills, waits
            waits += 1
            if waits % at == 0 and kills < 3:
                kills += 1
                kill_everything(mortal)
                mortal.start()

        outcomes: list[Outcome] = []
        for first in range(0, 500, 100):
            store.meanwhile = kill
            outcomes += until_committed(
                store, [candidate(campaign, d) for d in range(first, first + 100)]
            )
        assert kills == 3
        assert set(outcomes) <= {ACCEPTED, DUPLICATE}
        assert counts_of(store, campaign, 0) == {0: [500, 0, 0, 0]}
        assert store.outcomes()[ACCEPTED] == 500


def test_what_was_committed_outlives_a_kill(mortal: PostgresProcess) -> None:
    """I6, on a server whose own setting is not to wait for its disk."""
    assert "synchronous_commit=off" in mortal.command
    with closing(PostgresStore(database(mortal, "durable"))) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        for d in range(20):
            assert list(store.commit([candidate(campaign, d)], [])) == [ACCEPTED]
        kill_everything(mortal)
    mortal.start()
    with closing(PostgresStore(mortal.address("durable"))) as store:
        assert counts_of(store, campaign, 0) == {0: [20, 0, 0, 0]}


# --- no space -----------------------------------------------------------------------------------
@pytest.fixture
def small_disk(scratch: Path) -> Iterator[Path]:
    """A real disk of a megabyte, for tables; the server's log of changes is elsewhere."""
    disk = scratch / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    place = disk / "tables"
    place.mkdir(mode=0o700)
    give_to_server(place)
    yield place
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_the_servers_disk_is_full(small_disk: Path) -> None:
    admin(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
    address = new_schema()
    try:
        fill_a_disk(StoreAddress(f"{address.url}%20-cdefault_tablespace%3Dsmall"), small_disk)
    finally:
        admin("DROP SCHEMA IF EXISTS " + address.url.rpartition("%3D")[2] + " CASCADE")
        admin("DROP TABLESPACE small")


def fill_a_disk(address: StoreAddress, disk: Path) -> None:
    with closing(PostgresStore(address)) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        store.enlist("worker")
        batches = [
            [candidate(campaign, d) for d in range(first, first + 1000)]
            for first in range(0, 40_000, 1000)
        ]
        counted = 0
        with pytest.raises(StorageFailure) as caught:  # noqa: PT012 - one of them fails
            for batch in batches:
                assert list(store.commit(batch, [])) == [ACCEPTED] * 1000
                counted += 1
        assert "the server's disk is full" in str(caught.value)
        assert "Free some space there; no restart is needed" in str(caught.value)
        assert counts_of(store, campaign, 0) == {0: [1000 * counted, 0, 0, 0]}, "nothing of it"
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk.parent)], check=True)
        assert list(store.commit(batches[counted], [])) == [ACCEPTED] * 1000, "and it goes on"
        assert list(store.commit(batches[0], [])) == [DUPLICATE] * 1000


# --- replicas -----------------------------------------------------------------------------------
@pytest.fixture
def replica(mortal: PostgresProcess, scratch: Path) -> Iterator[PostgresProcess]:
    """A standby of the server, made with pg_basebackup."""
    admin("CREATE DATABASE replicated", mortal.address())
    with closing(PostgresStore(mortal.address("replicated"))) as store:
        store.open_campaign(three_questions(), FIRST)
    place = scratch / "replica"
    place.mkdir(exist_ok=True)
    made = place / "data"
    made.mkdir(mode=0o700)
    give_to_server(made)
    where = mortal.address().url
    copy = [
        str(mortal.programs / "pg_basebackup"),
        "-D",
        str(made),
        "-d",
        where,
        "-R",
        "-c",
        "fast",
    ]
    subprocess.run([*as_server_user(), *copy, "--no-sync"], check=True, cwd="/")
    with PostgresProcess(place, quick=True, trusting=True) as started:
        yield started
    shutil.rmtree(place)


def test_a_replica_is_refused_may_be_read_and_is_skipped(
    mortal: PostgresProcess, replica: PostgresProcess
) -> None:
    address = replica.address("replicated")
    text = refusal(address)
    assert "is a replica that only reads; nothing was changed. Name the primary" in text
    with closing(PostgresStore(address, read_only=True)) as reader:
        assert [c.id for c in reader.campaigns()] == [1]
    both = f"127.0.0.1:{replica.port},127.0.0.1:{mortal.port}"
    followed = f"postgresql://allomfree@{both}/replicated?target_session_attrs=read-write"
    with closing(PostgresStore(StoreAddress(followed))) as store:
        assert list(store.commit([candidate(store.campaign(None), 1)], [])) == [ACCEPTED]


# --- TLS ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def authority(scratch: Path) -> Path:
    """The shared server gets a certificate for 127.0.0.1; the authority that others must trust."""
    place = scratch / "tls"
    place.mkdir()
    Authority(place).issue_server(Pair(place / "s.crt", place / "s.key"), ["127.0.0.1"])
    for name in ("s.crt", "s.key"):
        copied = server().data / name
        shutil.copy(place / name, copied)
        copied.chmod(0o600)
        give_to_server(copied)
        admin(f"ALTER SYSTEM SET ssl_{'cert' if name == 's.crt' else 'key'}_file = '{name}'")
    admin("ALTER SYSTEM SET ssl = on")
    admin("SELECT pg_reload_conf()")
    return place / "ca.crt"


def over_tls(host: str, trusted: Path) -> StoreAddress:
    of = new_schema()
    schema = of.url.rpartition("options=")[2]
    where = f"postgresql://allomfree@{host}:{server().port}/postgres"
    return StoreAddress(f"{where}?sslmode=verify-full&sslrootcert={trusted}&options={schema}")


def test_the_servers_certificate_is_verified(authority: Path, tmp_path: Path) -> None:
    with closing(PostgresStore(over_tls("127.0.0.1", authority))) as store:
        assert store.received() == 0
    Authority(tmp_path).issue_server(Pair(tmp_path / "o.crt", tmp_path / "o.key"), ["127.0.0.1"])
    for address in (
        over_tls("127.0.0.1", tmp_path / "ca.crt"),  # of another authority
        over_tls("localhost", authority),  # of another name
    ):
        text = refusal(address)
        assert "there is no TLS connection that can be trusted" in text
        assert "sslrootcert=FILE" in text
