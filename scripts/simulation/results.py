"""What a collector has counted after a simulated campaign, what it would publish, and the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.records import Campaign, RoundSum, Tally
from collector.results.tables import COLUMNS, rows
from collector.rounds.results import pooled_result, round_result, window_result
from collector.store import Store
from protocol_spec import Manifest, Mechanism, Outcome, Result
from protocol_spec.estimation import Estimate, estimate_reports, estimate_window
from simulation.counts import Counts

TRUTH_COLUMNS = (*COLUMNS, "truth", "z")
Frequencies = npt.NDArray[np.float64]
Outcomes = Counter[Outcome]
Progress = Callable[[int], None]  # called with the number of reports or rounds done since


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
    def empty(cls, rounds: int, mechanism: Mechanism) -> Collected:
        k, channels = mechanism.k, len(mechanism.channels)
        shapes = ((rounds, channels), (rounds, channels, k), (rounds, k), (rounds + 1,))
        return cls(*(np.zeros(shape, dtype=np.int64) for shape in shapes))

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

    def tally(self, first: int, last: int) -> Tally:
        """As the collector keeps them: of levels, the number of reports before the counts."""
        n = self.n_by_channel[first : last + 1].sum(axis=0)
        counts = self.counts_by_channel[first : last + 1].sum(axis=0)
        if len(n) == 1:
            return Tally(int(n[0]), counts[0])
        return Tally(int(n.sum()), np.column_stack([n, counts]).reshape(-1))

    def put(self, number: int, tally: Tally) -> None:
        """A round's counts, as the collector keeps them."""
        levels, k = self.counts_by_channel.shape[1:]
        if levels > 1 and tally.counts.size == levels * (k + 1):
            table = tally.counts.reshape(levels, k + 1)
            self.n_by_channel[number], self.counts_by_channel[number] = table[:, 0], table[:, 1:]
            return
        self.n_by_channel[number, 0] = tally.n
        if tally.counts.size == k:
            self.counts_by_channel[number, 0] = tally.counts


def estimate_of(mechanism: Mechanism, collected: Collected, first: int, last: int) -> Estimate:
    """Of one round, or of several: pooled, or added up where every answer was drawn afresh. Devices
    that were not heard count as not sampled, except in a window of a longer campaign."""
    n, counts = (
        table[first : last + 1] for table in (collected.n_by_channel, collected.counts_by_channel)
    )
    who = ([1], [int(n.sum())]) if first == last else collected.participants()
    window = first < last and mechanism.analysis.combined == "window"
    if window and n.sum() < collected.n.sum():
        each = getattr(mechanism, "each", 1)
        return estimate_window(counts[:, 0], n[:, 0], mechanism.channels[0], each=each)
    fleet = collected.fleet
    return estimate_reports(mechanism, counts.sum(axis=0), n.sum(axis=0), who, fleet=fleet)


class Published:
    """The results of one attribute, made by the collector's own functions."""

    def __init__(self, manifest: Manifest, index: int, collected: Collected) -> None:
        self._index, self._collected = index, collected
        self._campaign = Campaign(0, manifest, manifest.created, None)

    def round(self, number: int, outcomes: Outcomes) -> Result:
        tally = self._collected.tally(number, number)
        return round_result(self._campaign, number, self._index, tally, outcomes)

    def pooled(self, outcomes: Outcomes) -> Result | None:
        """Of all rounds, or of the latest where only that counts; None before there is a report."""
        heard = [t for t, n in enumerate(self._collected.n.tolist()) if n]
        if not heard:
            return None
        who = self._collected.participants()
        if self._campaign.manifest.mechanisms[0].analysis.combined == "latest":
            heard = heard[-1:]
            who = [1], [int(self._collected.n[heard[0]])]
        first, last = heard[0], heard[-1]
        total, rounds = self._collected.tally(first, last), len(heard)
        return pooled_result(
            self._campaign, self._index, rounds, total, who, outcomes, first=first, last=last
        )

    def window(self, first: int, last: int, outcomes: Outcomes) -> Result:
        """Of some rounds in which every answer was drawn afresh. Who answered more than one of
        them is not known here: sampling error is stated as if everybody had who may."""
        tally = self._collected.tally(first, last)
        rounds = int((self._collected.n[first : last + 1] > 0).sum())
        most = min(self._campaign.manifest.rounds.each, max(rounds, 1))
        who = ([most], [-(-tally.n // most)]) if tally.n else ([], [])
        added = RoundSum(first, last, rounds, tally)
        return window_result(self._campaign, self._index, added, who, outcomes)


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """A simulated campaign: every attribute, and what became of every message."""

    manifest: Manifest
    rounds: int
    attributes: tuple[Collected, ...]
    outcomes: tuple[Outcomes, ...]  # by round; late reports belong to no round
    late: int = 0
    stored: tuple[Result, ...] | None = None  # where there was a real collector

    def results_of(self, index: int) -> Published:
        return Published(self.manifest, index, self.attributes[index])

    def results(self) -> Iterator[Result]:
        """As a collector would publish them: of each attribute the pooled one, then each round."""
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

    def rows(self) -> Iterator[dict[str, Any]]:
        """The collector's columns and two more: the true frequency, and how far the raw estimate
        is from it, in standard deviations."""
        campaign = Campaign(0, self.manifest, self.manifest.created, None)
        names = [attribute.name for attribute in self.manifest.attributes]
        for result in self.results():
            index = names.index(result.attribute)
            first, last = result.first or 0, result.last or 0
            if result.round is not None:
                first = last = result.round
            truth = self.true_frequencies(index, first, last)
            errors = self._errors(index, result, first, last, truth)
            for row, f, error in zip(rows(campaign, [result]), truth.tolist(), errors.tolist()):
                known = row["raw"] is not None and error > 0.0
                yield {**row, "truth": f, "z": (row["raw"] - f) / error if known else None}

    def true_frequencies(self, index: int, first: int = 0, last: int = -1) -> Frequencies:
        """Among all devices that drew the attribute, on the average of some rounds or of all."""
        table = self.attributes[index].truth
        held = table[first : last + 1 or None].sum(axis=0)
        return np.asarray(held / max(1, int(held.sum())), dtype=np.float64)

    def _errors(
        self, index: int, result: Result, first: int, last: int, truth: Frequencies
    ) -> Frequencies:
        """The exact standard deviation about the truth, where participation does not depend on the
        value: the noise of the reporting devices, and their choice among all."""
        if result.n == 0 or result.withheld:  # a collector keeps no participation of the latter
            return np.zeros_like(truth)
        mechanism, collected = self.manifest.mechanisms[index], self.attributes[index]
        made = estimate_of(mechanism, collected, first, last)
        return np.sqrt(made.moments.variance(truth))


def from_store(store: Store, campaign: Campaign, rounds: int, truth: list[Counts]) -> Simulated:
    """What a real collector's store holds of a simulated campaign; `truth[a][round, v]`."""
    attributes = []
    for index, held in enumerate(truth):
        made = Collected.empty(rounds, campaign.manifest.mechanisms[index])
        for t in range(rounds):
            tally = store.tallies(campaign.id, t).get(index)
            if tally is not None:
                made.put(t, tally)
        made.truth[:] = held
        for m, devices in zip(*store.participation(campaign.id, index)):
            made.participation[m] = devices
        attributes.append(made)
    outcomes = tuple(Counter(store.outcomes(campaign.id, t)) for t in range(rounds))
    late = store.outcomes(campaign.id).get(Outcome.LATE, 0)
    stored = tuple(store.results(campaign.id))
    return Simulated(campaign.manifest, rounds, tuple(attributes), outcomes, late, stored)
