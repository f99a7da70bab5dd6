from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client import daemon as runner
from tests.support.brokers import AS_OURSELVES, BROKERS, Broker, Mosquitto, Nats
from tests.support.edge_processes.driver import Nursery
from tests.support.needs import need


@pytest.fixture(params=sorted(BROKERS, reverse=True))
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Each of the real brokers in turn, keeping its sessions on the disk."""
    chosen = BROKERS[request.param](tmp_path / "broker")
    if isinstance(chosen, Mosquitto):
        need("mosquitto")
        chosen.extra += f"{AS_OURSELVES}persistence true\npersistence_location {tmp_path}/broker/\n"
    with chosen as running:
        yield running


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    with Nats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def mosquitto(tmp_path: Path) -> Mosquitto:
    """mosquitto, not started yet."""
    need("mosquitto")
    return Mosquitto(tmp_path / "mosquitto")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path / "lives.log") as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent in this process that reconnects at once."""
    for pause in ("STEP", "RECONNECT", "RECONNECT_LONGEST"):
        monkeypatch.setattr(runner, pause, 0.005)


@pytest.fixture
def insistent(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent in this process that reconnects and resends at once."""
    monkeypatch.setattr(runner, "RESEND", 0.01)
