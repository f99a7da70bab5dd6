"""What the demo must have shown; each check says in words what it found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from collector.records import Campaign
from collector.store import Store
from demonstration.population import value
from protocol_spec import Outcome, as_drawn
from protocol_spec.estimation import estimate

# An honest run must not fail by chance: one in a million for all bars of a histogram at once.
CERTAIN = 1.0 - 1e-6


@dataclass(frozen=True, slots=True)
class Check:
    """One claim and whether it held."""

    ok: bool
    text: str


def truth(campaign: Campaign, drawn: dict[int, str]) -> list[np.ndarray]:
    """True frequencies of each attribute among the devices that drew it."""
    found = []
    for attribute in campaign.manifest.attributes:
        held = Counter(
            value(d, attribute.name) for d, name in drawn.items() if name == attribute.name
        )
        total = max(1, held.total())
        found.append(np.array([held[name] / total for name in attribute.values]))
    return found


def counted_once(store: Store, campaign: Campaign, drawn: dict[int, str]) -> list[Check]:
    """Every device exactly once in every round, also across the kill."""
    checks = []
    for number in range(campaign.manifest.rounds.count):
        counts = {i: t.n for i, t in store.tallies(campaign.id, number).items()}
        wanted = Counter(drawn.values())
        names = [a.name for a in campaign.manifest.attributes]
        right = all(counts.get(i, 0) == wanted[name] for i, name in enumerate(names))
        text = f"round {number}: {sum(counts.values())} of {len(drawn)} devices counted, each once"
        checks.append(Check(right, text))
    total = sum(store.outcomes().values())
    again = store.outcomes().get(Outcome.DUPLICATE, 0)
    text = (
        f"{total} messages received, one outcome each ({again} were resent and not counted again)"
    )
    checks.append(Check(total == store.received(), text))
    return checks


def intervals_hold(store: Store, campaign: Campaign, drawn: dict[int, str]) -> list[Check]:
    """Every true frequency inside its simultaneous interval, in every round."""
    checks = []
    for index, true in enumerate(truth(campaign, drawn)):
        name = campaign.manifest.attributes[index].name
        calibration = as_drawn(campaign.manifest.calibrations[index])
        inside = True
        for number in range(campaign.manifest.rounds.count):
            tally = store.tallies(campaign.id, number).get(index)
            if tally is None or tally.n == 0:
                inside = False
                continue
            made = estimate(tally.counts, tally.n, calibration)
            low, high = made.interval(CERTAIN, simultaneous=True, sampling=False)
            inside &= bool(((low - 1e-12 <= true) & (true <= high + 1e-12)).all())
        checks.append(Check(inside, f"{name}: every true frequency lies in its 99.9999 % interval"))
    return checks
