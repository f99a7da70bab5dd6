"""A disk that takes no more: nothing is acknowledged, the collector lives and says so; then all
is counted.

Twice: with a limit on the size of files, set from outside on the running process, which any user
may do; and with a real disk of a few megabytes, where the tests may mount one.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.health import examine
from tests.support.brokers import Broker, Nats
from tests.support.collector_processes.campaign import Desk, assert_each_once, wait_until_open
from tests.support.collector_processes.processes import CollectorProcess, facts
from tests.support.collector_processes.wire import Publisher, retained
from tests.support.edge_processes.processes import wait_until

DEVICES = 40
SMALLEST = 8192  # enough for the heartbeat, too little for the database
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk.opened(tmp_path / "data", DEVICES)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def receipts(desk: Desk, broker: Broker) -> dict[str, bytes]:
    return retained(broker.port, f"{desk.topics.receipt_root}#")


def wait_for_alarm(desk: Desk) -> None:
    wait_until(lambda: "cannot be written" in examine(desk.data).finding)


def wait_until_well(desk: Desk) -> None:
    wait_until(lambda: examine(desk.data).well, timeout=60)


def assert_alarmed(desk: Desk, broker: Broker, process: CollectorProcess, counted: int) -> None:
    """Alive, unwell, and not a word to the devices about what is not on disk."""
    wait_for_alarm(desk)
    told = facts("health", "--data-dir", desk.data)
    assert not told["healthy"]
    failures = told["storage_failures"]
    wait_until(lambda: examine(desk.data).facts()["storage_failures"] > failures + 1)
    assert process.is_running
    assert process.said("cannot be written") == 1, "once, not once a second"
    assert desk.look().n == counted
    assert bool(receipts(desk, broker)) == bool(counted)


@pytest.mark.slow
def test_files_that_cannot_grow(desk: Desk, broker: Broker) -> None:
    """For so long that the broker gives the silent connection up."""
    with (
        CollectorProcess(desk.data, "--broker", broker.url, "--keepalive", "2") as process,
        Publisher(broker.port) as publisher,
    ):
        wait_until_open(desk, broker.port)
        wait_until_well(desk)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (SMALLEST, resource.RLIM_INFINITY))
        publisher.send(desk.reports())
        assert_alarmed(desk, broker, process, 0)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, UNLIMITED)
        wait_until(lambda: desk.look().n == DEVICES, timeout=60)
        wait_until_well(desk)
        assert_each_once(desk.look(), DEVICES)
        wait_until(lambda: bool(receipts(desk, broker)))
        assert process.terminate() == 0


@pytest.mark.slow
def test_killed_while_the_disk_is_full(desk: Desk, quick_broker: Broker) -> None:
    """What was not acknowledged is still at the broker."""
    with (
        CollectorProcess(desk.data, "--broker", quick_broker.url) as process,
        Publisher(quick_broker.port) as publisher,
    ):
        wait_until_open(desk, quick_broker.port)
        wait_until_well(desk)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (SMALLEST, resource.RLIM_INFINITY))
        publisher.send(desk.reports())
        wait_for_alarm(desk)
        process.process.kill()
        process.process.wait(20)
    with CollectorProcess(desk.data, "--broker", quick_broker.url):
        wait_until(lambda: desk.look().n == DEVICES, timeout=60)
    assert_each_once(desk.look(), DEVICES)


@pytest.mark.slow
def test_a_full_disk(small_disk: Path, nats: Nats) -> None:
    """Full before the first report; some space is freed, and everything is counted."""
    desk = Desk.opened(small_disk / "data", DEVICES)
    ballast = small_disk / "ballast"
    with (
        CollectorProcess(desk.data, "--broker", nats.url) as process,
        Publisher(nats.port) as publisher,
    ):
        wait_until_open(desk, nats.port)
        wait_until_well(desk)
        fill(ballast)
        publisher.send(desk.reports())
        assert_alarmed(desk, nats, process, 0)
        ballast.unlink()
        wait_until(lambda: desk.look().n == DEVICES, timeout=60)
        assert_each_once(desk.look(), DEVICES)
        wait_until_well(desk)


def fill(ballast: Path) -> None:
    """Until nothing more fits."""
    with ballast.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_another_writer_in_the_way(desk: Desk, nats: Nats) -> None:
    """A database held by another program is waited for."""
    with (
        CollectorProcess(desk.data, "--broker", nats.url),
        Publisher(nats.port) as publisher,
    ):
        wait_until_open(desk, nats.port)
        other = open_store(desk.data)
        with other._transaction():
            publisher.send(desk.reports())
            assert desk.look().n == 0
        other.close()
        wait_until(lambda: desk.look().n == DEVICES)
        assert_each_once(desk.look(), DEVICES)
