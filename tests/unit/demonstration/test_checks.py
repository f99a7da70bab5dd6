"""The demonstration's checks find what they are there to find."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.records import Campaign, Candidate
from collector.rounds.sealing import seal
from collector.store import Store
from demonstration.checks import counted_once, intervals_hold, truth
from demonstration.population import manifest, value
from protocol_spec import Randomiser

DEVICES = 300


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "data")


def collected(store: Store, *, missing: int = 0, lie: bool = False) -> Campaign:
    """One sealed round of real reports; `lie`: everybody reports another device's value."""
    made = manifest(DEVICES, rounds=1, period_seconds=10, grace_seconds=0, lead_seconds=-20)
    campaign = store.open_campaign(made, 0)
    candidates = [
        report(campaign, device, index, shift=7 if lie else 0)
        for device, index in enumerate(drawn_indices())
        if device >= missing
    ]
    store.commit(candidates, [])
    seal(store, campaign, 0, 0)
    return campaign


def drawn_indices() -> list[int]:
    return [device % 2 for device in range(DEVICES)]


def drawn(campaign: Campaign) -> dict[int, str]:
    names = [attribute.name for attribute in campaign.manifest.attributes]
    return {device: names[index] for device, index in enumerate(drawn_indices())}


def report(campaign: Campaign, device: int, index: int, *, shift: int) -> Candidate:
    attribute = campaign.manifest.attributes[index]
    held = (attribute.index_of(value(device, attribute.name)) + shift) % attribute.k
    entropy = random.Random(device).randbytes
    randomiser = Randomiser(campaign.manifest.calibrations[index], entropy)
    body = randomiser.report(randomiser.memoize(held))
    return Candidate(campaign.id, 0, device, index, 0, device, body)


def test_an_honest_round_passes(store: Store) -> None:
    campaign = collected(store)
    found = drawn(campaign)
    checks = counted_once(store, campaign, found) + intervals_hold(store, campaign, found)
    assert [check.text for check in checks if not check.ok] == []


def test_a_device_that_is_missing_is_noticed(store: Store) -> None:
    campaign = collected(store, missing=1)
    (first, *_) = counted_once(store, campaign, drawn(campaign))
    assert not first.ok
    assert "299 of 300" in first.text


def test_a_wrong_histogram_is_noticed(store: Store) -> None:
    campaign = collected(store, lie=True)
    checks = intervals_hold(store, campaign, drawn(campaign))
    assert not all(check.ok for check in checks)


def test_the_truth_is_of_the_devices_that_drew_the_attribute(store: Store) -> None:
    campaign = collected(store)
    for frequencies in truth(campaign, drawn(campaign)):
        assert frequencies.sum() == pytest.approx(1.0)
