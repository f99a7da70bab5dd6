"""What a collector has counted after a simulated campaign, what it would publish, and the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.records import Campaign, RoundSum, Tally
from collector.results.tables import COLUMNS, rows
from collector.rounds.results import pooled_result, round_result, window_result
from collector.store import Store
from protocol_spec import Manifest, Mechanism, Outcome, Result
from protocol_spec.estimation import (
    Estimate,
    estimate,
    estimate_levels,
    estimate_pooled,
    estimate_window,
)
from protocol_spec.mechanisms import Once
from simulation.counts import Counts


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """One attribute: counts of each round, who reported how often, and who held what.

    `n_by_channel[round, channel]`, `counts_by_channel[round, channel, v]` (`Mechanism.channels`);
    `truth[round, v]` over all devices of the attribute, heard or not;
    `participation[m]` devices were counted in m rounds; [0] is 0, for nobody heard of them.
    """

    n_by_channel: Counts
    counts_by_channel: Counts
    truth: Counts
    participation: Counts

    @classmethod
    def empty(cls, rounds: int, k: int, channels: int = 1) -> Collected:
        return cls(
            np.zeros((rounds, channels), dtype=np.int64),
            np.zeros((rounds, channels, k), dtype=np.int64),
            np.zeros((rounds, k), dtype=np.int64),
            np.zeros(rounds + 1, dtype=np.int64),
        )

    @property
    def n(self) -> Counts:
        total: Counts = self.n_by_channel.sum(axis=1)
        return total

    @property
    def counts(self) -> Counts:
        total: Counts = self.counts_by_channel.sum(axis=1)
        return total

    @property
    def fleet(self) -> int:
        """Devices of the attribute, heard or not; with churn, all that were heard."""
        return max(int(self.truth[0].sum()), int(self.participation.sum()))

    def participants(self) -> tuple[list[int], list[int]]:
        """Numbers of reports, and for each the number of devices that sent that many."""
        heard = [(m, number) for m, number in enumerate(self.participation.tolist()) if number]
        return [m for m, _ in heard], [number for _, number in heard]


# --- What a collector would publish of the counts of a simulated campaign.


Outcomes = Counter[Outcome]
Span = tuple[int, int]  # first and last round


def estimate_of_round(
    way: Mechanism, collected: Collected, number: int, fleet: int | None = None
) -> Estimate:
    """One round: all levels of nested reports together."""
    n, counts = collected.n_by_channel[number], collected.counts_by_channel[number]
    if len(way.channels) > 1:
        return estimate_levels(counts, n, way.channels, fleet=fleet)
    return estimate(counts[0], int(n[0]), way.channels[0], fleet=fleet)


def estimate_of_rounds(way: Mechanism, collected: Collected, fleet: int | None = None) -> Estimate:
    """All rounds: pooled, or added up, or the latest where that one contains the others."""
    heard = [t for t, n in enumerate(collected.n.tolist()) if n]
    if way.reporting == "nested":
        return estimate_of_round(way, collected, heard[-1], fleet)
    total, channel = collected.counts.sum(axis=0), way.channels[0]
    if way.reporting != "once":
        who = collected.participants()
        return estimate_pooled(total, *who, channel, weights="reports", fleet=fleet)
    if fleet is None:
        return estimate_of_window(way, collected, (heard[0], heard[-1]))
    answers = estimate(total, int(collected.n.sum()), channel)
    who = collected.participants()
    sampled = estimate_pooled(total, *who, channel, weights="reports", fleet=fleet)
    together = replace(answers.moments, dilution=sampled.moments.dilution)
    return replace(answers, moments=together)


def estimate_of_window(way: Mechanism, collected: Collected, span: Span) -> Estimate:
    """Some rounds of fresh answers, added up."""
    first, last = span
    n, counts = (
        table[first : last + 1, 0]
        for table in (collected.n_by_channel, collected.counts_by_channel)
    )
    each = way.each if isinstance(way, Once) else 1
    return estimate_window(counts, n, way.channels[0], each=each)


class Published:
    """The results of one attribute, made by the collector's own functions."""

    def __init__(self, manifest: Manifest, index: int, collected: Collected) -> None:
        self._index, self._collected = index, collected
        self._campaign = Campaign(0, manifest, manifest.created, None)
        self._way = manifest.mechanisms[index]

    def round(self, number: int, outcomes: Outcomes) -> Result:
        tally = self._tally(number, number)
        return round_result(self._campaign, number, self._index, tally, outcomes)

    def pooled(self, outcomes: Outcomes) -> Result | None:
        """Of all rounds together, of nested reports the latest; None before there is a report."""
        heard = [t for t, n in enumerate(self._collected.n.tolist()) if n]
        if not heard:
            return None
        first, who = heard[0], self._collected.participants()
        if self._way.reporting == "nested":
            heard = heard[-1:]
            first, who = heard[0], ([1], [int(self._collected.n[heard[0]])])
        total, last = self._tally(first, heard[-1]), heard[-1]
        rounds = len(heard)
        return pooled_result(
            self._campaign, self._index, rounds, total, who, outcomes, first=first, last=last
        )

    def window(self, first: int, last: int, outcomes: Outcomes) -> Result:
        """Of some rounds in which every answer was drawn afresh. Who answered more than one of
        them is not known here: sampling error is stated as if everybody had who may."""
        tally = self._tally(first, last)
        rounds = int((self._collected.n[first : last + 1] > 0).sum())
        most = min(self._campaign.manifest.rounds.each, max(rounds, 1))
        who = ([most], [-(-tally.n // most)]) if tally.n else ([], [])
        added = RoundSum(first, last, rounds, tally)
        return window_result(self._campaign, self._index, added, who, outcomes)

    def _tally(self, first: int, last: int) -> Tally:
        """As the collector keeps them: of levels, the number of reports before the counts."""
        n = self._collected.n_by_channel[first : last + 1].sum(axis=0)
        counts = self._collected.counts_by_channel[first : last + 1].sum(axis=0)
        if len(n) == 1:
            return Tally(int(n[0]), counts[0])
        return Tally(int(n.sum()), np.column_stack([n, counts]).reshape(-1))


# --- what a collector has after a simulated campaign, and the truth ------------------------------


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
        return list(self._each_result())

    def _each_result(self) -> Iterator[Result]:
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
        return Published(self.manifest, index, self.attributes[index])

    def rows(self) -> Iterator[dict[str, Any]]:
        """The collector's columns and two more: the true frequency, and how far the raw estimate
        is from it, in standard deviations."""
        campaign = Campaign(0, self.manifest, self.manifest.created, None)
        names = [attribute.name for attribute in self.manifest.attributes]
        for result in self._each_result():
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
        """The exact standard deviation about the truth, where participation does not depend on the
        value: the noise of the reporting devices, and their choice among all."""
        way, collected = self.manifest.mechanisms[index], self.attributes[index]
        if result.n == 0 or result.withheld:  # a collector keeps no participation of the latter
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
        way = campaign.manifest.mechanisms[index]
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
