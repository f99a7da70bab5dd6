"""A whole batch is counted without one search for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from collector import ingest
from collector.data_dir import DeviceKey
from collector.ingest.batch import search_rarely
from collector.links import BATCH
from collector.store.sqlite import SqliteStore
from tests.support.collector import FIRST, message, open_campaigns, three_questions


@pytest.fixture
def rarely() -> Iterator[None]:
    """As in the service; other tests share this process."""
    usual = gc.get_threshold()
    search_rarely()
    yield
    gc.set_threshold(*usual)


@contextmanager
def searches() -> Iterator[list[str]]:
    """Searches that were begun, or ended."""
    gc.collect()
    found: list[str] = []

    def note(phase: str, _: object) -> None:
        found.append(phase)

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


@pytest.mark.usefixtures("rarely")
def test_a_batch_is_counted_without_a_search_for_garbage(tmp_path: Path, key: DeviceKey) -> None:
    asked = three_questions()
    with closing(SqliteStore(tmp_path / "db")) as store:
        known = open_campaigns(store.open_campaign(asked, FIRST), key)
        with searches() as found:
            batch = [message(asked, f"d{i}", body=b"\1") for i in range(BATCH)]
            counted = ingest.count(batch, store, known, FIRST + 1.0)
        assert counted.accepted == BATCH
        assert not found
