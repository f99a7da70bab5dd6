"""The error of a whole campaign at equal eps_inf and eps_1: the paper's metric, many seeded runs.

The metric is the paper's: the squared error against the whole population, averaged over the values
of an attribute and then over attributes. Each run draws anew who reports which attribute.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from paper.pipeline import clip_and_renormalise
from protocol_spec import as_drawn, calibrate
from protocol_spec.estimation import Array, project_to_simplex
from simulation.model.counts import groups, one_round
from simulation.model.datasets import Dataset


class Budget(NamedTuple):
    """What a device's values may leak for ever, and what one report may."""

    eps_inf: float
    eps_1: float

    def __str__(self) -> str:
        return f"eps_inf {self.eps_inf:g}, eps_1 {self.eps_1:g}"


BUDGETS: Final = tuple(Budget(e, round(a * e, 2)) for a in (0.3, 0.6) for e in (1.0, 4.0))

PROJECTED: Final = "exact, projected"
POLISH: Final[dict[str, Callable[[Array], Array]]] = {
    "exact, clipped as the peer does": clip_and_renormalise,
    PROJECTED: project_to_simplex,
}


def truth(data: Dataset) -> list[Array]:
    """The population's frequencies, attribute by attribute."""
    return [np.asarray(a.counts) / data.n for a in data.attributes]


def squared_error(estimates: Sequence[npt.ArrayLike], true: Sequence[Array]) -> Array:
    """The metric, for one run or for as many as the estimates' leading axis holds."""
    errors = [np.mean((np.asarray(e) - f) ** 2, axis=-1) for e, f in zip(estimates, true)]
    mean: Array = np.mean(errors, axis=0)
    return mean


def our_errors(data: Dataset, budget: Budget, runs: int, seed: int) -> dict[str, Array]:
    """The metric of each run with the exact calibration, for each way to finish an estimate."""
    rng = np.random.default_rng(seed)
    d = len(data.attributes)
    sizes = rng.multinomial(data.n, [1 / d] * d, size=runs)
    raw = []
    for a, held in enumerate(groups(rng, [a.counts for a in data.attributes], sizes)):
        nominal = calibrate("ALLOMFREE", k=data.attributes[a].k, **budget._asdict())
        calibration = as_drawn(nominal)
        counts = one_round(rng, calibration, held)
        raw.append((counts / sizes[:, a, np.newaxis] - calibration.qs) / calibration.gap)
    true = truth(data)
    return {how: squared_error([polish(r) for r in raw], true) for how, polish in POLISH.items()}


class Ratio(NamedTuple):
    """A ratio of two means and its standard error."""

    value: float
    error: float


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Of independent samples; the error to first order, from both samples' spread."""
    mean_above, mean_below = statistics.fmean(above), statistics.fmean(below)
    relative = math.hypot(_error(above) / mean_above, _error(below) / mean_below)
    value = mean_above / mean_below
    return Ratio(value, value * relative)


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    """Of independent ratios, with its standard error to first order."""
    value = math.exp(statistics.fmean(math.log(r.value) for r in ratios))
    relative = math.sqrt(sum((r.error / r.value) ** 2 for r in ratios)) / len(ratios)
    return Ratio(value, value * relative)


def _error(sample: Sequence[float]) -> float:
    return statistics.stdev(sample) / math.sqrt(len(sample))
