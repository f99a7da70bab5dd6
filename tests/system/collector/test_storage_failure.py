"""A disk that takes no more: nothing is acknowledged, the collector lives and says so; then all
is counted.

Twice: with a limit on the size of files, set from outside on the running process, which any user
may do; and with a real disk of a few megabytes, where the tests may mount one.
"""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from collector.data_dir import DATABASE
from collector.health import examine
from collector.links import BATCH
from collector.records import Candidate
from collector.store.sqlite import SqliteStore
from collector.store.sqlite_database import LOG_BYTES
from testbed.brokers import Broker
from tests.support.collector_processes.campaign import Collection, assert_each_once, wait_until_open
from tests.support.collector_processes.driver import CollectorRun, Launcher, Options
from tests.support.collector_processes.processes import facts
from tests.support.collector_processes.wire import Publisher, retained
from tests.support.edge_processes import wait_until

DEVICES = 40
SHARED = 400
SMALLEST = 8192  # enough for the heartbeat, too little for the database
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.shared(tmp_path / "data", DEVICES)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def receipts(collection: Collection, broker: Broker) -> dict[str, bytes]:
    return retained(broker.port, f"{collection.topics.receipt_root}#")


def wait_for_alarm(collection: Collection) -> None:
    wait_until(lambda: "cannot be written" in examine(collection.data).finding)


def wait_until_well(collection: Collection) -> None:
    wait_until(lambda: examine(collection.data).well, timeout=60)


def assert_alarmed(collection: Collection, broker: Broker, run: CollectorRun, counted: int) -> None:
    """Alive, unwell, and not a word to the devices about what is not on disk."""
    wait_for_alarm(collection)
    told = facts("health", "--data-dir", collection.data)
    assert not told["healthy"]
    failures = told["storage_failures"]
    wait_until(lambda: examine(collection.data).facts()["storage_failures"] > failures + 1)
    assert run.is_running
    assert run.said("cannot be written") == 1, "once, not once a second"
    assert collection.look().n == counted
    assert bool(receipts(collection, broker)) == bool(counted)


@pytest.mark.slow
def test_files_that_cannot_grow(collection: Collection, broker: Broker, launcher: Launcher) -> None:
    """For so long that the broker gives the silent connection up."""
    run = launcher.start(collection.options(broker, keepalive=2))
    with Publisher(broker.port) as publisher:
        wait_until_open(collection, broker.port)
        wait_until_well(collection)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (SMALLEST, resource.RLIM_INFINITY))
        publisher.send(collection.reports())
        assert_alarmed(collection, broker, run, 0)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, UNLIMITED)
        collection.wait_for(DEVICES)
        wait_until_well(collection)
        assert_each_once(collection.look(), DEVICES)
        wait_until(lambda: bool(receipts(collection, broker)))
        assert run.terminate() == 0


@pytest.mark.slow
def test_killed_while_the_disk_is_full(
    collection: Collection, quick_broker: Broker, launcher: Launcher
) -> None:
    """What was not acknowledged is still at the broker."""
    run = launcher.start(collection.options(quick_broker))
    with Publisher(quick_broker.port) as publisher:
        wait_until_open(collection, quick_broker.port)
        wait_until_well(collection)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (SMALLEST, resource.RLIM_INFINITY))
        publisher.send(collection.reports())
        wait_for_alarm(collection)
        run.kill()
    launcher.start(collection.options(quick_broker))
    collection.wait_for(DEVICES)
    assert_each_once(collection.look(), DEVICES)


@pytest.mark.slow
def test_a_full_disk(small_disk: Path, nats: Broker, launcher: Launcher) -> None:
    """Full before the first report; some space is freed, and everything is counted."""
    collection = Collection.shared(small_disk / "data", DEVICES)
    ballast = small_disk / "ballast"
    run = launcher.start(collection.options(nats))
    with Publisher(nats.port) as publisher:
        wait_until_open(collection, nats.port)
        wait_until_well(collection)
        fill(ballast)
        publisher.send(collection.reports())
        assert_alarmed(collection, nats, run, 0)
        ballast.unlink()
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        wait_until_well(collection)
    collection.close()
    assert run.terminate() == 0


@pytest.fixture(params=["size=24m", "size=64m,nr_inodes=120"], ids=["space", "inodes"])
def shared_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"{request.param},mode=700", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_that_the_embedded_broker_shares(shared_disk: Path, launcher: Launcher) -> None:
    """F4: NATS takes no message any more after its disk was full, until it is restarted; the
    collector notices, restarts it and goes on by itself."""
    collection = Collection.opened(shared_disk / "data", SHARED)
    run = launcher.start(Options(str(collection.data), "", collection.namespace, embedded=True))
    port = collection.data / "broker" / "port"
    wait_until(port.exists, timeout=60)
    wait_until_well(collection)
    send_until_counted(collection, port, SHARED // 4)
    ballast = shared_disk / "ballast"
    fill(ballast)
    names = use_all_names(shared_disk)
    with (
        suppress(AssertionError, OSError, RuntimeError),
        Publisher(int(port.read_text())) as publisher,
    ):
        publisher.send(collection.reports(), wait_seconds=3.0)
    ballast.unlink()
    for name in names:
        name.unlink()
    send_until_counted(collection, port, SHARED)
    wait_until_well(collection)
    assert_each_once(collection.look(), SHARED)
    collection.close()
    assert run.terminate() == 0


def use_all_names(place: Path) -> list[Path]:
    """Until no file can be created, which on a disk of few names is soon."""
    made: list[Path] = []
    with suppress(OSError):
        while len(made) < 500:
            made.append(place / f"name-{len(made)}")
            made[-1].touch()
    return [name for name in made if name.exists()]


def send_until_counted(collection: Collection, port: Path, devices: int) -> None:
    """As devices do: again and again until it is counted."""
    limit = time.monotonic() + 90
    while collection.counted() < devices:
        assert time.monotonic() < limit, collection.counted()
        with (
            suppress(AssertionError, OSError, RuntimeError),
            Publisher(int(port.read_text())) as publisher,
        ):
            publisher.send(collection.reports()[:devices], wait_seconds=3.0)


@pytest.mark.slow
def test_the_log_stays_small(tmp_path: Path) -> None:
    """F4: the write-ahead log is written back after a few megabytes, and cannot fill a disk."""
    collection = Collection.shared(tmp_path / "data", DEVICES)
    log = collection.data / f"{DATABASE}-wal"
    with closing(SqliteStore(collection.data / DATABASE)) as store:
        campaign = store.campaigns()[0].id
        for batch in range(20):
            rows = range(batch * BATCH, (batch + 1) * BATCH)
            store.commit([_row(campaign, number) for number in rows], [])
            assert log.stat().st_size < 3 * LOG_BYTES
        reader = collection.store
        assert reader.received()
        store.wipe_log()
    collection.close()


def _row(campaign: int, number: int) -> Candidate:
    return Candidate(campaign, 0, number * 7_919_777_777 % (1 << 62), 0, 0, number, bytes(5))


def fill(ballast: Path) -> None:
    """Until nothing more fits."""
    with ballast.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_another_writer_in_the_way(
    collection: Collection, nats: Broker, launcher: Launcher
) -> None:
    """A database held by another program is waited for."""
    launcher.start(collection.options(nats))
    with Publisher(nats.port) as publisher:
        wait_until_open(collection, nats.port)
        with closing(sqlite3.connect(collection.data / DATABASE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            publisher.send(collection.reports())
            assert collection.look().n == 0
            other.execute("COMMIT")
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
