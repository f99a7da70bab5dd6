from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.data_dir import DeviceKey
from collector.records import Campaign
from collector.store import Store
from protocol_spec import (
    Topics,
)
from tests.support.collector import (
    FIRST,
    ServiceInMemory,
    reports,
    service_in_memory,
    three_questions,
)
from tests.support.databases import Engine, FullDisk, SqliteEngine


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return SqliteEngine(tmp_path)


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    opened = engine.open()
    yield opened
    opened.close()


@pytest.fixture
def at_work(store: Store, campaign: Campaign, key: DeviceKey) -> Iterator[ServiceInMemory]:
    yield service_in_memory(store, key)
    logging.getLogger("allomfree").handlers = []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FullDisk]:
    """A store with an open campaign, whose disk may fill."""
    made = FullDisk(tmp_path / "disk.db")
    made.open_campaign(three_questions(), FIRST)
    yield made
    made.close()


@pytest.fixture
def on_disk(disk: FullDisk, key: DeviceKey) -> ServiceInMemory:
    return service_in_memory(disk, key)


@pytest.fixture
def topics(campaign: Campaign) -> Topics:
    return Topics(campaign.name)


@pytest.fixture
def sealed(at_work: ServiceInMemory, campaign: Campaign) -> ServiceInMemory:
    at_work.send(reports(campaign, range(20)))
    at_work.turns(1)
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    at_work.turns(6)
    return at_work
