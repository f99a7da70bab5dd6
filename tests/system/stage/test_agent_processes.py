"""Processes of agents that cannot do their part."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage.agents import AgentProcesses
from stage.processes import StageError
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
