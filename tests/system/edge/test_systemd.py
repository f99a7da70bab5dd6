"""Under systemd: READY, WATCHDOG and STOPPING arrive; SIGTERM ends it, what is queued stays."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_client import EdgeClient
from testbed.processes import free_port
from tests.support.campaigns import manifest
from tests.support.edge_processes.processes import AgentProcess, draw_now, joined


@contextmanager
def notify_socket(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + address[1:] if address.startswith("@") else address)
        channel.settimeout(30)
        yield channel


def wait_for(channel: socket.socket, word: str) -> str:
    while True:
        message = channel.recv(4096).decode()
        if word in message.splitlines():
            return message


@pytest.mark.parametrize(
    ("kind", "number"), [("path", signal.SIGTERM), ("abstract", signal.SIGINT)]
)
def test_notifications_and_the_end(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    asked, state = manifest(), tmp_path / "state"
    config = joined(state, asked, f"mqtt://127.0.0.1:{free_port()}")
    payload = draw_now(state)
    address = f"@allomfree-{os.getpid()}-{number}" if kind == "abstract" else f"{tmp_path}/n"
    with (
        notify_socket(address) as channel,
        AgentProcess(config, extra_environment={"NOTIFY_SOCKET": address}) as agent,
    ):
        wait_for(channel, "READY=1")
        watchdog = wait_for(channel, "WATCHDOG=1")
        assert "STATUS=BROKER_AWAY" in watchdog
        os.kill(agent.pid, number)
        wait_for(channel, "STOPPING=1")
        assert agent.process.wait(30) == 0
    assert not any("Traceback" in line["message"] for line in agent.lines)
    with EdgeClient(state) as client:
        assert [(r.payload, r.fate) for r in client.store.reports(asked.campaign)] == [
            (payload, "queued")
        ]
