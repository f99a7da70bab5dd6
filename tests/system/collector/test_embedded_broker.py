"""`allomfree-collector run` without --broker: the embedded broker starts and ends with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from collector.brokers.config import GO_RUNTIME
from collector.health import examine
from testbed.processes import free_port
from tests.support.collector_processes.campaign import Collection, assert_each_once, wait_until_open
from tests.support.collector_processes.processes import CollectorProcess, collector, facts
from tests.support.collector_processes.wire import Publisher
from tests.support.edge_processes import wait_until
from tests.support.harness import has_ended

DEVICES = 12

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
    """The process id of the broker that a collector started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (child,) = [int(pid) for pid in children]
    assert b"nats-server" in Path(f"/proc/{child}/cmdline").read_bytes()
    return child


def send(collection: Collection, first: int, last: int) -> None:
    with Publisher(port(collection)) as publisher:
        publisher.send(collection.reports()[first:last])


def test_it_ends_with_its_parent_and_keeps_its_port(collection: Collection) -> None:
    """Also when that is killed -9; the session and what is in it are there after the restart."""
    with CollectorProcess(collection.data) as process:
        process.wait_for("embedded broker on")
        where = port(collection)
        assert (
            process.said(f"embedded broker on mqtt://127.0.0.1:{where}, log in {collection.data}")
            == 1
        )
        wait_until_open(collection, where)
        child = broker_of(process)
        given = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        assert {f"{name}={value}".encode() for name, value in GO_RUNTIME.items()} <= set(given)
        send(collection, 0, 6)
        collection.wait_for(6)
        process.process.kill()
        process.process.wait(20)
        wait_until(lambda: has_ended(child))
    with CollectorProcess(collection.data) as again:
        again.wait_for("connected to")
        assert port(collection) == where
        send(collection, 6, DEVICES)
        collection.wait_for(DEVICES)
        child = broker_of(again)
        assert again.terminate() == 0
        assert has_ended(child)
    assert_each_once(collection.look(), DEVICES)
    assert "Server is ready" in (collection.data / "broker" / "broker.log").read_text()


def test_it_is_started_again_when_it_dies(collection: Collection) -> None:
    with CollectorProcess(collection.data) as process:
        process.wait_for("embedded broker on")
        wait_until_open(collection, port(collection))
        send(collection, 0, 6)
        collection.wait_for(6)
        child = broker_of(process)
        os.kill(child, signal.SIGKILL)
        process.wait_for("the embedded broker ended (code -9); restarting")
        process.wait_for("embedded broker on", times=2)
        assert broker_of(process) != child
        process.wait_for("connected to", times=2)
        send(collection, 0, DEVICES)
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        assert process.terminate() == 0


def test_commands_find_it(collection: Collection) -> None:
    with CollectorProcess(collection.data) as process:
        process.wait_for("collecting for")
        wait_until_open(collection, port(collection))
        wait_until(lambda: examine(collection.data).well)
        assert collector("health", "--data-dir", collection.data).returncode == 0
        findings = facts("doctor", "--data-dir", collection.data)
        assert all(finding["ok"] for finding in findings), findings
        assert any(f"127.0.0.1:{port(collection)}" in finding["finding"] for finding in findings)
