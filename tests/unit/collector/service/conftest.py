from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from collector.data_dir import DeviceKey
from collector.records import Campaign
from protocol_spec import Topics
from tests.support.collector import ServiceInMemory, Site, Workers, service_in_memory
from tests.support.databases import FullDisk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FullDisk]:
    with closing(FullDisk(tmp_path / "collector.db")) as opened:
        yield opened


@pytest.fixture
def work(store: FullDisk, campaign: Campaign, key: DeviceKey) -> Iterator[ServiceInMemory]:
    yield service_in_memory(store, key)
    logging.getLogger("allomfree").handlers = []


@pytest.fixture
def topics(campaign: Campaign) -> Topics:
    return Topics(campaign.name)


@pytest.fixture
def site(key: DeviceKey) -> Iterator[Site]:
    """Makes sites with several workers, and closes their stores."""
    with ExitStack() as stack:

        def make(**options: Any) -> Workers:
            return stack.enter_context(closing(Workers(key, **options)))

        yield make
