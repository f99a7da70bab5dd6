"""What `scripts/benchmark.py agent` measures stays within the limits that it prints."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agent
from benchmarks.report import as_json
from tests.support.harness import load_what_was_put_off


@pytest.mark.slow
def test_the_agent_keeps_its_limits(tmp_path: Path) -> None:
    """Every measurement of the benchmark; the two that wait for rounds at the same time."""
    environment = agent.compiled(tmp_path)
    load_what_was_put_off()
    with ThreadPoolExecutor(2) as pool:
        traced = pool.submit(agent.disk_syncs, tmp_path / "traced", environment)
        running = pool.submit(agent.running, tmp_path / "running", environment)
        measured = [
            *agent.import_times(environment, 1),
            *agent.wire_sizes(),
            agent.draw_time(tmp_path / "draws", 20),
            *running.result(),
            *traced.result(),
        ]
    facts: dict[str, Any] = {
        m["what"]: m for m in json.loads(as_json("agent", measured))["measurements"]
    }
    assert 10 < facts["resident memory, running"]["value"] <= 30
    assert facts["numpy loaded"]["value"] == 0
    assert facts["numpy loaded"]["note"] == "numpy is installed"
    assert facts["payload, L-GRR, k = 4096"]["value"] <= 20
    assert facts["payload, L-UE, k = 41"]["value"] <= 20 + 41 / 8
    if not agent.why_not():
        assert facts["disk syncs before a report is sent"]["value"] <= 2
        assert facts["disk syncs of a round in all"]["value"] <= 3
    assert not [what for what, fact in facts.items() if fact["verdict"] == "BROKEN"]
