"""A campaign as counts alone: no device exists."""

from __future__ import annotations

from collections import Counter

import numpy as np

from protocol_spec import Manifest, Outcome, Way
from protocol_spec.ways import NestedWay, OnceWay
from simulation.collected import Progress, Simulated
from simulation.counted import Collected
from simulation.errors import SimulationError
from simulation.model.answers import Answers
from simulation.model.behaviour import Behaviour, liars_before
from simulation.model.counts import Counts
from simulation.model.levels import Levels
from simulation.model.memos import Memos, Round
from simulation.model.population import Weights, drifting

_STATISTICS = 2  # stream of random numbers


def as_statistics(
    manifest: Manifest,
    truth: tuple[Counts, ...],
    behaviour: Behaviour,
    *,
    rounds: int,
    seed: int,
    progress: Progress = lambda _: None,
    drift: tuple[Weights, ...] = (),
) -> Simulated:
    """Counts alone: no device exists. `progress` is called for every round of an attribute."""
    _check(manifest, behaviour)
    made = []
    for index, held in enumerate(truth):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STATISTICS, index)))
        target = drift[index] if drift else held / held.sum()
        counted = _Counted(rng, manifest, index, held, behaviour, target)
        made.append(counted.collect(rounds, progress))
    outcomes = tuple(
        Counter({Outcome.ACCEPTED: sum(int(c.n[t]) for c in made)}) for t in range(rounds)
    )
    return Simulated(manifest, rounds, tuple(made), outcomes)


def _check(manifest: Manifest, behaviour: Behaviour) -> None:
    for name in ("changes", "late", "duplicates"):
        possible = name == "changes" and manifest.reporting == "once"
        if getattr(behaviour, name) and not possible:
            raise SimulationError(
                f"--{name} needs single devices, which statistics do not have; use reports"
            )


class _Counted:
    """One attribute's fleet: the honest as numbers, and the dishonest beside them."""

    def __init__(
        self,
        rng: np.random.Generator,
        manifest: Manifest,
        index: int,
        held: Counts,
        behaviour: Behaviour,
        target: Weights,
    ) -> None:
        total = int(held.sum())
        self._liars, self._lie = behaviour.liars(index, total)
        edges = [0, *np.cumsum(held).tolist()]
        before = [liars_before(place, total, self._liars) for place in edges]
        self._lying = np.diff(before)
        self._count, self._held, self._target = manifest.rounds.count, held, target
        self._way = manifest.ways[index]
        self._fleet = _fleet(
            rng,
            self._way,
            held - self._lying,
            behaviour.missing(index, held.size),
            behaviour,
        )

    def collect(self, rounds: int, progress: Progress) -> Collected:
        """So many rounds."""
        made = Collected.empty(rounds, self._held.size, len(self._way.channels))
        for t in range(rounds):
            n, counts = self._round(t)
            made.n_by_channel[t], made.counts_by_channel[t] = n, counts
            channel = min(t, len(self._way.channels) - 1)
            made.n_by_channel[t, channel] += self._liars
            made.counts_by_channel[t, channel, self._lie] += self._liars
            made.truth[t] = self._truth()
            progress(1)
        told = self._fleet.participation
        made.participation[: min(told.size, rounds + 1)] = told[: rounds + 1]
        made.participation[rounds] += self._liars
        made.participation[0] = 0
        return made

    def _round(self, number: int) -> Round:
        if isinstance(self._fleet, Answers):
            start = self._held / self._held.sum()
            return self._fleet.round(drifting(start, self._target, number, self._count))
        return self._fleet.round()

    def _truth(self) -> Counts:
        return self._fleet.held() + self._lying if isinstance(self._fleet, Answers) else self._held


def _fleet(
    rng: np.random.Generator, way: Way, held: Counts, missing: Weights, behaviour: Behaviour
) -> Memos | Answers | Levels:
    if isinstance(way, OnceWay):
        rates = {"churn": behaviour.churn, "changes": behaviour.changes}
        return Answers(rng, way, held, dropout=missing, **rates)
    if isinstance(way, NestedWay):
        return Levels(rng, way, held, dropout=missing, churn=behaviour.churn)
    return Memos(rng, way.channels[0], held, dropout=missing, churn=behaviour.churn)
