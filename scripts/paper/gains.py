"""The authors' experiment: every device reports one attribute once, and the errors are averaged.

Claim: the error of each attribute has exactly the distribution that simulating every device would
give. A round is drawn from what its counts depend on: which values fell into the group
(multivariate hypergeometric), then how many reports support each value. That a device in one group
is missing from the others is left out; it changes no mean.

Four details come from the authors' published code and are not in the paper's text. The printed
gains need the first; without it they are rejected.

    estimates   negative ones are set to 0 and the rest divided by their sum; all 0 stays all 0
    groups      of fixed size, as equal as n and d allow, not drawn by each device for itself
    error       against the frequencies in the whole population, not in the group
    seeds       a run has the same groups whatever the protocol
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, geometric_mean
from textwrap import wrap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paper.printed import HALVES, REFERENCES, RUNS, Half
from paper.variance import table
from protocol_spec import ADAPTIVE, Calibration, Method, calibrate
from protocol_spec.estimation import project_to_simplex
from simulation.counts import one_round, sample_groups
from simulation.population import Dataset, load

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_STREAMS: Final = [(half.data_set, half.ratio) for half in HALVES]  # of random numbers


def clip_and_renormalise(raw: Array) -> Array:
    """The authors' post-processing. Where nothing is positive all frequencies become 0."""
    positive = np.maximum(raw, 0.0)
    total = positive.sum(axis=-1, keepdims=True)
    shares: Array = np.divide(positive, total, out=np.zeros_like(positive), where=total > 0)
    return shares


@dataclass(frozen=True, slots=True)
class Arm:
    """A protocol, its calibration, and the post-processing of its estimates."""

    protocol: str
    method: Method
    finish: Callable[[Array], Array]

    def calibrate(self, k: int, eps_inf: float, eps_1: float) -> Calibration:
        return _calibrated(self.protocol, k, eps_inf, eps_1, self.method)


def _unprocessed(raw: Array) -> Array:
    """The unbiased estimates that the paper's text describes."""
    return raw


@lru_cache(maxsize=1024)  # attributes of an experiment often have the same number of values
def _calibrated(protocol: str, k: int, eps_inf: float, eps_1: float, method: Method) -> Calibration:
    return calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1, method=method)


ARMS: Final[Mapping[str, Arm]] = {
    "L-SUE": Arm("L-SUE", "paper", clip_and_renormalise),
    "L-OUE": Arm("L-OUE", "paper", clip_and_renormalise),
    "L-OSUE": Arm("L-OSUE", "paper", clip_and_renormalise),
    "L-SOUE": Arm("L-SOUE", "paper", clip_and_renormalise),
    "ALLOMFREE": Arm(ADAPTIVE, "paper", clip_and_renormalise),
    "exact": Arm(ADAPTIVE, "exact", clip_and_renormalise),
    "exact + projection": Arm(ADAPTIVE, "exact", project_to_simplex),
    "L-SUE unprocessed": Arm("L-SUE", "paper", _unprocessed),
    "L-OUE unprocessed": Arm("L-OUE", "paper", _unprocessed),
    "ALLOMFREE unprocessed": Arm(ADAPTIVE, "paper", _unprocessed),
}
"""The paper's five, the two improvements, and what the paper's text without its code would give."""


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """One data set at one budget; `errors[arm][run]` is the paper's MSE_avg."""

    data_set: str
    ratio: str
    eps_inf: str
    errors: Mapping[str, Array]

    @property
    def runs(self) -> int:
        return self.errors["ALLOMFREE"].size


def mean_squared_errors(
    rng: np.random.Generator, data: Dataset, eps_inf: float, eps_1: float, runs: int
) -> dict[str, Array]:
    d = len(data.attributes)
    sizes = np.broadcast_to(group_sizes(data.n, d), (runs, d))
    drawn = sample_groups(rng, [attribute.counts for attribute in data.attributes], sizes)
    return average_errors(data, drawn, lambda group: estimates(rng, group, eps_inf, eps_1))


def average_errors(
    data: Dataset, drawn: Sequence[Counts], estimate: Callable[[Counts], Mapping[str, Array]]
) -> dict[str, Array]:
    """The mean over attributes of the mean squared error over values, from each attribute's group
    `drawn[a][run, value]` and every arm's estimates of it."""
    total = dict.fromkeys(ARMS, np.zeros(len(drawn[0])))
    for attribute, group in zip(data.attributes, drawn, strict=True):
        true = np.array(attribute.counts) / data.n
        for name, raw in estimate(group).items():
            off = ARMS[name].finish(raw) - true
            total[name] = total[name] + np.square(off).mean(axis=-1) / len(drawn)
    return total


def experiments(half: Half, *, runs: int, seed: int) -> Iterator[Experiment]:
    """One data set and ratio at every eps_inf; each has a random stream of its own."""
    data = load(half.data_set)
    stream = _STREAMS.index((half.data_set, half.ratio))
    for place, budget in enumerate(half.gains):
        rng, eps_inf = np.random.default_rng([seed, stream, place]), float(budget)
        errors = mean_squared_errors(rng, data, eps_inf, float(half.ratio) * eps_inf, runs)
        yield Experiment(half.data_set, half.ratio, budget, errors)


def group_sizes(n: int, d: int) -> list[int]:
    """n devices in d groups as equal as can be, the larger ones first."""
    return [n // d + (place < n % d) for place in range(d)]


def estimates(
    rng: np.random.Generator, group: Counts, eps_inf: float, eps_1: float
) -> dict[str, Array]:
    """Every arm's unbiased estimates of one attribute in every run.

    Arms with the same probabilities share one draw. So two that only differ in post-processing
    differ by that alone, and so do both calibrations of ALLOMFREE where both choose L-OSUE.
    """
    drawn: dict[tuple[str, float], Array] = {}
    found = {}
    for name, arm in ARMS.items():
        calibration = arm.calibrate(group.shape[-1], eps_inf, eps_1)
        key = calibration.protocol, calibration.p2
        if key not in drawn:
            supports = one_round(rng, calibration, group)
            size = group.sum(axis=-1, keepdims=True)
            drawn[key] = (supports / size - calibration.qs) / calibration.gap
        found[name] = drawn[key]
    return found


# --- measured gains against printed ones ---------------------------------------------------------

LARGEST_RMS_Z: Final = 1.5
"""Beyond this a half table does not agree with the printed one."""

IMPROVED: Final = ("exact", "exact + projection")


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
        return self.cells[0].ours.runs

    @property
    def rms_z(self) -> float:
        """Root mean square of all z: near 1 when only chance separates both experiments."""
        return math.sqrt(fmean(cell.z**2 for cell in self.cells))

    @property
    def rms_z_unprocessed(self) -> float:
        """The same if the unbiased estimates are taken as they are, as the paper's text says."""
        return math.sqrt(fmean(cell.unprocessed.z(cell.printed) ** 2 for cell in self.cells))

    @property
    def agrees(self) -> bool:
        return self.rms_z <= LARGEST_RMS_Z

    @property
    def improved(self) -> bool:
        """True when the exact calibration with the projection beats the paper's ALLOMFREE."""
        return self.projected < 1

    @property
    def heading(self) -> str:
        return f"{load(self.half.data_set).title}, eps_1 = {self.half.ratio} eps_inf"

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
    ran: dict[tuple[str, str], list[Experiment]] = {}
    for x in experiments:
        ran.setdefault((x.data_set, x.ratio), []).append(x)
    known = [half for half in halves if (half.data_set, half.ratio) in ran]
    return tuple(compare(half, ran[half.data_set, half.ratio]) for half in known)


def compare(half: Half, experiments: Sequence[Experiment]) -> Comparison:
    """One half table with the experiments at each of its budgets, in its order."""
    cells = []
    for (eps_inf, gains), experiment in zip(half.gains.items(), experiments, strict=True):
        for reference, printed in zip(REFERENCES, gains, strict=True):
            ours = measure(experiment, "ALLOMFREE", reference)
            text = measure(experiment, "ALLOMFREE unprocessed", f"{reference} unprocessed")
            exact, both = (measure(experiment, arm, reference).gain for arm in IMPROVED)
            cells.append(Cell(eps_inf, reference, printed, ours, text, exact, both))
    relative = (
        geometric_mean(
            float(x.errors[arm].mean() / x.errors["ALLOMFREE"].mean()) for x in experiments
        )
        for arm in IMPROVED
    )
    return Comparison(half, tuple(cells), *relative)


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


def _mean(measured: Sequence[Measured]) -> Measured:
    """Of gains measured independently of one another, as those at different budgets are."""
    sd = math.hypot(*(each.sd for each in measured)) / len(measured)
    return Measured(fmean(each.gain for each in measured), sd, measured[0].runs)


# --- as text, Markdown and JSON ------------------------------------------------------------------

LEGEND: Final = {
    "L-SUE, L-OUE": "the printed gain of ALLOMFREE over that protocol, in percent: 1 - MSE / MSE",
    "ours": "the same measured again with the authors' pipeline",
    "sd": f"standard deviation that the gain has in an experiment of {RUNS} runs, as the paper's",
    "z": "printed - ours, in standard deviations of that difference",
    "exact": "our gain when ALLOMFREE uses the exact calibration of L-GRR",
    "both": "our gain with the exact calibration and the projection on the simplex",
}
SUMMARY_LEGEND: Final = {
    "rms z": f"root mean square of the 16 z; {LARGEST_RMS_Z} or less counts as agreement",
    "rms z, text only": "the same if estimates are not clipped and renormalised: the paper's text",
    "error, exact": "MSE relative to the paper's ALLOMFREE, geometric mean over the eight budgets",
    "error, both": "the same with the projection too; below 1 is better than the paper",
}
_COLUMNS: Final = ("ours", "sd", "z", "exact", "both")


def as_lines(comparisons: Sequence[Comparison], seed: int, *, markdown: bool) -> list[str]:
    """For a terminal or for a document: what follows, the summary, and every half table."""
    lines = [f"Accuracy gains of ALLOMFREE from {comparisons[0].runs:,} runs, seed {seed}:", ""]
    lines += summary(comparisons, markdown=markdown)
    if not markdown:
        lines += ["", *(f"{name:<12} {meaning}" for name, meaning in LEGEND.items())]
    for comparison in comparisons:
        mark = "### " if markdown else ""
        note = load(comparison.half.data_set).note
        lines += ["", f"{mark}{comparison.heading}", "", *([note] if markdown else wrap(note, 98))]
        lines += ["", *table(_rows(comparison), markdown=markdown)]
    return lines


def summary(comparisons: Sequence[Comparison], *, markdown: bool = False) -> Iterator[str]:
    """What follows, one line for each half table, and what its columns mean."""
    item = "- " if markdown else ""
    yield from (f"{item}{line}" for line in _conclusions(comparisons))
    rows = [["data set", "eps_1/eps_inf", "rms z", "largest z", *list(SUMMARY_LEGEND)[1:]]]
    for c in comparisons:
        largest = max((cell.z for cell in c.cells), key=abs)
        scores = f"{c.rms_z:.2f}", f"{largest:z.1f}", f"{c.rms_z_unprocessed:.1f}"
        errors = f"{c.exact:.3f}", f"{c.projected:.3f}"
        rows.append([load(c.half.data_set).title, c.half.ratio, *scores, *errors])
    yield from ("", *table(rows, markdown=markdown), "")
    yield from (f"{item}{name}: {meaning}" for name, meaning in SUMMARY_LEGEND.items())


def _conclusions(comparisons: Sequence[Comparison]) -> Iterator[str]:
    count = len(comparisons)
    agree = sum(comparison.agrees for comparison in comparisons)
    better = sum(comparison.improved for comparison in comparisons)
    yield f"{agree} of {count} half tables agree with the paper's (rms z at most {LARGEST_RMS_Z})"
    yield f"{better} of {count} have less error than the paper's ALLOMFREE with exact + projection"
    means = [(half, half.mean(reference)) for half in comparisons for reference in REFERENCES]
    worst, mean = max(means, key=lambda pair: abs(pair[1].z))
    where = f"{worst.heading}, over {mean.reference}"
    yield f"of the {len(means)} printed means {where} is furthest from ours: z = {mean.z:z.1f}"


def _rows(comparison: Comparison) -> list[list[str]]:
    """Both columns of the paper's table, and their means."""
    rows = [["eps_inf", *(name for over in REFERENCES for name in (over, *_COLUMNS))]]
    cells = [*comparison.cells, *(comparison.mean(reference) for reference in REFERENCES)]
    for pair in zip(cells[::2], cells[1::2], strict=True):
        row = [pair[0].eps_inf]
        for c in pair:
            numbers = (c.ours.gain, c.ours.sd, c.z, c.exact, c.projected)
            row += [c.printed, *(f"{number:z.1f}" for number in numbers)]  # z: never "-0.0"
        rows.append(row)
    return rows


def as_json(comparisons: Sequence[Comparison], seed: int) -> str:
    """One object; gains are in percent and unrounded, printed ones are text."""
    halves = [
        {
            "data_set": comparison.half.data_set,
            "ratio": float(comparison.half.ratio),
            "label": comparison.half.label,
            "note": load(comparison.half.data_set).note,
            "rms_z": comparison.rms_z,
            "rms_z_text_only": comparison.rms_z_unprocessed,
            "relative_error": {"exact": comparison.exact, "both": comparison.projected},
            "cells": [_json_cell(cell) for cell in comparison.cells],
            "means": [_json_cell(comparison.mean(reference)) for reference in REFERENCES],
        }
        for comparison in comparisons
    ]
    how = {"runs": comparisons[0].runs, "seed": seed, "reproduced": reproduced(comparisons)}
    return json.dumps(how | {"halves": halves}, indent=2)


def _json_cell(cell: Cell) -> dict[str, Any]:
    return {
        "eps_inf": None if cell.eps_inf == "mean" else float(cell.eps_inf),
        "over": cell.reference,
        "printed": cell.printed,
        "ours": cell.ours.gain,
        "sd": cell.ours.sd,
        "z": cell.z,
        "exact": cell.exact,
        "both": cell.projected,
    }
