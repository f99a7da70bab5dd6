from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.brokers import Broker, Mosquitto, Nats
from tests.support.collector_processes.driver import Nursery
from tests.support.needs import need

settings.register_profile("collector", derandomize=True, deadline=None, database=None)
settings.load_profile("collector")


class QuickNats(Nats):
    """Delivers again after a second, not half a minute, what a dead connection left."""

    listener = 'ack_wait: "1s"'


@pytest.fixture(params=["nats", "mosquitto"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Each of the real brokers in turn."""
    with _made(request.param, tmp_path, Nats) as running:
        yield running


@pytest.fixture(params=["nats", "mosquitto"])
def quick_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """The same, for tests that wait for a second delivery."""
    with _made(request.param, tmp_path, QuickNats) as running:
        yield running


def _made(name: str, place: Path, kind: type[Nats]) -> Broker:
    if name == "mosquitto":
        need("mosquitto")
    return Mosquitto(place / "broker") if name == "mosquitto" else kind(place / "broker")


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    with Nats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def quick_nats(tmp_path: Path) -> Iterator[Nats]:
    with QuickNats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """mosquitto without persistence: it forgets when it is killed."""
    need("mosquitto")
    with Mosquitto(tmp_path / "mosquitto") as running:
        yield running


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("lives") / "log") as running:
        yield running
