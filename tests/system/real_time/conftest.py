"""Runs that mostly wait for their rounds. They are started side by side when the first is needed,
so that together they take as long as the longest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from simulation.collected import Simulated
from tests.support.simulation.real_time import (
    Demonstrated,
    Finished,
    count_twice,
    demonstrate_for_a_real_user,
    run_agents,
)

RUNS: Final[dict[str, Callable[[Path], Any]]] = {
    "demonstration": demonstrate_for_a_real_user,
    "counted_twice": count_twice,
    "agents": run_agents,
}


class Started:
    """The runs that the selected tests ask for, by the names of their fixtures."""

    def __init__(self, pool: ThreadPoolExecutor, directories: dict[str, Path]) -> None:
        self._directories = directories
        self._futures: dict[str, Future[Any]] = {
            name: pool.submit(RUNS[name], directory) for name, directory in directories.items()
        }

    def finished(self, name: str) -> Finished[Any]:
        return Finished(self._directories[name], self._futures[name].result())


@pytest.fixture(scope="session")
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    fixtures = {
        name for item in request.session.items for name in getattr(item, "fixturenames", ())
    }
    directories = {name: tmp_path_factory.mktemp(name) for name in RUNS if name in fixtures}
    with ThreadPoolExecutor(len(RUNS)) as pool:
        yield Started(pool, directories)


@pytest.fixture(scope="session")
def demonstration(started: Started) -> Finished[Demonstrated]:
    return started.finished("demonstration")


@pytest.fixture(scope="session")
def counted_twice(started: Started) -> Finished[tuple[Simulated, Simulated]]:
    return started.finished("counted_twice")


@pytest.fixture(scope="session")
def agents(started: Started) -> Finished[Simulated]:
    return started.finished("agents")
