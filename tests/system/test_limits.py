"""The agent keeps the limits that `scripts/benchmark.py agent` prints, and a burst that is larger
than the broker's window reaches the collector once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import agent
from benchmarks.live import Effort, one_run
from benchmarks.workload import Embedded
from edge_client.delivery import FIRST_PAGES
from protocol_spec.limits import MAX_RECEIPT_BYTES
from tests.support.harness import load_what_was_put_off

pytestmark = pytest.mark.slow
WINDOW = 50


def test_the_agent_keeps_its_limits(tmp_path: Path) -> None:
    """Memory, disk syncs, payload sizes, and bytes of a round on the wire among a million devices;
    those that wait for rounds run at the same time."""
    environment = agent.compiled(tmp_path)
    load_what_was_put_off()
    with ThreadPoolExecutor(3) as pool:
        traced = pool.submit(agent.disk_syncs, tmp_path / "traced", environment)
        running = pool.submit(agent.running, tmp_path / "running", environment)
        wire = pool.submit(lambda: list(agent.round_bytes(tmp_path / "wire", 1_000_000, 1_000)))
        measured = [*agent.wire_sizes(), *running.result(), *traced.result(), *wire.result()]
    assert len(measured) == 13
    assert not [each for each in measured if each.broken]
    assert FIRST_PAGES * (MAX_RECEIPT_BYTES + 100) + 300 < 4_000, "also when a second page is read"
    values = {each.what: each.value for each in measured}
    assert values["numpy loaded"] == 0
    assert 10 < (values["resident memory, running"] or 0) <= 30


class Narrow(Embedded):
    """It lets few messages wait for the collector's acknowledgement. What it has to hold back
    because a session has more than that, it delivers half a minute later."""

    def configuration(self) -> str:
        usual = super().configuration()
        narrow = usual.replace("max_ack_pending: 20000", f"max_ack_pending: {WINDOW}")
        assert narrow != usual
        return narrow


def test_a_burst_larger_than_the_window_is_delivered_once() -> None:
    measured = one_run(Narrow, Effort(reports=20 * WINDOW, connections=4))
    assert (measured["again"], measured["unseen"]) == (0, 0)
    assert 0 < measured["p50"] <= measured["p99"]
