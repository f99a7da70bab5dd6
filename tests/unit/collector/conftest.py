from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from collector.data_dir import DeviceKey
from collector.records import Campaign
from collector.store import Store
from collector.store.sqlite import SqliteStore
from tests.support.collector import FIRST, three_questions
from tests.support.command_line import cli, data, file, home, used

__all__ = ["cli", "data", "file", "home", "used"]

settings.register_profile("collector", derandomize=True, deadline=None, database=None)
settings.load_profile("collector")


@pytest.fixture
def key(tmp_path: Path) -> DeviceKey:
    return DeviceKey(tmp_path / "device.key")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store in a file, as other processes see it."""
    opened = SqliteStore(tmp_path / "collector.db")
    yield opened
    opened.close()


@pytest.fixture
def campaign(store: Store) -> Campaign:
    """An open campaign whose attributes have bodies of every kind."""
    return store.open_campaign(three_questions(), FIRST)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, where the tests may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
