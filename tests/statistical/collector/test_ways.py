"""Campaigns in every way of reporting, from wire bytes to histograms, against the truth."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from collector import ingest
from collector.device_key import DeviceKey
from collector.rounds.sealing import seal
from collector.store.sqlite import SqliteStore
from protocol_spec import Manifest, Result
from tests.support.collector_fakes import FIRST, HOUR, open_campaigns
from tests.support.collector_ways import WAYS, Device, asked
from tests.support.places import QUICK_DISK
from tests.support.protocol.statistics import LIMIT, binomial_z

pytestmark = pytest.mark.slow

CAMPAIGNS, DEVICES, ROUNDS = 50, 120, 2
SHARES = [0.5, 0.3, 0.2, 0.0]
QUESTION = '[[attributes]]\nname = "a"\nquestion = "?"\nvalues = ["x", "y", "z"]\n'


def results(reporting: str, key: DeviceKey) -> list[Result]:
    """The pooled result of each campaign; devices are drawn from a large fleet."""
    chance = random.Random(WAYS.index(reporting))
    return [one_campaign(reporting, key, chance) for _ in range(CAMPAIGNS)]


def one_campaign(reporting: str, key: DeviceKey, chance: random.Random) -> Result:
    manifest = asked(reporting, count=ROUNDS, attributes=QUESTION)
    fleet = list(devices(manifest, chance))
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(dir=QUICK_DISK))
        store = stack.enter_context(closing(SqliteStore(Path(directory) / "collector.db")))
        campaign = store.open_campaign(manifest, FIRST)
        known = open_campaigns(campaign, key)
        for number in range(ROUNDS):
            answering = fleet[number::ROUNDS] if reporting == "once" else fleet
            messages = [device.message(number, value) for device, value in answering]
            ingest.count(messages, store, known, FIRST + number * HOUR)
            seal(store, campaign, number, manifest.rounds.deadline(number))
        (pooled,) = store.results(campaign.id, 0, range(-1, 0))
        return pooled


def devices(manifest: Manifest, chance: random.Random) -> Iterator[tuple[Device, int]]:
    """Devices and their values. Only codes are a device's own; all other draws are alike."""
    way = manifest.ways[0]
    shared = way.randomiser("any", chance.randbytes)
    for _ in range(DEVICES):
        name = f"d-{chance.getrandbits(40)}"
        mine = way.randomiser(name, chance.randbytes) if way.reporting == "hashed" else shared
        yield Device(manifest, name, 0, drawn=mine), chance.choices(range(4), SHARES)[0]


@pytest.mark.parametrize("reporting", WAYS)
def test_estimates_are_right_and_intervals_hold(reporting: str, tmp_path: Path) -> None:
    made = results(reporting, DeviceKey(tmp_path / "device.key"))
    check_errors(made)
    check_intervals(made)


def check_errors(made: list[Result]) -> None:
    """Right on average, and spread as they say."""
    raw = np.array([result.raw for result in made])
    error = np.mean([np.hypot(r.privacy_error, r.sampling_error) for r in made], axis=0)
    z = (raw.mean(axis=0) - SHARES) / (error / np.sqrt(CAMPAIGNS))
    assert (np.abs(z) < LIMIT).all(), z
    spread = raw.std(axis=0, ddof=1) / error
    assert (np.abs(spread - 1) < LIMIT / np.sqrt(2 * CAMPAIGNS)).all(), spread


def check_intervals(made: list[Result]) -> None:
    """One value at a time, and all at once."""
    rows = [zip(SHARES, r.low, r.high, strict=True) for r in made]
    inside = [low <= f <= high for row in rows for f, low, high in row]
    wide = [zip(SHARES, r.low_all, r.high_all, strict=True) for r in made]
    every = [all(low <= f <= high for f, low, high in row) for row in wide]
    assert binomial_z(sum(inside), len(inside), 0.95) > -LIMIT
    assert binomial_z(sum(every), len(every), 0.95) > -LIMIT
