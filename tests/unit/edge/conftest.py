from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edge_client.__main__ import main
from edge_client.agent import Agent
from testbed.brokers import Nats
from tests.support.command_line import Cli, empty_home, invoker
from tests.support.edge import Connections, FakeClock, daily, in_memory, joined_agent


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own, in memory where possible."""
    with TemporaryDirectory(prefix="allomfree-", dir=in_memory()) as name:
        yield Path(name)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that does not exist yet."""
    return tmp_path / "state"


@pytest.fixture
def connections() -> Connections:
    """The connections of the fixture `agent`."""
    return Connections()


@pytest.fixture
def agent(state: Path, clock: FakeClock, connections: Connections) -> Iterator[Agent]:
    """An agent that has joined a year of daily rounds; the first one is open."""
    joined = joined_agent(state, clock, daily(), connect=connections)
    yield joined
    joined.store.close()


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    """One broker for all tests of this process; each test has a campaign of its own."""
    with TemporaryDirectory(dir=in_memory()) as name, Nats(Path(name) / "nats") as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own."""
    return empty_home(tmp_path, monkeypatch)


@pytest.fixture
def cli(home: Path) -> Iterator[Cli]:
    """The command line in this process. An exception that reaches the top fails the test."""
    yield invoker(main)
    logger = logging.getLogger("allomfree")
    logger.handlers, logger.propagate = [], True
