"""Runs that mostly wait for their rounds, each made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.results import Simulated
from tests.support.real_time import (
    Demonstrated,
    Finished,
    count_twice,
    demonstrate_for_a_real_user,
    run_agents,
)


@pytest.fixture
def demonstration(tmp_path: Path) -> Finished[Demonstrated]:
    return Finished(tmp_path, demonstrate_for_a_real_user(tmp_path))


@pytest.fixture
def counted_twice(tmp_path: Path) -> Finished[tuple[Simulated, Simulated]]:
    return Finished(tmp_path, count_twice(tmp_path))


@pytest.fixture
def agents(tmp_path: Path) -> Finished[Simulated]:
    return Finished(tmp_path, run_agents(tmp_path))
