"""The embedded broker ends with its collector, which outlives it and brings it back (F3)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from collector.brokers.config import GO_RUNTIME, SYNC_SECONDS
from collector.brokers.embedded import EmbeddedBroker
from collector.data_dir import DeviceKey
from collector.health import examine
from collector.links import Link, Links, Will
from collector.links.mqtt import PahoConnector, Subscription
from collector.processes import MARK, listener_of, orphans
from collector.service import Service
from collector.store.sqlite import SqliteStore
from protocol_spec import DEFAULT_NAMESPACE, Outcome
from protocol_spec.programs.settings import BrokerUnreachable, Credentials
from testbed.brokers import publish
from testbed.processes import free_port
from tests.support.collector import message, three_questions
from tests.support.collector_processes import (
    Collection,
    CollectorProcess,
    assert_each_once,
    collector,
    facts,
    wait_until_open,
)
from tests.support.harness import has_ended
from tests.support.processes import environment, wait_until

DEVICES = 6
pytestmark = pytest.mark.slow


def with_port(directory: Path) -> Path:
    """The port is remembered already: tests that run at once must not reach for the same one."""
    directory.mkdir(mode=0o700)
    (directory / "port").write_text(str(free_port()))
    return directory


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.opened(tmp_path / "data", DEVICES)
    with_port(made.data / "broker")
    return made


def port(collection: Collection) -> int:
    return int((collection.data / "broker" / "port").read_text())


def broker_of(process: CollectorProcess) -> int:
    """The process id of the broker that a collector started."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert b"nats-server" in Path(f"/proc/{child}/cmdline").read_bytes()
    return int(child)


def finding(collection: Collection) -> str:
    return examine(collection.data).finding


def count_all(collection: Collection, process: CollectorProcess) -> None:
    """Everything is counted, once, and the collector ends in good order."""
    wait_until_open(collection, port(collection))
    publish(f"mqtt://127.0.0.1:{port(collection)}", collection.reports())
    collection.wait_for(DEVICES)
    assert_each_once(collection.look(), DEVICES)
    assert process.terminate() == 0


def test_it_ends_with_its_parent_and_keeps_its_port(collection: Collection) -> None:
    """Also when that is killed -9; the session and what is in it are there after the restart."""
    with CollectorProcess(collection.data) as process:
        process.wait_for("embedded broker on")
        where = port(collection)
        line = f"embedded broker on mqtt://127.0.0.1:{where}, log in {collection.data}"
        assert process.said(line) == 1
        wait_until_open(collection, where)
        child = broker_of(process)
        given = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        assert {f"{name}={value}".encode() for name, value in GO_RUNTIME.items()} <= set(given)
        publish(f"mqtt://127.0.0.1:{where}", collection.reports()[:3])
        collection.wait_for(3)
        process.process.kill()
        process.process.wait(20)
        wait_until(lambda: has_ended(child))
    with CollectorProcess(collection.data) as again:
        again.wait_for("connected to")
        assert port(collection) == where
        child = broker_of(again)
        count_all(collection, again)
        assert has_ended(child)
    assert "Server is ready" in (collection.data / "broker" / "broker.log").read_text()


def test_it_is_started_again_as_often_as_it_dies_and_commands_find_it(
    collection: Collection,
) -> None:
    with CollectorProcess(collection.data) as process:
        for times in (1, 2):
            process.wait_for("connected to", times=times)
            os.kill(broker_of(process), signal.SIGKILL)
            process.wait_for("the embedded broker ended (code -9); restarting", times=times)
        process.wait_for("connected to", times=3)
        wait_until_open(collection, port(collection))
        wait_until(lambda: examine(collection.data).well)
        assert collector("health", "--data-dir", collection.data).returncode == 0
        findings = facts("doctor", "--data-dir", collection.data)
        assert all(each["ok"] for each in findings), findings
        assert any(f"127.0.0.1:{port(collection)}" in each["finding"] for each in findings)
        count_all(collection, process)


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
        count_all(collection, process)


def test_one_that_outlived_its_collector_is_ended(collection: Collection) -> None:
    """Paused, it cannot hear that its collector died: it holds port and store for ever."""
    with CollectorProcess(collection.data) as process:
        process.wait_for("connected to")
        child = broker_of(process)
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: " T " in Path(f"/proc/{child}/stat").read_text())
    try:
        assert not has_ended(child)
        with CollectorProcess(collection.data) as again:
            again.wait_for(f"of an earlier collector (process {child}) is still running")
            again.wait_for("connected to")
            assert has_ended(child)
            count_all(collection, again)
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
    broker = EmbeddedBroker(with_port(tmp_path / "broker"))
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


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill -9", "power cut"])
def test_what_the_end_of_the_broker_costs(tmp_path: Path, power_cut: bool) -> None:
    """It syncs once a second. Everything that it acknowledged survives kill -9. A power cut may
    take the last second; here it takes all, which is the worst. Devices have no receipts then,
    send again, and each is counted once."""
    devices, first = 3_000, int(time.time()) - 60
    with (
        EmbeddedBroker(with_port(tmp_path / "broker")) as broker,
        closing(SqliteStore(tmp_path / "collector.db")) as store,
    ):
        assert f'sync_interval: "{SYNC_SECONDS}s"' in (broker.directory / "nats.conf").read_text()
        campaign = store.open_campaign(three_questions(first=first), first)
        made = [message(campaign.manifest, f"d{i}") for i in range(devices)]
        reports = [(report.topic or "", report.payload) for report in made]
        connect = broker.connecting(PahoConnector(broker.url, Credentials(), client_id="collector"))
        links = Links(lambda will: Subscription(connect(will), DEFAULT_NAMESPACE))
        service = Service(store, DeviceKey(tmp_path / "key"), links)

        def leave_a_session() -> None:
            while not service.status.connected or service.status.trouble:
                service.turn(0.1)
            for _ in range(3):
                service.turn(0.1)
            service.shut_down()

        def receive(messages: int) -> None:
            limit = time.monotonic() + 60
            while store.received() < messages and time.monotonic() < limit:
                service.turn(0.1)

        leave_a_session()
        publish(str(broker.url), reports)
        pid = listener_of(broker.url.port)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        if power_cut:
            shutil.rmtree(broker.directory / "jetstream")
        while broker.trouble or listener_of(broker.url.port) in (None, pid):
            broker.supervise()
        if power_cut:
            leave_a_session()
            assert store.received() == 0, "the broker forgot"
        else:
            receive(devices)
            assert store.outcomes() == {Outcome.ACCEPTED: devices}
        publish(str(broker.url), reports)
        receive(devices if power_cut else 2 * devices)
        again = {} if power_cut else {Outcome.DUPLICATE: devices}
        assert store.outcomes() == {Outcome.ACCEPTED: devices, **again}
