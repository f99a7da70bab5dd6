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
from itertools import chain
from statistics import fmean, geometric_mean
from textwrap import wrap
from typing import Final

import numpy as np
import numpy.typing as npt

from paper.printed import HALVES, REFERENCES, RUNS, Half
from protocol_spec import ADAPTIVE, Calibration, Method, calibrate
from protocol_spec.estimation import project_to_simplex
from simulation.counts import one_round, sample_groups
from simulation.population import Dataset, load

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Measure = Callable[[np.random.Generator, Dataset, float, float, int], Mapping[str, Array]]

_STREAMS: Final = [(half.data_set, half.ratio) for half in HALVES]  # of random numbers


def clip_and_renormalise(raw: Array) -> Array:
    """The authors' post-processing. Where nothing is positive all frequencies become 0."""
    positive = np.maximum(raw, 0.0)
    total = positive.sum(axis=-1, keepdims=True)
    shares: Array = np.divide(positive, total, out=np.zeros_like(positive), where=total > 0)
    return shares


def unprocessed(raw: Array) -> Array:
    """The unbiased estimates that the paper's text describes."""
    return raw


@dataclass(frozen=True, slots=True)
class Arm:
    """A protocol, its calibration, and the post-processing of its estimates."""

    protocol: str
    method: Method
    finish: Callable[[Array], Array]

    def calibrate(self, k: int, eps_inf: float, eps_1: float) -> Calibration:
        return _calibrated(self.protocol, k, eps_inf, eps_1, self.method)


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
    "L-SUE unprocessed": Arm("L-SUE", "paper", unprocessed),
    "L-OUE unprocessed": Arm("L-OUE", "paper", unprocessed),
    "ALLOMFREE unprocessed": Arm(ADAPTIVE, "paper", unprocessed),
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


def experiments(
    half: Half, *, runs: int, seed: int, measure: Measure = mean_squared_errors
) -> Iterator[Experiment]:
    """One data set and ratio at every eps_inf; each has a random stream of its own."""
    data = load(half.data_set)
    stream = _STREAMS.index((half.data_set, half.ratio))
    for place, row in enumerate(half.rows):
        rng = np.random.default_rng([seed, stream, place])
        eps_inf = float(row.eps_inf)
        errors = measure(rng, data, eps_inf, float(half.ratio) * eps_inf, runs)
        yield Experiment(half.data_set, half.ratio, row.eps_inf, errors)


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
            drawn[key] = _unbiased(one_round(rng, calibration, group), group, calibration)
        found[name] = drawn[key]
    return found


def _unbiased(supports: Counts, group: Counts, calibration: Calibration) -> Array:
    size = group.sum(axis=-1, keepdims=True)
    estimates: Array = (supports / size - calibration.qs) / calibration.gap
    return estimates


# --- measured gains against printed ones ---------------------------------------------------------

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
        return _rms(cell.z for cell in self.cells)

    @property
    def largest_z(self) -> float:
        return max((cell.z for cell in self.cells), key=abs)

    @property
    def rms_z_unprocessed(self) -> float:
        """The same if the unbiased estimates are taken as they are, as the paper's text says."""
        return _rms(cell.unprocessed.z(cell.printed) for cell in self.cells)

    @property
    def agrees(self) -> bool:
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


# --- as text, Markdown and JSON ------------------------------------------------------------------

_COLUMNS: Final = ("printed", "ours", "sd", "z", "exact", "both")
_HEADER: Final = ("eps_inf", *_COLUMNS, *_COLUMNS)
_FIELD: Final = "{:>7} {:>6} {:>5} {:>5} {:>6} {:>6}"
_LINE: Final = "  {:<7}  " + _FIELD + "   " + _FIELD

LEGEND: Final = {
    "printed": "the gain in the paper, in percent: 1 - MSE of ALLOMFREE / MSE of the other",
    "ours": "the same measured again with the authors' pipeline",
    "sd": f"standard deviation that the gain has in an experiment of {RUNS} runs, as the paper's",
    "z": "printed - ours, in standard deviations of that difference",
    "exact": "our gain when ALLOMFREE uses the exact calibration of L-GRR",
    "both": "our gain with the exact calibration and the projection on the simplex",
}

_SUMMARY: Final = (
    "data set",
    "eps_1/eps_inf",
    "rms z",
    "largest z",
    "rms z, text only",
    "error, exact",
    "error, both",
)
_SUMMARY_LINE: Final = "{:<13}  {:>13}  {:>5}  {:>9}  {:>16}  {:>12}  {:>11}"
SUMMARY_LEGEND: Final = {
    "rms z": f"root mean square of the 16 z; {LARGEST_RMS_Z} or less counts as agreement",
    "rms z, text only": "the same if estimates are not clipped and renormalised: the paper's text",
    "error, exact": "MSE relative to the paper's ALLOMFREE, geometric mean over the eight budgets",
    "error, both": "the same with the projection too; below 1 is better than the paper",
}


def as_text(comparisons: Sequence[Comparison], seed: int) -> str:
    """For a terminal, at most 100 columns wide."""
    lines = [
        f"Accuracy gains of ALLOMFREE: the paper's tables against {_ran(comparisons, seed)}.",
        "",
    ]
    lines += [f"  {name:<8} {meaning}" for name, meaning in LEGEND.items()]
    for comparison in comparisons:
        lines += ["", heading(comparison.half), ""]
        lines += wrap(note(comparison.half), 98, initial_indent="  ", subsequent_indent="  ")
        lines += ["", *_text_table(comparison)]
    lines += ["", "Summary", "", *(f"  {line}" for line in summary(comparisons))]
    return "\n".join(line.rstrip() for line in lines)


def summary(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """One line for each half table, what its columns mean, and what follows."""
    header, *rows = (_SUMMARY_LINE.format(*fields) for fields in _summary_rows(comparisons))
    yield from (header, "-" * len(header), *rows, "")
    yield from (f"{name:<16} {meaning}" for name, meaning in SUMMARY_LEGEND.items())
    yield from ("", *conclusions(comparisons))


def _text_table(comparison: Comparison) -> Iterator[str]:
    over = [f"over {reference}" for reference in REFERENCES]
    yield "  {:<7}  {:<40}   {}".format("", *over)
    header = _LINE.format(*_HEADER)
    yield header
    yield "  " + "-" * (len(header) - 2)
    yield from (_LINE.format(*fields) for fields in _fields(comparison))


def as_markdown(comparisons: Sequence[Comparison], seed: int) -> str:
    """The same tables and summary, for a document."""
    lines = [f"From {_ran(comparisons, seed)}:", ""]
    lines += [*(f"- {line}" for line in conclusions(comparisons)), ""]
    lines += [*_markdown_table(_summary_rows(comparisons)), ""]
    lines += [f"- {name}: {meaning}" for name, meaning in SUMMARY_LEGEND.items()]
    for comparison in comparisons:
        lines += ["", f"### {heading(comparison.half)}", "", note(comparison.half), ""]
        over = [(f"{reference}: printed", *_COLUMNS[1:]) for reference in REFERENCES]
        lines += _markdown_table(chain([("eps_inf", *over[0], *over[1])], _fields(comparison)))
    return "\n".join(lines)


def as_json(comparisons: Sequence[Comparison], seed: int) -> str:
    """One object; gains are in percent and unrounded, printed ones are text."""
    halves = [
        {
            "data_set": comparison.half.data_set,
            "ratio": float(comparison.half.ratio),
            "label": comparison.half.label,
            "note": note(comparison.half),
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


def heading(half: Half) -> str:
    return f"{load(half.data_set).title}, eps_1 = {half.ratio} eps_inf"


def note(half: Half) -> str:
    """How faithful the counts of the data set are."""
    return load(half.data_set).note


def conclusions(comparisons: Sequence[Comparison]) -> Iterator[str]:
    count = len(comparisons)
    agree = sum(comparison.agrees for comparison in comparisons)
    better = sum(comparison.improved for comparison in comparisons)
    yield f"{agree} of {count} half tables agree with the paper's (rms z at most {LARGEST_RMS_Z})"
    yield f"{better} of {count} have less error than the paper's ALLOMFREE with exact + projection"
    means = [(half, half.mean(reference)) for half in comparisons for reference in REFERENCES]
    worst, mean = max(means, key=lambda pair: abs(pair[1].z))
    where = f"{heading(worst.half)}, over {mean.reference}"
    yield f"of the {len(means)} printed means {where} is furthest from ours: z = {mean.z:z.1f}"


def _json_cell(cell: Cell) -> dict[str, object]:
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


def _fields(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The texts of each line: both columns of the paper's table, and their means."""
    cells = [*comparison.cells, *(comparison.mean(reference) for reference in REFERENCES)]
    for first, second in zip(cells[::2], cells[1::2], strict=True):
        yield first.eps_inf, *_cell_fields(first), *_cell_fields(second)


def _cell_fields(cell: Cell) -> tuple[str, ...]:
    numbers = (cell.ours.gain, cell.ours.sd, cell.z, cell.exact, cell.projected)
    return cell.printed, *(f"{number:z.1f}" for number in numbers)  # z: never "-0.0"


def _summary_rows(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, ...]]:
    yield _SUMMARY
    for comparison in comparisons:
        yield (
            load(comparison.half.data_set).title,
            comparison.half.ratio,
            f"{comparison.rms_z:.2f}",
            f"{comparison.largest_z:z.1f}",
            f"{comparison.rms_z_unprocessed:.1f}",
            f"{comparison.exact:.3f}",
            f"{comparison.projected:.3f}",
        )


def _markdown_table(rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    header = next(rows)
    rule = ("---", *("--:" for _ in header[1:]))
    yield from (f"| {' | '.join(fields)} |" for fields in (header, rule, *rows))


def _ran(comparisons: Sequence[Comparison], seed: int) -> str:
    return f"{comparisons[0].runs:,} runs, seed {seed}"


FORMS: Final[dict[str, Callable[[Sequence[Comparison], int], str]]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
