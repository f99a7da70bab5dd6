"""The paper's accuracy gains measured again, each compared with what was printed.

Claim: with the authors' pipeline every half table agrees with the printed one within the noise of
an experiment of 100 runs, which is what the paper averaged. The same gain with the exact
calibration, and with that and the projection on the simplex, shows what the paper leaves behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean
from typing import Final

import numpy as np

from paper.pipeline import Experiment
from paper.printed_gains import HALVES, REFERENCES, RUNS, Half

LARGEST_RMS_Z: Final = 1.5
"""Beyond this a half table does not agree with the printed one."""

EXACT: Final = "exact"
PROJECTED: Final = "exact + projection"


@dataclass(frozen=True, slots=True)
class Measured:
    """A gain in percent over `runs` runs, and the standard deviation that 100 runs would have."""

    gain: float
    sd: float
    runs: int

    def z(self, printed: str) -> float:
        """The printed gain minus this one, in standard deviations of that difference.

        Both experiments are noisy: the paper's of 100 runs, and this one.
        """
        return (float(printed) - self.gain) / (self.sd * math.sqrt(1 + RUNS / self.runs))


@dataclass(frozen=True, slots=True)
class Cell:
    """One printed gain and what was measured in its place; `eps_inf` is "mean" for the mean."""

    eps_inf: str
    reference: str
    printed: str
    ours: Measured
    unprocessed: Measured
    exact: float
    projected: float

    @property
    def z(self) -> float:
        """How far the printed gain lies from ours."""
        return self.ours.z(self.printed)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One data set and ratio: 16 gains, and the errors relative to the paper's ALLOMFREE.

    `exact` and `projected` are geometric means over the budgets: below 1 is better.
    """

    half: Half
    cells: tuple[Cell, ...]
    exact: float
    projected: float

    @property
    def runs(self) -> int:
        """Runs behind each of our gains."""
        return self.cells[0].ours.runs

    @property
    def rms_z(self) -> float:
        """Root mean square of all z: near 1 when only chance separates both experiments."""
        return _rms(cell.z for cell in self.cells)

    @property
    def largest_z(self) -> float:
        """The z furthest from 0."""
        return max((cell.z for cell in self.cells), key=abs)

    @property
    def rms_z_unprocessed(self) -> float:
        """The same if the unbiased estimates are taken as they are, as the paper's text says."""
        return _rms(cell.unprocessed.z(cell.printed) for cell in self.cells)

    @property
    def agrees(self) -> bool:
        """True when chance explains the differences."""
        return self.rms_z <= LARGEST_RMS_Z

    @property
    def improved(self) -> bool:
        """True when the exact calibration with the projection beats the paper's ALLOMFREE."""
        return self.projected < 1

    def mean(self, reference: str) -> Cell:
        """The last line of the printed table."""
        cells = [cell for cell in self.cells if cell.reference == reference]
        return Cell(
            "mean",
            reference,
            self.half.means[REFERENCES.index(reference)],
            _mean([cell.ours for cell in cells]),
            _mean([cell.unprocessed for cell in cells]),
            fmean(cell.exact for cell in cells),
            fmean(cell.projected for cell in cells),
        )


def compare_all(
    experiments: Iterable[Experiment], halves: Iterable[Half] = HALVES
) -> tuple[Comparison, ...]:
    """Every half table that the experiments belong to, in the order of the paper."""
    ran = list(experiments)
    together = [
        (half, [x for x in ran if (x.data_set, x.ratio) == (half.data_set, half.ratio)])
        for half in halves
    ]
    return tuple(compare(half, found) for half, found in together if found)


def compare(half: Half, experiments: Sequence[Experiment]) -> Comparison:
    """One half table with the experiments at each of its budgets, in its order."""
    cells = tuple(
        _cell(experiment, reference, printed)
        for row, experiment in zip(half.rows, experiments, strict=True)
        for reference, printed in zip(REFERENCES, row.gains, strict=True)
    )
    exact, projected = (
        geometric_mean(_relative(experiment, arm) for experiment in experiments)
        for arm in (EXACT, PROJECTED)
    )
    return Comparison(half, cells, exact, projected)


def reproduced(comparisons: Iterable[Comparison]) -> bool:
    """True when every half table agrees with the printed one and is improved upon."""
    return all(comparison.agrees and comparison.improved for comparison in comparisons)


def measure(experiment: Experiment, arm: str, reference: str) -> Measured:
    """The gain of an arm over a reference; its deviation by the delta method for a ratio of means.

    Both have the same groups in one run, so what counts is how much error - ratio * error varies.
    """
    errors, others = experiment.errors[arm], experiment.errors[reference]
    ratio = errors.mean() / others.mean()
    spread = np.std(errors - ratio * others, ddof=1) / others.mean()
    return Measured(100 * float(1 - ratio), 100 * float(spread) / math.sqrt(RUNS), errors.size)


def _cell(experiment: Experiment, reference: str, printed: str) -> Cell:
    return Cell(
        experiment.eps_inf,
        reference,
        printed,
        measure(experiment, "ALLOMFREE", reference),
        measure(experiment, "ALLOMFREE unprocessed", f"{reference} unprocessed"),
        measure(experiment, EXACT, reference).gain,
        measure(experiment, PROJECTED, reference).gain,
    )


def _relative(experiment: Experiment, arm: str) -> float:
    errors = experiment.errors
    return float(errors[arm].mean() / errors["ALLOMFREE"].mean())


def _mean(measured: Sequence[Measured]) -> Measured:
    """Of gains measured independently of one another, as those at different budgets are."""
    return Measured(
        fmean(each.gain for each in measured),
        math.hypot(*(each.sd for each in measured)) / len(measured),
        measured[0].runs,
    )


def _rms(values: Iterable[float]) -> float:
    return math.sqrt(fmean(value * value for value in values))
