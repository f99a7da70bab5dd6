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
from collector.rounds.results import pooled_result, round_result
from collector.show.tables import COLUMNS, rows
from collector.store import Store
from protocol_spec import Manifest, Outcome, Result, as_drawn
from simulation.model.counts import Counts

TRUTH_COLUMNS = (*COLUMNS, "truth", "z")

Progress = Callable[[int], None]  # called with the number of reports or rounds done since


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """One attribute: counts of each round, who reported how often, and who held what.

    n[round], counts[round, v], truth[round, v] over all devices of the attribute, heard or not;
    participation[m] devices were counted in m rounds; [0] is 0, for nobody heard of them.
    """

    n: Counts
    counts: Counts
    truth: Counts
    participation: Counts

    @classmethod
    def empty(cls, rounds: int, k: int) -> Collected:
        """All zero, for a number of rounds and values."""
        table = np.zeros((rounds, k), dtype=np.int64)
        once = np.zeros(rounds, dtype=np.int64)
        return cls(once, table, table.copy(), np.zeros(rounds + 1, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """A simulated campaign: every attribute, and what became of every message."""

    manifest: Manifest
    rounds: int
    attributes: tuple[Collected, ...]
    outcomes: tuple[Counter[Outcome], ...]  # by round; late reports belong to no round
    late: int = 0
    published: tuple[Result, ...] | None = None  # where there was a real collector

    def results(self) -> list[Result]:
        """As a collector would publish them: of each attribute the pooled one, then each round."""
        if self.published is not None:
            return list(self.published)
        campaign = _campaign(self.manifest)
        everything = sum(self.outcomes, Counter({Outcome.LATE: self.late}))
        found = []
        for index, collected in enumerate(self.attributes):
            heard = collected.n > 0
            if heard.any():
                total = Tally(int(collected.n.sum()), collected.counts.sum(axis=0))
                who = _participation(collected)
                found.append(
                    pooled_result(campaign, index, int(heard.sum()), total, who, everything)
                )
            found += [
                round_result(campaign, t, index, Tally(int(n), counts), self.outcomes[t])
                for t, (n, counts) in enumerate(zip(collected.n, collected.counts))
            ]
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """The collector's columns and two more: the true frequency, and how far the raw estimate
        is from it, in standard deviations."""
        campaign = _campaign(self.manifest)
        names = [attribute.name for attribute in self.manifest.attributes]
        for result in self.results():
            index = names.index(result.attribute)
            truth = self.true_frequencies(index, result.round)
            errors = self._errors(index, result, truth)
            for row, f, error in zip(rows(campaign, [result]), truth.tolist(), errors.tolist()):
                shown = row["raw"] is not None and error > 0.0
                yield {**row, "truth": f, "z": (row["raw"] - f) / error if shown else None}

    def true_frequencies(self, index: int, number: int | None = None) -> npt.NDArray[np.float64]:
        """Among all devices that drew the attribute, in one round or on the average of all."""
        held = self.attributes[index].truth
        held = held.sum(axis=0) if number is None else held[number]
        return np.asarray(held / max(1, int(held.sum())), dtype=np.float64)

    def _errors(
        self, index: int, result: Result, truth: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """The exact standard deviation about the truth, where taking part tells nothing of the
        value: the noise of the devices heard, and their choice among all."""
        collected = self.attributes[index]
        reports, devices = np.arange(collected.participation.size), collected.participation
        if result.round is not None:
            reports, devices = np.array([1]), np.array([result.n])
        weight = reports / max(1, int((reports * devices).sum()))
        squares = float((weight**2 * devices).sum())
        calibration = as_drawn(self.manifest.calibrations[index])
        noise = [
            sum(
                w * w * d * calibration.device_variance(holds, int(m))
                for w, d, m in zip(weight, devices, reports)
                if d
            )
            for holds in (False, True)
        ]
        fleet = int(collected.truth[0].sum())
        unheard = max(0.0, squares - 1.0 / max(1, fleet)) * fleet / max(1, fleet - 1)
        variance = noise[0] + truth * (noise[1] - noise[0]) + truth * (1.0 - truth) * unheard
        return np.asarray(np.sqrt(variance), dtype=np.float64)


def from_store(store: Store, campaign: Campaign, rounds: int, truth: list[Counts]) -> Simulated:
    """What a real collector's store holds of a simulated campaign; `truth[a][round, v]`."""
    attributes = []
    for index, held in enumerate(truth):
        made = Collected.empty(rounds, campaign.manifest.attributes[index].k)
        for t in range(rounds):
            tally = store.tallies(campaign.id, t).get(index)
            if tally is not None and tally.counts.size == made.counts.shape[1]:
                made.n[t], made.counts[t] = tally.n, tally.counts
        made.truth[:] = held
        for m, devices in zip(*store.participation(campaign.id, index)):
            made.participation[m] = devices
        attributes.append(made)
    outcomes = tuple(Counter(store.outcomes(campaign.id, t)) for t in range(rounds))
    late = store.outcomes(campaign.id).get(Outcome.LATE, 0)
    published = tuple(store.results(campaign.id))
    return Simulated(campaign.manifest, rounds, tuple(attributes), outcomes, late, published)


def _participation(collected: Collected) -> tuple[list[int], list[int]]:
    devices = collected.participation.tolist()
    heard = [(m, number) for m, number in enumerate(devices) if number]
    return [m for m, _ in heard], [number for _, number in heard]


def _campaign(manifest: Manifest) -> Campaign:
    return Campaign(0, manifest, manifest.created, None)
