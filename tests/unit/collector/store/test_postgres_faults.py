"""Faults of a real server: killed, out of space, a replica, promoted, another's certificate."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from collector.brokers.authority import Authority
from collector.brokers.config import Pair
from collector.errors import Fenced, StorageFailure
from collector.settings import StoreAddress
from collector.store.postgres import PostgresStore
from protocol_spec import Outcome
from testbed.collector import PostgresProcess, as_server_user, give_to_server
from tests.support.collector import FIRST, candidate, counts_of, three_questions
from tests.support.databases import admin, as_user, new_schema, server
from tests.support.edge_processes import wait_until
from tests.support.harness import QUICK_DISK, has_ended, need

ACCEPTED, DUPLICATE = Outcome.ACCEPTED, Outcome.DUPLICATE


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


@pytest.mark.parametrize("at", [1, 2], ids=["asked", "told to commit"])
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

        told: list[Outcome] = []
        for first in range(0, 500, 100):
            store.meanwhile = kill
            told += until_committed(
                store, [candidate(campaign, d) for d in range(first, first + 100)]
            )
        assert kills == 3
        assert set(told) <= {ACCEPTED, DUPLICATE}
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
        _fill(StoreAddress(f"{address.url}%20-cdefault_tablespace%3Dsmall"), small_disk)
    finally:
        admin("DROP SCHEMA IF EXISTS " + address.url.rpartition("%3D")[2] + " CASCADE")
        admin("DROP TABLESPACE small")


def _fill(address: StoreAddress, disk: Path) -> None:
    with closing(PostgresStore(address)) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        store.enlist("worker")
        batches = [
            [candidate(campaign, d) for d in range(first, first + 1000)]
            for first in range(0, 40_000, 1000)
        ]
        counted: list[int] = []

        def count_all() -> None:
            for i, batch in enumerate(batches):
                assert list(store.commit(batch, [])) == [ACCEPTED] * 1000
                counted.append(i)

        with pytest.raises(StorageFailure) as caught:
            count_all()
        assert "the server's disk is full" in str(caught.value)
        assert "Free some space there; no restart is needed" in str(caught.value)
        assert counts_of(store, campaign, 0) == {0: [1000 * len(counted), 0, 0, 0]}, "nothing of it"
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk.parent)], check=True)
        assert list(store.commit(batches[len(counted)], [])) == [ACCEPTED] * 1000, "and it goes on"
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


def test_a_replica_and_one_that_was_promoted(
    mortal: PostgresProcess, replica: PostgresProcess
) -> None:
    """A replica is refused by one message and may be read. One that was promoted by mistake is a
    second primary: it takes what its workers give it, and knows nothing of the other's. Only the
    operator's own fencing of the old one can keep counts together; see docs/postgresql.md."""
    address = replica.address("replicated")
    with pytest.raises(StorageFailure) as caught:
        PostgresStore(address)
    assert "is a replica that only reads; nothing was changed. Name the primary" in str(
        caught.value
    )
    with closing(PostgresStore(address, read_only=True)) as reader:
        assert [c.id for c in reader.campaigns()] == [1]
    both = f"127.0.0.1:{replica.port},127.0.0.1:{mortal.port}"
    followed = f"postgresql://allomfree@{both}/replicated?target_session_attrs=read-write"
    with closing(PostgresStore(StoreAddress(followed))) as store:
        assert list(store.commit([candidate(store.campaign(None), 1)], [])) == [ACCEPTED]
    admin("SELECT pg_promote()", address)
    with closing(PostgresStore(address)) as second:
        campaign = second.campaign(None)
        assert list(second.commit([candidate(campaign, 2)], [])) == [ACCEPTED]
        with closing(PostgresStore(mortal.address("replicated"))) as first:
            assert list(first.commit([candidate(campaign, 2)], [])) == [ACCEPTED]


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
        with pytest.raises(StorageFailure) as caught:
            PostgresStore(address)
        assert "there is no TLS connection that can be trusted" in str(caught.value)
        assert "sslrootcert=FILE" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_out_of_connections_while_it_runs() -> None:
    """A worker whose connection broke finds none left, says so, and goes on when there is one."""
    address = new_schema()
    schema = address.url.rpartition("%3D")[2]
    lonely = as_user("lonely", address)
    admin(f"GRANT ALL ON SCHEMA {schema} TO lonely")
    with closing(PostgresStore(lonely)) as store:
        campaign = store.open_campaign(three_questions(), FIRST)
        number = store.enlist("worker")
        batch = [candidate(campaign, 1)]
        admin(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "  # noqa: S608
            f"WHERE application_name = 'allomfree worker {number}'"
        )
        with closing(psycopg.connect(lonely.url)):
            with pytest.raises(StorageFailure):
                store.commit(batch, [])
            with pytest.raises(StorageFailure, match="the server has no connection left"):
                store.enlist("worker")
        admin(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'lonely'"
        )
        store.enlist("worker")
        assert list(store.commit(batch, [])) == [ACCEPTED]
