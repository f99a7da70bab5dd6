"""The two depths that need no broker: the same fleet as statistics, or report by report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from protocol_spec import Manifest, Outcome, as_drawn
from simulation.behaviour import Behaviour, liars_before
from simulation.collected import Collected, Simulated
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.memos import Memos
from simulation.randomise import count
from simulation.sufficient import Counts

Progress = Callable[[int], None]

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
    """Counts alone: no device exists. `progress` hears of every round of an attribute."""
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


def as_reports(fleet: Fleet, progress: Progress = lambda _: None) -> Simulated:
    """Every report, counted at once. `progress` hears of every report."""
    formats = fleet.manifest.body_formats
    made = [Collected.empty(fleet.rounds, form.k) for form in formats]
    outcomes: tuple[Counter[Outcome], ...] = tuple(Counter() for _ in range(fleet.rounds))
    late = 0
    for batch in fleet.batches():
        mine = made[batch.attribute]
        for t in range(fleet.rounds):
            sent = batch.reports()
            counted = sent.bodies[~sent.late] if sent.late.any() else sent.bodies
            mine.n[t] += len(counted)
            mine.counts[t] += count(formats[batch.attribute], counted)
            mine.truth[t] += batch.held()
            outcomes[t][Outcome.ACCEPTED] += len(counted)
            outcomes[t][Outcome.DUPLICATE] += int((sent.twice & ~sent.late).sum())
            late += int(sent.late.sum() + (sent.twice & sent.late).sum())
            progress(len(sent.bodies))
        mine.participation[1:] += batch.participation()[1:]
    return Simulated(fleet.manifest, fleet.rounds, tuple(made), outcomes, late)
