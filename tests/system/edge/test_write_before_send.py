"""The report is on the disk before its first byte is on the wire, at two syncs and three in all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from benchmarks.agent import Call, calls, first, payloads, syncs_per_round, traced, why_not
from testbed.brokers import Nats, Tally
from tests.support.edge_processes.loops import fresh_manifest
from tests.support.edge_processes.processes import AgentProcess, joined
from tests.support.harness import need

ROUNDS = 4


@pytest.fixture
def trace(nats: Nats, tmp_path: Path) -> tuple[list[Call], list[bytes]]:
    """What a running agent asked of the kernel over some rounds of a second, and its reports."""
    need("strace")
    if reason := why_not():
        pytest.skip(reason)
    asked, state, output = (
        fresh_manifest(period=1, grace=3600),
        tmp_path / "state",
        tmp_path / "strace",
    )
    agent = AgentProcess(joined(state, asked, nats.url))
    agent.command = traced(agent.command, output)
    with Tally(nats.port, asked), agent:
        agent.wait_for("was counted", times=ROUNDS)
        assert agent.terminate() == 0
    return calls(output), payloads(state)


@pytest.mark.slow
def test_synced_before_sent(trace: tuple[list[Call], list[bytes]]) -> None:
    seen, reports = trace
    assert len(reports) >= ROUNDS - 1, "where many rounds were missed, the first is not kept"
    for payload in reports[:ROUNDS]:
        written = first(seen, "pwrite64", "state.db-wal", payload)
        synced = first(seen, "fdatasync", "state.db-wal", after=written)
        sent = first(seen, "sendto", "socket:", payload)
        assert written < synced < sent
        assert seen[synced].rest.endswith("= 0")
        unsynced = [c for c in seen[synced:sent] if c.name == "pwrite64" and "-wal" in c.where]
        assert not unsynced
    before, in_all = zip(*syncs_per_round(seen, reports[:ROUNDS]), strict=True)
    assert set(before) == {2}
    assert median(in_all) == 3


def test_the_trace_can_tell(tmp_path: Path) -> None:
    """A program that sends first and syncs afterwards is seen to do so."""
    need("strace")
    if reason := why_not():
        pytest.skip(reason)
    hasty = (
        "import os, socket, sys\n"
        "mine, theirs = socket.socketpair()\n"
        "mine.send(b'report')\n"
        "file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "os.pwrite(file, b'report', 0)\n"
        "os.fdatasync(file)\n"
    )
    output = tmp_path / "strace"
    command = [sys.executable, "-c", hasty, str(tmp_path / "state.db-wal")]
    subprocess.run(traced(command, output), check=True)
    seen = calls(output)
    written = first(seen, "pwrite64", "state.db-wal", b"report")
    assert first(seen, "sendto", "socket:", b"report") < written
    assert first(seen, "fdatasync", "state.db-wal", after=written) > written
