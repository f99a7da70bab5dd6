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

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import fmean, geometric_mean
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paper.variance import PRINTED, table
from protocol_spec import ADAPTIVE, Calibration, Method, calibrate
from protocol_spec.estimation import project_to_simplex
from simulation.counts import one_round, sample_groups
from simulation.population import NAMES, Dataset, load

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

RUNS: Final = 100  # every printed gain comes from errors averaged over this many runs
REFERENCES: Final = ("L-SUE", "L-OUE")  # what ALLOMFREE is compared with
LARGEST_RMS_Z: Final = 1.5  # beyond this a half table does not agree with the printed one


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """One data set in one of the printed tables: by eps_inf the gains over L-SUE and L-OUE; the
    last line is their "mean"."""

    data_set: str
    ratio: str
    printed: Mapping[str, Sequence[str]]

    @property
    def budgets(self) -> list[str]:
        return [name for name in self.printed if name != "mean"]


def _half(ratio: str, column: int) -> Half:
    lines = [line.split("|") for line in PRINTED["gains"][ratio].strip().splitlines()]
    printed = {groups[0].strip(): groups[1 + column].split() for groups in lines}
    return Half(NAMES[column], ratio, printed)


HALVES: Final = tuple(_half(ratio, i) for ratio in PRINTED["gains"] for i in range(len(NAMES)))


# --- the experiment ------------------------------------------------------------------------------


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


# The paper's five, the two improvements, and what the paper's text without its code would give.
ARMS: Final[Mapping[str, Arm]] = {
    **{p: Arm(p, "paper", clip_and_renormalise) for p in ("L-SUE", "L-OUE", "L-OSUE", "L-SOUE")},
    "ALLOMFREE": Arm(ADAPTIVE, "paper", clip_and_renormalise),
    "exact": Arm(ADAPTIVE, "exact", clip_and_renormalise),
    "exact + projection": Arm(ADAPTIVE, "exact", project_to_simplex),
    "L-SUE unprocessed": Arm("L-SUE", "paper", _unprocessed),
    "L-OUE unprocessed": Arm("L-OUE", "paper", _unprocessed),
    "ALLOMFREE unprocessed": Arm(ADAPTIVE, "paper", _unprocessed),
}
Errors = Mapping[str, Array]  # by arm, the paper's MSE_avg of each run


def experiments(half: Half, *, runs: int, seed: int) -> list[Errors]:
    """One data set and ratio at every eps_inf; each has a random stream of its own."""
    data, found = load(half.data_set), list[Errors]()
    stream = [(h.data_set, h.ratio) for h in HALVES].index((half.data_set, half.ratio))
    for place, eps_inf in enumerate(map(float, half.budgets)):
        rng = np.random.default_rng([seed, stream, place])
        found.append(mean_squared_errors(rng, data, eps_inf, float(half.ratio) * eps_inf, runs))
    return found


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


def measure(errors: Errors, arm: str, reference: str) -> Measured:
    """The gain of an arm over a reference; its deviation by the delta method for a ratio of means.

    Both have the same groups in one run, so what counts is how much error - ratio * error varies.
    """
    mine, others = errors[arm], errors[reference]
    ratio = mine.mean() / others.mean()
    spread = np.std(mine - ratio * others, ddof=1) / others.mean()
    return Measured(100 * float(1 - ratio), 100 * float(spread) / math.sqrt(RUNS), mine.size)


def _with_mean(measured: Sequence[Measured]) -> list[Measured]:
    """And the mean of gains measured independently of one another, as those of budgets are."""
    sd = math.hypot(*(each.sd for each in measured)) / len(measured)
    return [*measured, Measured(fmean(each.gain for each in measured), sd, measured[0].runs)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One printed gain and what was measured in its place, all in percent; `z_text` if estimates
    are taken as they are, `exact` and `both` with the improvements."""

    eps_inf: str
    over: str
    printed: str
    ours: float
    sd: float
    z: float
    z_text: float
    exact: float
    both: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One data set and ratio: the gains, and the errors relative to the paper's ALLOMFREE as
    geometric means over the budgets, below 1 is better."""

    half: Half
    runs: int
    cells: tuple[Cell, ...]
    means: tuple[Cell, ...]
    exact: float
    both: float

    @property
    def rms_z(self) -> float:
        """Root mean square of all z: near 1 when only chance separates both experiments."""
        return math.sqrt(fmean(cell.z**2 for cell in self.cells))

    @property
    def rms_z_text(self) -> float:
        """The same if the unbiased estimates are taken as they are, as the paper's text says."""
        return math.sqrt(fmean(cell.z_text**2 for cell in self.cells))

    @property
    def agrees(self) -> bool:
        return self.rms_z <= LARGEST_RMS_Z

    @property
    def improved(self) -> bool:
        """True when the exact calibration with the projection beats the paper's ALLOMFREE."""
        return self.both < 1

    def facts(self) -> dict[str, Any]:
        return {
            "data_set": self.half.data_set,
            "ratio": float(self.half.ratio),
            "note": load(self.half.data_set).note,
            "rms_z": self.rms_z,
            "rms_z_text_only": self.rms_z_text,
            "relative_error": {"exact": self.exact, "both": self.both},
            "cells": [asdict(cell) for cell in self.cells],
            "means": [asdict(cell) for cell in self.means],
        }


def compare(half: Half, ran: Sequence[Errors]) -> Comparison:
    """One half table with the errors at each of its budgets, in its order."""
    columns = []
    for place, over in enumerate(REFERENCES):
        ours, text, exact, both = (
            _with_mean([measure(errors, arm, reference) for errors in ran])
            for arm, reference in (
                ("ALLOMFREE", over),
                ("ALLOMFREE unprocessed", f"{over} unprocessed"),
                ("exact", over),
                ("exact + projection", over),
            )
        )
        columns.append(
            [
                Cell(
                    name, over, printed[place], mine.gain, mine.sd, mine.z(printed[place]),
                    other.z(printed[place]), one.gain, two.gain,
                )
                for (name, printed), mine, other, one, two in zip(
                    half.printed.items(), ours, text, exact, both, strict=True
                )
            ]
        )  # fmt: skip
    *cells, means = zip(*columns, strict=True)
    relative = (
        geometric_mean(float(x[arm].mean() / x["ALLOMFREE"].mean()) for x in ran)
        for arm in ("exact", "exact + projection")
    )
    flat = tuple(cell for pair in cells for cell in pair)
    return Comparison(half, ran[0]["ALLOMFREE"].size, flat, means, *relative)


def reproduced(comparisons: Iterable[Comparison]) -> bool:
    """True when every half table agrees with the printed one and is improved upon."""
    return all(comparison.agrees and comparison.improved for comparison in comparisons)


# --- in Markdown ---------------------------------------------------------------------------------

LEGEND: Final = {
    "rms z": f"root mean square of the 16 z; {LARGEST_RMS_Z} or less counts as agreement",
    "rms z, text only": "the same if estimates are not clipped and renormalised: the paper's text",
    "error, exact": "MSE relative to the paper's ALLOMFREE, geometric mean over the eight budgets",
    "error, both": "the same with the projection too; below 1 is better than the paper",
}


def as_lines(comparisons: Sequence[Comparison], seed: int, *, means: bool = False) -> list[str]:
    """The summary, and every printed gain, or only the printed means, with ours."""
    lines = [f"Accuracy gains of ALLOMFREE from {comparisons[0].runs:,} runs, seed {seed}:", ""]
    lines += summary(comparisons)
    for ratio in dict.fromkeys(c.half.ratio for c in comparisons):
        some = [c for c in comparisons if c.half.ratio == ratio]
        rows = [["eps_inf", *(f"{_title(c)} {over}" for c in some for over in REFERENCES)]]
        for place, name in list(enumerate(some[0].half.printed))[-1 if means else 0 :]:
            pairs = [(*c.cells, *c.means)[2 * place : 2 * place + 2] for c in some]
            rows.append([name, *(f"{g.printed} ({g.ours:z.1f})" for pair in pairs for g in pair)])
        lines += ["", f"### eps_1 = {ratio} eps_inf: gain printed (and ours), percent", ""]
        lines += table(rows)
    return lines


def _title(comparison: Comparison) -> str:
    return load(comparison.half.data_set).title


def summary(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """What follows, one line for each half table, and what its columns mean."""
    yield from (f"- {line}" for line in _conclusions(comparisons))
    rows = [["data set", "eps_1/eps_inf", "rms z", "largest z", *list(LEGEND)[1:]]]
    for c in comparisons:
        largest = max((cell.z for cell in c.cells), key=abs)
        scores = f"{c.rms_z:.2f}", f"{largest:z.1f}", f"{c.rms_z_text:.1f}"
        rows.append([_title(c), c.half.ratio, *scores, f"{c.exact:.3f}", f"{c.both:.3f}"])
    yield from ("", *table(rows), "")
    yield from (f"- {name}: {meaning}" for name, meaning in LEGEND.items())


def _conclusions(comparisons: Sequence[Comparison]) -> Iterator[str]:
    count = len(comparisons)
    agree = sum(comparison.agrees for comparison in comparisons)
    better = sum(comparison.improved for comparison in comparisons)
    yield f"{agree} of {count} half tables agree with the paper's (rms z at most {LARGEST_RMS_Z})"
    yield f"{better} of {count} have less error than the paper's ALLOMFREE with exact + projection"
    means = [(comparison, mean) for comparison in comparisons for mean in comparison.means]
    worst, mean = max(means, key=lambda pair: abs(pair[1].z))
    where = f"{_title(worst)}, eps_1 = {worst.half.ratio} eps_inf, over {mean.over}"
    yield f"of the {len(means)} printed means {where} is furthest from ours: z = {mean.z:z.1f}"
