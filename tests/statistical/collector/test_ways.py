"""Campaigns in every way of reporting, from wire bytes to histograms, against the truth."""

from __future__ import annotations

import random

import numpy as np
import pytest

from collector import ingest
from collector.device_key import DeviceKey
from collector.rounds.sealing import seal
from collector.store.memory import MemoryStore
from protocol_spec import Result
from tests.support.collector_fakes import FIRST, HOUR, open_campaigns
from tests.support.collector_ways import WAYS, Device, asked
from tests.support.protocol.statistics import LIMIT, binomial_z

pytestmark = pytest.mark.slow

CAMPAIGNS, DEVICES, ROUNDS = 60, 150, 2
SHARES = [0.5, 0.3, 0.2, 0.0]
QUESTION = '[[attributes]]\nname = "a"\nquestion = "?"\nvalues = ["x", "y", "z"]\n'


@pytest.fixture(scope="module", params=WAYS)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Result]:
    """The pooled result of each campaign; devices are drawn from a large fleet."""
    key = DeviceKey(tmp_path_factory.mktemp("key") / "device.key")
    chance = random.Random(WAYS.index(request.param))  # noqa: S311 - reproducible on purpose
    return [one_campaign(request.param, key, chance) for _ in range(CAMPAIGNS)]


def one_campaign(reporting: str, key: DeviceKey, chance: random.Random) -> Result:
    manifest = asked(reporting, count=ROUNDS, attributes=QUESTION)
    store = MemoryStore()
    campaign = store.open_campaign(manifest, FIRST)
    known = open_campaigns(campaign, key)
    fleet = [
        (
            Device(manifest, f"d-{chance.getrandbits(40)}", 0, entropy=chance.randbytes),
            chance.choices(range(4), SHARES)[0],
        )
        for _ in range(DEVICES)
    ]
    for number in range(ROUNDS):
        answering = fleet[number::ROUNDS] if reporting == "once" else fleet
        messages = [device.message(number, value) for device, value in answering]
        ingest.count(messages, store, known, FIRST + number * HOUR)
        seal(store, campaign, number, manifest.rounds.deadline(number))
    (pooled,) = store.results(campaign.id, 0, range(-1, 0))
    return pooled


def test_estimates_are_right_on_average(results: list[Result]) -> None:
    raw = np.array([result.raw for result in results])
    error = np.mean([np.hypot(r.privacy_error, r.sampling_error) for r in results], axis=0)
    z = (raw.mean(axis=0) - SHARES) / (error / np.sqrt(CAMPAIGNS))
    assert (np.abs(z) < LIMIT).all(), z
    spread = raw.std(axis=0, ddof=1) / error
    assert (np.abs(spread - 1) < LIMIT / np.sqrt(2 * CAMPAIGNS)).all(), spread


def test_intervals_hold(results: list[Result]) -> None:
    inside = [
        low <= f <= high
        for r in results
        for f, low, high in zip(SHARES, r.low, r.high, strict=True)
    ]
    every = [
        all(low <= f <= high for f, low, high in zip(SHARES, r.low_all, r.high_all))
        for r in results
    ]
    assert binomial_z(sum(inside), len(inside), 0.95) > -LIMIT
    assert binomial_z(sum(every), len(every), 0.95) > -LIMIT
