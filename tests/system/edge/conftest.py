from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from testbed.brokers import AS_OURSELVES, BROKERS, Broker, Mosquitto, Nats
from tests.support.harness import QUICK_DISK, need


@contextmanager
def started(name: str, directory: Path) -> Iterator[Broker]:
    """A real broker that keeps its sessions on the disk."""
    chosen = BROKERS[name](directory)
    if isinstance(chosen, Mosquitto):
        need("mosquitto")
        chosen.extra += f"{AS_OURSELVES}persistence true\npersistence_location {directory}/\n"
    with chosen as running:
        yield running


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own, in memory where possible."""
    with TemporaryDirectory(prefix="allomfree-", dir=QUICK_DISK) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def shared() -> Iterator[Path]:
    """A directory for what is started once."""
    with TemporaryDirectory(prefix="allomfree-", dir=QUICK_DISK) as name:
        yield Path(name)


@pytest.fixture(scope="session", params=sorted(BROKERS, reverse=True))
def broker(request: pytest.FixtureRequest, shared: Path) -> Iterator[Broker]:
    """Each of the real brokers, started once: every test has a campaign of its own."""
    with started(request.param, shared / request.param) as running:
        yield running


@pytest.fixture(params=sorted(BROKERS, reverse=True))
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Each of the real brokers, for a test that stops or kills it."""
    with started(request.param, tmp_path / "broker") as running:
        yield running


@pytest.fixture(scope="session")
def nats(shared: Path) -> Iterator[Nats]:
    """One for all tests: every test has a campaign of its own."""
    with Nats(shared / "plain-nats") as running:
        yield running


@pytest.fixture
def mosquitto(tmp_path: Path) -> Mosquitto:
    """mosquitto, not started yet."""
    need("mosquitto")
    return Mosquitto(tmp_path / "mosquitto")
