"""Processes of agents that cannot do their part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stage.agents import AgentProcesses
from stage.processes import StageError
from stage.programs import environment
from tests.support.simulation.campaigns import both


def test_agents_that_cannot_start_are_told_of_in_their_own_words(tmp_path: Path) -> None:
    readings = {device: {"fuel": "wood", "hour": "h1"} for device in range(4)}
    agents = AgentProcesses(tmp_path / "devices", both(), "no address", readings, processes=1)
    with (
        pytest.raises(StageError, match=r"agents ended before .*agents-0\.log") as raised,
        agents,
    ):
        pass
    assert "'no address' is not an address" in str(raised.value)


def test_memory_is_this_process_s_and_not_its_parent_s() -> None:
    ballast = bytearray(150 << 20)  # of the parent
    program = "from stage.memory import peak_memory_mib; print(peak_memory_mib())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, check=True
    )
    assert 5 < float(done.stdout) < 100 < len(ballast) >> 20
