from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from edge_client.__main__ import main
from edge_client.agent import Agent
from protocol_spec import Manifest
from testbed.brokers import Nats
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli, empty_home, invoker
from tests.support.edge import NOBODY, Connections, FakeClock, Joined, daily, joined_agent
from tests.support.harness import QUICK_DISK


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own, in memory where possible."""
    with TemporaryDirectory(prefix="allomfree-", dir=QUICK_DISK) as name:
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


@pytest.fixture
def joined(state: Path, clock: FakeClock) -> Iterator[Joined]:
    """Opens the state directory and joins a campaign, if one is given; closed after the test."""
    with ExitStack() as stack:

        def join(campaign: Manifest | None = None, **options: Any) -> Agent:
            agent = joined_agent(options.pop("directory", state), clock, campaign, **options)
            stack.callback(agent.store.close)
            return agent

        yield join


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    """One broker for all tests of this process; each test has a campaign of its own."""
    with TemporaryDirectory(dir=QUICK_DISK) as name, Nats(Path(name) / "nats") as running:
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


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Where a test may write a configuration file."""
    return tmp_path / "edge.toml"


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """The manifest file of a campaign whose first round is open now."""
    path = tmp_path / "asked.toml"
    path.write_text(manifest_text(slug=f"t-{os.urandom(4).hex()}"), encoding="utf-8")
    return path


@pytest.fixture
def join(cli: Cli, asked: Path, state: Path) -> Cli:
    """Runs `join` for that campaign, at a broker that is not there."""
    words = ("join", "--manifest", asked, "--broker", NOBODY, "--state-dir", state)
    return lambda *more, **options: cli(*words, *more, **options)


@pytest.fixture
def joined_state(join: Cli, state: Path) -> Path:
    """The state directory of a device that has joined that campaign."""
    result = join("--yes")
    assert result.exit_code == 0, result.stderr
    assert "This device will answer 'fuel', for life." in result.stdout
    return state
