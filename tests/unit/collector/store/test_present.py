"""I8: the key of reports in memory is what a dictionary would be, and never other than the file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import StorageFailure
from collector.records import Campaign
from collector.store import sqlite as module
from collector.store.sqlite import ABSENT, DeviceIndex, SqliteStore, attributes_of, place_of
from protocol_spec import Outcome
from tests.support.collector import FIRST, candidate, three_questions

devices = st.integers(0, 40) | st.integers(0, 2**63 - 1)


@given(st.lists(st.dictionaries(devices, st.integers(0, 127)) | devices, max_size=25))
def test_it_is_a_dictionary(acts: list[dict[int, int] | int]) -> None:
    """Batches of new devices with their attributes are added, and single devices removed."""
    present, model = DeviceIndex(), dict[int, tuple[int, int]]()
    places = 0
    for act in acts:
        if isinstance(act, int):
            present.remove(act)
            model.pop(act, None)
            continue
        new = {device: attribute for device, attribute in act.items() if device not in model}
        got = present.add(np.array([*new], np.int64), np.array([*new.values()], np.int64))
        assert got == range(places, places + len(new))
        model |= {d: (place, a) for (d, a), place in zip(new.items(), got)}
        places += len(new)
    asked = [*model, *range(45), 2**63 - 1]
    found = present.find(np.array(asked, np.int64))
    told = [
        None if e == ABSENT else (place_of(e), a)
        for e, a in zip(found.tolist(), attributes_of(found).tolist())
    ]
    assert told == [model.get(device) for device in asked]
    again = DeviceIndex((d, place << module.ATTRIBUTE_BITS | a) for d, (place, a) in model.items())
    assert again.find(np.array(asked, np.int64)).tolist() == found.tolist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "collector.db"


@pytest.fixture
def store(path: Path) -> SqliteStore:
    return SqliteStore(path)


@pytest.fixture
def campaign(store: SqliteStore) -> Campaign:
    return store.open_campaign(three_questions(), FIRST)


def test_what_another_connection_counted_is_a_repetition_here(
    store: SqliteStore, path: Path, campaign: Campaign
) -> None:
    other = SqliteStore(path)
    for first, second, device in ((store, other, 1), (other, store, 2), (store, other, 3)):
        assert list(first.commit([candidate(campaign, device)], [])) == [Outcome.ACCEPTED]
        assert list(second.commit([candidate(campaign, device)], [])) == [Outcome.DUPLICATE]
    assert list(store.commit([candidate(campaign, d) for d in (1, 2, 3)], [])) == (
        [Outcome.DUPLICATE] * 3
    )
    other.close()


def test_a_batch_that_failed_left_nothing_in_memory(path: Path) -> None:
    """A disk that is full at the very end: after the reports were inserted."""
    made: list[sqlite3.Connection] = []

    def connect(*place: object, **options: object) -> sqlite3.Connection:
        made.append(sqlite3.connect(*place, **options))  # type: ignore[call-overload]
        return made[0]

    store = SqliteStore(path, connect=connect)
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, 1)], [])
    made[0].execute("CREATE TEMP TRIGGER full BEFORE INSERT ON outcome_total "
                    "BEGIN SELECT raise(FAIL, 'disk full'); END")  # fmt: skip
    batch = [candidate(campaign, d) for d in range(1, 5)]
    with pytest.raises((StorageFailure, sqlite3.Error)):
        store.commit(batch, [])
    made[0].execute("DROP TRIGGER full")
    assert list(store.commit(batch, [])) == [Outcome.DUPLICATE] + [Outcome.ACCEPTED] * 3
    assert store.tallies(campaign.id, 0)[0].n == 4
