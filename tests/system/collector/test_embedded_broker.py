"""`allomfree-collector run` without --broker: the broker in the box lives and dies with it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.brokers import free_port
from tests.support.collector_processes.campaign import Desk, assert_each_once, wait_until_open
from tests.support.collector_processes.processes import CollectorProcess, collector, facts
from tests.support.collector_processes.wire import Publisher
from tests.support.edge_processes.processes import wait_until

DEVICES = 12

pytestmark = pytest.mark.slow


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Its port is remembered already: tests that run at once must not reach for the same one."""
    made = Desk.opened(tmp_path / "data", DEVICES)
    (made.data / "broker").mkdir(mode=0o700)
    (made.data / "broker" / "port").write_text(str(free_port()))
    return made


def port(desk: Desk) -> int:
    return int((desk.data / "broker" / "port").read_text())


def broker_of(process: CollectorProcess) -> int:
    """The process id of the broker that a collector started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (child,) = [int(pid) for pid in children]
    assert b"nats-server" in Path(f"/proc/{child}/cmdline").read_bytes()
    return child


def has_ended(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


def send(desk: Desk, first: int, last: int) -> None:
    with Publisher(port(desk)) as publisher:
        publisher.send(desk.reports()[first:last])


def test_it_ends_with_its_parent_and_keeps_its_port(desk: Desk) -> None:
    """Also when that is killed -9; the session and what is in it are there after the restart."""
    with CollectorProcess(desk.data) as process:
        process.wait_for("embedded broker on")
        where = port(desk)
        assert process.said(f"embedded broker on mqtt://127.0.0.1:{where}, log in {desk.data}") == 1
        wait_until_open(desk, where)
        child = broker_of(process)
        send(desk, 0, 6)
        wait_until(lambda: desk.look().n == 6)
        process.process.kill()
        process.process.wait(20)
        wait_until(lambda: has_ended(child))
    with CollectorProcess(desk.data) as again:
        again.wait_for("connected to")
        assert port(desk) == where
        send(desk, 6, DEVICES)
        wait_until(lambda: desk.look().n == DEVICES, timeout=60)
        child = broker_of(again)
        assert again.terminate() == 0
        assert has_ended(child)
    assert_each_once(desk.look(), DEVICES)
    assert "Server is ready" in (desk.data / "broker" / "broker.log").read_text()


def test_it_is_started_again_when_it_dies(desk: Desk) -> None:
    with CollectorProcess(desk.data) as process:
        process.wait_for("embedded broker on")
        wait_until_open(desk, port(desk))
        send(desk, 0, 6)
        wait_until(lambda: desk.look().n == 6)
        child = broker_of(process)
        os.kill(child, signal.SIGKILL)
        process.wait_for("the embedded broker ended (code -9); restarting")
        process.wait_for("embedded broker on", times=2)
        assert broker_of(process) != child
        process.wait_for("connected to", times=2)
        send(desk, 0, DEVICES)
        wait_until(lambda: desk.look().n == DEVICES)
        assert_each_once(desk.look(), DEVICES)
        assert process.terminate() == 0


def test_commands_find_it(desk: Desk) -> None:
    with CollectorProcess(desk.data) as process:
        process.wait_for("collecting for")
        wait_until_open(desk, port(desk))
        wait_until(lambda: collector("health", "--data-dir", desk.data).returncode == 0)
        findings = facts("doctor", "--data-dir", desk.data)
        assert all(finding["ok"] for finding in findings), findings
        assert any(f"127.0.0.1:{port(desk)}" in finding["finding"] for finding in findings)
