"""From counts to frequencies with honest error bars. The one module here that needs numpy.

Claim: `raw` is unbiased for any data; the variance behind every interval is exact, not the f = 0
approximation; and pooling rounds never treats reports of one memo as independent.

Everything works on integer counts per value, never on reports, and is vectorised over values.
Each estimate is described by four numbers that all that follows is computed from:

    raw        unbiased estimates, one per value (they may lie outside [0, 1])
    v0, v1     variance of the estimate if no device, or every device, held the value
    dilution   sum of squared device weights; 1/n for equal weights. Sampling adds f(1-f) of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from protocol_spec.calibration import Calibration
from protocol_spec.errors import ParameterError

__all__ = [
    "Array",
    "Estimate",
    "Weights",
    "critical_value",
    "estimate",
    "estimate_pooled",
    "project_to_simplex",
    "score_interval",
    "shift_to_one",
]

Array = npt.NDArray[np.float64]
Weights = Literal["equal", "reports", "blue"]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Frequencies of one attribute with everything needed to state their error."""

    raw: Array
    v0: float
    v1: float
    dilution: float
    sums_to_one: bool

    @property
    def shifted(self) -> Array:
        """Unbiased and summing to one. For unary protocols it also has (1 - 1/k) of the error."""
        if self.sums_to_one:
            return self.raw
        return shift_to_one(self.raw)

    @property
    def projected(self) -> Array:
        """The nearest true histogram: none negative, sum one. Biased; best for display."""
        return project_to_simplex(self.raw)

    @property
    def privacy_error(self) -> Array:
        """Standard error from the noise devices add (target: the devices that reported)."""
        held = np.clip(self.raw, 0.0, 1.0)
        return np.sqrt(self.v0 + held * (self.v1 - self.v0))

    @property
    def sampling_error(self) -> Array:
        """Standard error from having heard these devices and not others of the same fleet."""
        held = np.clip(self.raw, 0.0, 1.0)
        return np.sqrt(held * (1.0 - held) * self.dilution)

    @property
    def standard_error(self) -> Array:
        """Both together (target: the fleet the devices come from)."""
        return np.hypot(self.privacy_error, self.sampling_error)

    def interval(
        self, confidence: float = 0.95, *, simultaneous: bool = False, sampling: bool = True
    ) -> tuple[Array, Array]:
        """Score intervals, clipped to [0, 1], never empty.

        `simultaneous` makes them hold for all values at once (Sidak), which is what a reader who
        picks the tallest bar needs. `sampling=False` targets the devices that reported rather
        than the fleet they come from.
        """
        z = critical_value(confidence, self.raw.shape[-1] if simultaneous else 1)
        dilution = self.dilution if sampling else 0.0
        return score_interval(self.raw, self.v0, self.v1, z=z, dilution=dilution)


def estimate(
    counts: npt.ArrayLike, n: int, calibration: Calibration, *, fleet: int | None = None
) -> Estimate:
    """One round: `counts[v]` of the n reports support value v.

    `fleet` is the number of devices the n were drawn from without replacement; sampling error
    vanishes when all of them reported.
    """
    counts = _checked_counts(counts, calibration)
    if n < 1:
        raise ParameterError("n", n, "an estimate needs at least one report")
    if (counts > n).any():
        largest = int(counts.max())
        raise ParameterError("counts", largest, f"no value has more support than n = {n}")
    raw = (counts / n - calibration.qs) / calibration.gap
    v0, v1 = (calibration.device_variance(holds) / n for holds in (False, True))
    return Estimate(raw, v0, v1, _finite(fleet, n) / n, not calibration.unary)


def estimate_pooled(
    counts: npt.ArrayLike,
    reports: npt.ArrayLike,
    devices: npt.ArrayLike,
    calibration: Calibration,
    *,
    weights: Weights = "equal",
    fleet: int | None = None,
) -> Estimate:
    """Several rounds of static values: `devices[g]` devices sent `reports[g]` reports each.

    `counts[g, v]` of the reports of group g support v. Weights per device:
      equal    the mean of exactly these devices, whoever reported more often (default)
      reports  proportional to the number of reports; `counts` may then be one row of totals,
               which is all that is left once rounds are sealed
      blue     least variance; unbiased only if taking part does not depend on the value
    """
    m = np.asarray(reports, dtype=np.float64)
    size = np.asarray(devices, dtype=np.float64)
    sound = m.ndim == 1 and m.shape == size.shape and (m >= 1).all() and (size >= 0).all()
    if not sound or size.sum() < 1:
        remedy = "one positive number of reports and one number of devices for each group"
        raise ParameterError("reports", reports, remedy)
    table = np.atleast_2d(_checked_counts(counts, calibration))
    noise = [calibration.device_noise(holds) for holds in (False, True)]
    weight = _device_weights(weights, m, *noise[0])
    weight = weight / (weight * size).sum()
    if weights == "reports":
        support = table.sum(axis=0) / (m * size).sum()
    elif table.shape[0] != m.size:
        raise ParameterError("counts", table.shape, f"{weights!r} weights need a row per group")
    else:
        support = (weight / m) @ table
    raw = (support - calibration.qs) / calibration.gap
    v0, v1 = (float((weight**2 * size * (b + w / m)).sum()) for b, w in noise)
    dilution = float((weight**2 * size).sum()) * _finite(fleet, round(float(size.sum())))
    return Estimate(raw, v0, v1, dilution, not calibration.unary)


def critical_value(confidence: float, comparisons: int = 1) -> float:
    """Two-sided normal quantile; for several comparisons the Sidak one that holds for all."""
    if not 0.0 < confidence < 1.0:
        raise ParameterError("confidence", confidence, "must lie strictly between 0 and 1")
    if comparisons < 1:
        raise ParameterError("comparisons", comparisons, "must be 1 or more")
    alpha = -np.expm1(np.log(confidence) / comparisons)
    return NormalDist().inv_cdf(1.0 - float(alpha) / 2.0)


def score_interval(
    raw: npt.ArrayLike, v0: float, v1: float, *, z: float, dilution: float = 0.0
) -> tuple[Array, Array]:
    """All f whose own variance would not make the estimate surprising: solves a quadratic in f.

    Centred on the estimate clipped to [0, 1], which can only raise coverage.
    """
    centre = np.clip(np.asarray(raw, dtype=np.float64), 0.0, 1.0)
    zz = z * z
    lead = 1.0 + zz * dilution
    middle = 2.0 * centre + zz * (v1 - v0 + dilution)
    root = np.sqrt(np.maximum(middle**2 - 4.0 * lead * (centre**2 - zz * v0), 0.0))
    low, high = (middle - root) / (2.0 * lead), (middle + root) / (2.0 * lead)
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def project_to_simplex(raw: npt.ArrayLike) -> Array:
    """Euclidean projection on the histograms (also called Norm-Sub), along the last axis."""
    values = np.asarray(raw, dtype=np.float64)
    falling = -np.sort(-values, axis=-1)
    excess = (np.cumsum(falling, axis=-1) - 1.0) / np.arange(1, values.shape[-1] + 1)
    positive = (falling > excess).sum(axis=-1, keepdims=True)
    projected: Array = values - np.take_along_axis(excess, positive - 1, axis=-1)
    return np.maximum(projected, 0.0, out=projected)


def shift_to_one(raw: npt.ArrayLike) -> Array:
    """Add the same amount to every estimate so that they sum to one; stays unbiased."""
    values = np.asarray(raw, dtype=np.float64)
    missing = 1.0 - values.sum(axis=-1, keepdims=True)
    shifted: Array = values + missing / values.shape[-1]
    return shifted


def _device_weights(weights: Weights, m: Array, between: float, within: float) -> Array:
    if weights == "equal":
        return np.ones_like(m)
    if weights == "reports":
        return m
    if weights == "blue":
        return 1.0 / (between + within / m)
    raise ParameterError("weights", weights, "choose 'equal', 'reports' or 'blue'")


def _checked_counts(counts: npt.ArrayLike, calibration: Calibration) -> npt.NDArray[Any]:
    table = np.asarray(counts)
    if table.dtype.kind not in "iu" or (table < 0).any():
        raise ParameterError("counts", counts, "must be whole numbers, none negative")
    if table.ndim < 1 or table.shape[-1] != calibration.k:
        raise ParameterError("counts", table.shape, f"must have k = {calibration.k} columns")
    return table


def _finite(fleet: int | None, n: int) -> float:
    """Finite-population factor (N - n) / (N - 1) of sampling without replacement."""
    if fleet is None:
        return 1.0
    if fleet < n:
        raise ParameterError("fleet", fleet, f"the fleet is at least the n = {n} that reported")
    return (fleet - n) / (fleet - 1) if fleet > 1 else 0.0
