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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from paper.printed_gains import HALVES, Half
from protocol_spec import ADAPTIVE, Calibration, Method, calibrate
from protocol_spec.estimation import project_to_simplex
from simulation.model.counts import groups, one_round
from simulation.model.datasets import Dataset, load

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
    """One way to collect and estimate: a protocol, its calibration, what is done to the result."""

    protocol: str
    method: Method
    finish: Callable[[Array], Array]

    def calibrate(self, k: int, eps_inf: float, eps_1: float) -> Calibration:
        """For an attribute of k values."""
        return _calibrated(self.protocol, k, eps_inf, eps_1, self.method)


@lru_cache(maxsize=1024)  # of an experiment: attributes often have as many values
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
        """How often it was run."""
        return self.errors["ALLOMFREE"].size


def mean_squared_errors(
    rng: np.random.Generator, data: Dataset, eps_inf: float, eps_1: float, runs: int
) -> dict[str, Array]:
    """MSE_avg of every arm in every run."""
    d = len(data.attributes)
    sizes = np.broadcast_to(group_sizes(data.n, d), (runs, d))
    drawn = groups(rng, [attribute.counts for attribute in data.attributes], sizes)
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

    Arms with the same chances share one draw. So two that only differ in what is done afterwards
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
