"""`scripts/benchmark.py agent` runs, and the agent keeps the limits it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks import syscalls
from benchmarks.measurements import Measurement, as_json, as_text, kept
from tests.support.edge_processes.processes import environment
from tests.support.places import ROOT


@pytest.mark.slow
def test_the_agent_keeps_its_limits() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "benchmark.py"), "agent", "--json"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts: dict[str, Any] = {m["what"]: m for m in json.loads(done.stdout)["measurements"]}
    assert 10 < facts["resident memory, running"]["value"] <= 30
    assert facts["numpy loaded"]["value"] == 0
    assert facts["numpy loaded"]["note"] == "numpy is installed"
    assert facts["payload, L-GRR, k = 4096"]["value"] <= 20
    assert facts["payload, L-UE, k = 41"]["value"] <= 20 + 41 / 8
    if not syscalls.why_not():
        assert facts["disk syncs before a report is sent"]["value"] <= 2
        assert facts["disk syncs of a round in all"]["value"] <= 3
    broken = [what for what, fact in facts.items() if fact["verdict"] == "BROKEN"]
    assert not broken


def test_a_broken_limit_shows() -> None:
    good = Measurement("size", 19, "bytes", 20)
    bad = Measurement("memory", 31.0, "MiB", 30)
    unknown = Measurement("syncs", None, "", 2, "strace is not installed")
    assert kept([good, unknown])
    assert not kept([good, bad])
    assert json.loads(as_json("agent", [good, bad]))["ok"] is False
    table = as_text([good, bad, unknown]).splitlines()
    assert [line.split()[0] for line in table] == ["what", "size", "memory", "syncs"]
    assert "BROKEN" in table[2]
    assert "not available" in table[3]
