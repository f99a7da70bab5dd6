"""`allomfree-edge run` in a campaign that it answers in some rounds only, with short rounds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from edge_client import EdgeClient
from testbed.brokers import Nats, Tally
from tests.support.edge import way_manifest
from tests.support.edge_processes.processes import AgentProcess, joined, wait_until

PERIOD, COUNT, EACH = 3, 3, 2


@pytest.mark.slow
def test_the_daemon_answers_in_the_rounds_it_drew_and_is_silent_in_others(
    nats: Nats, tmp_path: Path
) -> None:
    first = int(time.time()) + 5  # time to start, also on a busy machine
    asked = way_manifest(
        "once",
        slug=f"t-{os.urandom(4).hex()}",
        first=first,
        period=PERIOD,
        count=COUNT,
        grace=600,
        each=EACH,
    )
    state = tmp_path / "device"
    config = joined(state, asked, nats.url)
    with Tally(nats.port, asked) as tally, AgentProcess(config) as agent:
        agent.wait_for("running for")
        wait_until(lambda: time.time() > first + PERIOD * COUNT, timeout=60)
        agent.wait_for("was counted", times=EACH)
        assert agent.terminate() == 0
    with EdgeClient(state) as client:
        member, spent = client.find(), client.store.spent(client.find())
        lines = [line.epsilon for line in client.store.ledger()]
    assert {number for _, number in tally.payloads} == set(member.drawn_rounds or ())
    assert all(len(found) == 1 for found in tally.payloads.values())
    assert lines == [asked.eps_1] * EACH
    assert (spent.reports, spent.exact) == (EACH, asked.eps_inf)
