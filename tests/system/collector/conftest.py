from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from testbed.brokers import Broker, Mosquitto
from tests.support.brokers import SharedBrokers, new_broker
from tests.support.collector_processes import Launcher

settings.register_profile("collector", derandomize=True, deadline=None, database=None)
settings.load_profile("collector")


@pytest.fixture(scope="session")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBrokers]:
    with SharedBrokers(tmp_path_factory.mktemp("brokers")) as running:
        yield running


@pytest.fixture(params=["nats", "mosquitto"])
def broker(request: pytest.FixtureRequest, shared_brokers: SharedBrokers) -> Broker:
    """Each of the real brokers in turn, shared with other tests."""
    return shared_brokers.get(request.param)


@pytest.fixture(params=["quick nats", "mosquitto"])
def quick_broker(request: pytest.FixtureRequest, shared_brokers: SharedBrokers) -> Broker:
    """The same, for tests that wait for a second delivery."""
    return shared_brokers.get(request.param)


@pytest.fixture
def quick_nats(shared_brokers: SharedBrokers) -> Broker:
    return shared_brokers.get("quick nats")


@pytest.fixture
def nats(shared_brokers: SharedBrokers) -> Broker:
    """NATS, shared with other tests."""
    return shared_brokers.get("nats")


@pytest.fixture(params=["quick nats", "mosquitto"])
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Each of the real brokers in turn, for a test that stops it."""
    with new_broker(request.param, tmp_path / "broker") as running:
        yield running


@pytest.fixture
def own_mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """mosquitto without persistence: it forgets when it is killed."""
    made = new_broker("mosquitto", tmp_path / "mosquitto")
    assert isinstance(made, Mosquitto)
    with made as running:
        yield running


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    """Starts collectors in processes of their own; what runs at the test's end is killed."""
    made = Launcher()
    with made.runs:
        yield made
