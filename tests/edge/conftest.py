from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge_client.agent import Agent
from edge_client.cli import main
from tests.edge.fakes import FakeClock, daily, joined_agent
from tests.support.brokers import Nats

Cli = Callable[..., Result]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that does not exist yet."""
    return tmp_path / "state"


@pytest.fixture
def agent(state: Path, clock: FakeClock) -> Iterator[Agent]:
    """An agent that has joined a year of daily rounds; the first one is open."""
    joined = joined_agent(state, clock, daily())
    yield joined
    joined.store.close()


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """One broker for all tests of this process; each test has a campaign of its own."""
    with Nats(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own: no configuration, variable or memory of this machine is seen."""
    for name in os.environ:
        if name.startswith(("ALLOMFREE_", "XDG_", "STATE_DIRECTORY", "NOTIFY_SOCKET")):
            monkeypatch.delenv(name)
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    return directory


@pytest.fixture
def cli(home: Path) -> Iterator[Cli]:
    """The command line in this process. An exception that reaches the top fails the test."""

    def invoke(*words: object, answer: str | None = None) -> Result:
        return CliRunner().invoke(
            main, [str(w) for w in words], input=answer, catch_exceptions=False
        )

    yield invoke
    logger = logging.getLogger("allomfree")
    logger.handlers, logger.propagate = [], True
