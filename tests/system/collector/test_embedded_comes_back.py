"""F3: whatever happens to the embedded broker, the collector stays, brings it back, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from collector.brokers.embedded import EmbeddedBroker
from collector.health import examine
from collector.links import Link, Will
from collector.processes import MARK, is_stopped, listener_of, orphans
from protocol_spec.programs.settings import BrokerUnreachable
from testbed.processes import free_port
from tests.support.collector_processes.campaign import Collection, assert_each_once, wait_until_open
from tests.support.collector_processes.processes import CollectorProcess
from tests.support.collector_processes.wire import Publisher
from tests.support.edge_processes import environment, wait_until
from tests.support.harness import has_ended

DEVICES = 6

pytestmark = pytest.mark.slow


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """Its port is remembered already: tests that run at once must not reach for the same one."""
    made = Collection.opened(tmp_path / "data", DEVICES)
    (made.data / "broker").mkdir(mode=0o700)
    (made.data / "broker" / "port").write_text(str(free_port()))
    return made


def port(collection: Collection) -> int:
    return int((collection.data / "broker" / "port").read_text())


def broker_of(process: CollectorProcess) -> int:
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def finding(collection: Collection) -> str:
    return examine(collection.data).finding


def everything_counts(collection: Collection) -> None:
    wait_until_open(collection, port(collection))
    with Publisher(port(collection)) as publisher:
        publisher.send(collection.reports())
    collection.wait_for(DEVICES)
    assert_each_once(collection.look(), DEVICES)


STRANGER = """
import socket, sys, time
while True:
    try:
        taken = socket.create_server(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.01)  # a process that was killed may take a moment to let go
time.sleep(300)
"""


@contextmanager
def stranger(number: int) -> Iterator[None]:
    """Another program that listens on the port, and answers nothing."""
    with subprocess.Popen([sys.executable, "-c", STRANGER, str(number)]) as process:
        try:
            wait_until(lambda: listener_of(number) == process.pid)
            yield
        finally:
            process.kill()


def test_a_port_that_a_stranger_holds_for_a_while(collection: Collection) -> None:
    """At the start: it waits, names the stranger, connects to nobody, and then it is there."""
    number, taken = port(collection), ExitStack()
    taken.enter_context(stranger(number))
    with taken, CollectorProcess(collection.data) as process:
        process.wait_for("another program (process")
        wait_until(lambda: f"uses its port {number}" in finding(collection))
        assert process.is_running
        assert process.said("connected to") == 0
        with pytest.raises(ValueError, match="not enough values"):
            broker_of(process)  # NATS would open its store before it finds the port taken
        taken.close()
        process.wait_for("embedded broker on")
        everything_counts(collection)
        assert process.terminate() == 0


def test_killed_and_its_port_taken_before_it_is_back(collection: Collection) -> None:
    with CollectorProcess(collection.data) as process:
        process.wait_for("connected to")
        process.process.send_signal(signal.SIGSTOP)  # so that it does not restart it at once
        os.kill(broker_of(process), signal.SIGKILL)
        with stranger(port(collection)):
            process.process.send_signal(signal.SIGCONT)
            process.wait_for("another program (process")
            wait_until(lambda: "uses its port" in finding(collection))
        process.wait_for("embedded broker on", times=2)
        process.wait_for("connected to", times=2)
        everything_counts(collection)
        assert process.terminate() == 0


def test_killed_again_and_again(collection: Collection) -> None:
    with CollectorProcess(collection.data) as process:
        for times in (1, 2):
            process.wait_for("connected to", times=times)
            os.kill(broker_of(process), signal.SIGKILL)
        process.wait_for("connected to", times=3)
        everything_counts(collection)
        assert process.terminate() == 0


def test_paused_for_longer_than_anybody_waits(collection: Collection) -> None:
    """Beyond the time the collector waits for its first answer, and that of a keepalive."""
    with CollectorProcess(collection.data, "--keepalive", "3") as process:
        process.wait_for("connected to")
        child = broker_of(process)
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: f"(process {child}) is paused" in finding(collection))
        process.wait_for("Keep alive timeout")
        wait_until(lambda: f"(process {child}) is paused" in finding(collection))
        os.kill(child, signal.SIGCONT)
        process.wait_for("connected to", times=2)
        wait_until(lambda: examine(collection.data).well)
        assert broker_of(process) == child
        everything_counts(collection)
        assert process.terminate() == 0


def test_one_that_outlived_its_collector_is_ended(collection: Collection) -> None:
    """Paused, it cannot hear that its collector died: it holds port and store for ever."""
    with CollectorProcess(collection.data) as process:
        process.wait_for("connected to")
        child = broker_of(process)
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: is_stopped(child))
    try:
        assert not has_ended(child)
        with CollectorProcess(collection.data) as again:
            again.wait_for(f"of an earlier collector (process {child}) is still running")
            again.wait_for("connected to")
            assert has_ended(child)
            everything_counts(collection)
            assert again.terminate() == 0
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_no_process_but_our_own_orphans_is_touched() -> None:
    """The same command by hand has no mark; with the mark of its living parent it has a keeper."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    marks: tuple[dict[str, str], ...] = ({}, {MARK: str(os.getpid())}, {MARK: "1000000000"})
    started = [subprocess.Popen(command, env=environment(mark)) for mark in marks]
    try:
        wait_until(lambda: orphans(command) == [started[2].pid])
        assert orphans([*command, "more"]) == []
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_nobody_connects_while_another_listens(tmp_path: Path) -> None:
    (tmp_path / "port").write_text(str(free_port()))
    broker = EmbeddedBroker(tmp_path)
    connected: list[Will | None] = []

    def connect(will: Will | None) -> Link:
        connected.append(will)
        raise BrokerUnreachable("tried")

    checked = broker.connecting(connect)
    with stranger(broker.url.port), broker, pytest.raises(BrokerUnreachable, match="uses its port"):
        checked(None)
    assert connected == []
    with broker, pytest.raises(BrokerUnreachable, match="tried"):
        checked(None)
