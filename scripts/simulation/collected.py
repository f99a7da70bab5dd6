"""What a collector has after a simulated campaign, and what only the simulation knows: the truth.

Estimates come from the collector's own functions; here is only the comparison with the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.records import Campaign, Tally
from collector.results.tables import COLUMNS, rows
from collector.store import Store
from protocol_spec import Manifest, Outcome, Result
from simulation.counted import Collected
from simulation.model.counts import Counts
from simulation.published import (
    Published,
    estimate_of_round,
    estimate_of_rounds,
    estimate_of_window,
)

# `first` and `last` are the rounds that a result is about; stated twice, a column stands once.
TRUTH_COLUMNS = (*COLUMNS, "truth", "z")

Progress = Callable[[int], None]  # called with the number of reports or rounds done since


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """A simulated campaign: every attribute, and what became of every message."""

    manifest: Manifest
    rounds: int
    attributes: tuple[Collected, ...]
    outcomes: tuple[Counter[Outcome], ...]  # by round; late reports belong to no round
    late: int = 0
    stored: tuple[Result, ...] | None = None  # where there was a real collector

    def results(self) -> list[Result]:
        """As a collector would publish them: of each attribute the pooled one, then each round."""
        return list(self._one_by_one())

    def _one_by_one(self) -> Iterator[Result]:
        if self.stored is not None:
            yield from self.stored
            return
        everything = sum(self.outcomes, Counter({Outcome.LATE: self.late}))
        for index in range(len(self.attributes)):
            made = self.results_of(index)
            pooled = made.pooled(everything)
            if pooled is not None:
                yield pooled
            for t in range(self.rounds):
                yield made.round(t, self.outcomes[t])

    def results_of(self, index: int) -> Published:
        """What is published of one attribute."""
        return Published(self.manifest, index, self.attributes[index])

    def rows(self) -> Iterator[dict[str, Any]]:
        """The collector's columns and two more: the true frequency, and how far the raw estimate
        is from it, in standard deviations."""
        campaign = _campaign(self.manifest)
        names = [attribute.name for attribute in self.manifest.attributes]
        for result in self._one_by_one():
            index = names.index(result.attribute)
            truth = self._truth_of(index, result)
            errors = self._errors(index, result, truth)
            for row, f, error in zip(rows(campaign, [result]), truth.tolist(), errors.tolist()):
                shown = row["raw"] is not None and error > 0.0
                z = (row["raw"] - f) / error if shown else None
                yield {**row, "truth": f, "z": z}

    def true_frequencies(self, index: int, number: int | None = None) -> npt.NDArray[np.float64]:
        """Among all devices that drew the attribute, in one round or on the average of all."""
        held = self.attributes[index].truth
        held = held.sum(axis=0) if number is None else held[number]
        return np.asarray(held / max(1, int(held.sum())), dtype=np.float64)

    def _truth_of(self, index: int, result: Result) -> npt.NDArray[np.float64]:
        """In the rounds that the result is about."""
        if result.round is not None:
            return self.true_frequencies(index, result.round)
        held = self.attributes[index].truth[result.first : result.last + 1].sum(axis=0)
        return np.asarray(held / max(1, int(held.sum())), dtype=np.float64)

    def _errors(
        self, index: int, result: Result, truth: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """The exact standard deviation about the truth, where taking part tells nothing of the
        value: the noise of the devices heard, and their choice among all."""
        way, collected = self.manifest.ways[index], self.attributes[index]
        if result.n == 0:
            return np.zeros_like(truth)
        if result.round is not None:
            made = estimate_of_round(way, collected, result.round, collected.fleet)
        elif way.reporting == "once" and result.n < collected.n.sum():
            made = estimate_of_window(way, collected, (result.first or 0, result.last or 0))
        else:
            made = estimate_of_rounds(way, collected, collected.fleet)
        return np.sqrt(made.moments.variance(truth))


def from_store(store: Store, campaign: Campaign, rounds: int, truth: list[Counts]) -> Simulated:
    """What a real collector's store holds of a simulated campaign; `truth[a][round, v]`."""
    attributes = []
    for index, held in enumerate(truth):
        way = campaign.manifest.ways[index]
        made = Collected.empty(rounds, way.k, len(way.channels))
        for t in range(rounds):
            tally = store.tallies(campaign.id, t).get(index)
            if tally is not None:
                _put(made, t, tally)
        made.truth[:] = held
        for m, devices in zip(*store.participation(campaign.id, index)):
            made.participation[m] = devices
        attributes.append(made)
    outcomes = tuple(Counter(store.outcomes(campaign.id, t)) for t in range(rounds))
    late = store.outcomes(campaign.id).get(Outcome.LATE, 0)
    stored = tuple(store.results(campaign.id))
    return Simulated(campaign.manifest, rounds, tuple(attributes), outcomes, late, stored)


def _put(made: Collected, number: int, tally: Tally) -> None:
    """A round's counts: by value, or level after level with the number of reports before each."""
    levels, k = made.counts_by_channel.shape[1:]
    if levels > 1 and tally.counts.size == levels * (k + 1):
        table = tally.counts.reshape(levels, k + 1)
        made.n_by_channel[number], made.counts_by_channel[number] = table[:, 0], table[:, 1:]
    else:
        made.n_by_channel[number, 0] = tally.n
        if tally.counts.size == k:
            made.counts_by_channel[number, 0] = tally.counts


def _campaign(manifest: Manifest) -> Campaign:
    return Campaign(0, manifest, manifest.created, None)
