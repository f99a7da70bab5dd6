"""`status`, `show` and `pause` work at any moment beside the running agent, undisturbed by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client import EdgeClient
from testbed.brokers import Nats, Tally
from tests.support.edge_processes.loops import fresh_manifest
from tests.support.edge_processes.processes import AgentProcess, edge, joined

ROUNDS = 3


@pytest.mark.slow
def test_looking_all_the_time(nats: Nats, tmp_path: Path) -> None:
    """Also in the instant in which the agent is writing: nobody is ever told "locked"."""
    asked, state = fresh_manifest(period=1, grace=3600), tmp_path / "state"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked), AgentProcess(config) as agent:
        looks = 0
        while agent.said("was counted") < ROUNDS:
            with EdgeClient(state, exclusive=False) as client:
                client.store.reports(asked.campaign)
                looks += 1
            assert agent.is_running, agent.lines
        assert looks > ROUNDS
        warned = [line["message"] for line in agent.lines if line["level"] != "info"]
        # A test machine may have no time server, which an agent says.
        assert [message for message in warned if not message.startswith("clock: ")] == []


@pytest.mark.slow
def test_pausing_a_running_agent(nats: Nats, tmp_path: Path) -> None:
    asked, state = fresh_manifest(period=1, grace=3600), tmp_path / "state"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked), AgentProcess(config) as agent:
        agent.wait_for("was counted")
        assert edge("pause", "--config", config).returncode == 0
        assert "paused" in edge("status", "--config", config).stdout
        with EdgeClient(state, exclusive=False) as client:
            last = client.find().last_round
        assert edge("resume", "--config", config).returncode == 0
        agent.wait_for("was counted", times=agent.said("was counted") + 1)
        with EdgeClient(state, exclusive=False) as client:
            assert client.find().last_round > last
            assert len(client.store.ledger()) == 1
