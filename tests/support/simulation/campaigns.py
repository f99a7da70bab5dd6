"""Campaigns and fleets for these tests: one attribute of L-GRR, one of L-OSUE."""

from __future__ import annotations

import numpy as np

from protocol_spec import Manifest
from simulation.model.behaviour import Behaviour
from simulation.model.fleet import Fleet
from tests.support.campaigns import manifest

FIRST = 1_800_000_000
FUEL = '[[attributes]]\nname = "fuel"\nquestion = "?"\nvalues = ["wood", "gas", "oil", "pump"]\n'


def hours(k: int = 20) -> str:
    values = ", ".join(f'"h{i}"' for i in range(k))
    return f'[[attributes]]\nname = "hour"\nquestion = "?"\nvalues = [{values}]\n'


def both(**options: object) -> Manifest:
    """L-GRR for fuel, L-OSUE for hour."""
    return manifest(**{"first": FIRST, "attributes": FUEL + hours(), **options})


def fleet(
    campaign: Manifest, devices: int = 400, *, seed: int = 1, rounds: int = 2, batch: int = 150,
    **behaviour: object,
) -> Fleet:  # fmt: skip
    """Half the devices ask for each attribute; more of them hold the first values."""
    truth = []
    for attribute in campaign.attributes:
        weights = 1.0 / np.arange(1, attribute.k + 1)
        counts = np.floor(devices // len(campaign.attributes) * weights / weights.sum())
        counts[0] += devices // len(campaign.attributes) - counts.sum()
        truth.append(counts.astype(np.int64))
    does = Behaviour(**behaviour)  # type: ignore[arg-type]
    return Fleet(campaign, tuple(truth), does, seed, rounds, batch)
