"""A campaign as counts alone: no device exists."""

from __future__ import annotations

from collections import Counter

import numpy as np

from protocol_spec import Manifest, Outcome, as_drawn
from simulation.collected import Collected, Progress, Simulated
from simulation.errors import SimulationError
from simulation.model.behaviour import Behaviour, liars_before
from simulation.model.counts import Counts
from simulation.model.memos import Memos

_STATISTICS = 2  # stream of random numbers


def as_statistics(
    manifest: Manifest,
    truth: tuple[Counts, ...],
    behaviour: Behaviour,
    *,
    rounds: int,
    seed: int,
    progress: Progress = lambda _: None,
) -> Simulated:
    """Counts alone: no device exists. `progress` is called for every round of an attribute."""
    for name in ("changes", "late", "duplicates"):
        if getattr(behaviour, name):
            raise SimulationError(
                f"--{name} needs single devices, which statistics do not have; use reports"
            )
    made = []
    for index, held in enumerate(truth):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STATISTICS, index)))
        made.append(_statistics(rng, manifest, index, held, behaviour, rounds, progress))
    outcomes = tuple(
        Counter({Outcome.ACCEPTED: sum(int(c.n[t]) for c in made)}) for t in range(rounds)
    )
    return Simulated(manifest, rounds, tuple(made), outcomes)


def _statistics(
    rng: np.random.Generator,
    manifest: Manifest,
    index: int,
    held: Counts,
    behaviour: Behaviour,
    rounds: int,
    progress: Progress,
) -> Collected:
    total = int(held.sum())
    liars, lie = behaviour.liars(index, total)
    edges = [0, *np.cumsum(held).tolist()]
    lying = np.diff([liars_before(place, total, liars) for place in edges])
    fleet = Memos(
        rng,
        as_drawn(manifest.calibrations[index]),
        held - lying,
        dropout=behaviour.missing(index, held.size),
        churn=behaviour.churn,
    )
    made = Collected.empty(rounds, held.size)
    made.truth[:] = held
    for t in range(rounds):
        made.n[t], made.counts[t] = fleet.round()
        made.n[t] += liars
        made.counts[t, lie] += liars
        progress(1)
    made.participation[:] = fleet.participation
    made.participation[rounds] += liars
    made.participation[0] = 0
    return made
