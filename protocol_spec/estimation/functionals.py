"""Differences of frequencies, and any other weighted sum of them, with their exact error.

Claim: estimates of one result are correlated; the variance of a weighted sum here knows that. Two
bars whose intervals overlap may well differ, and the half-width of one bar is not the half-width
of a difference.

For weights c_v, centred by their mean, the estimate is mean(c) + sum (c_v - mean(c)) raw_v: the
sum over the shifted histogram, unbiased, and never worse than the sum over the raw one. Its
variance needs the frequencies, for which the raw ones are put in, clipped and divided by their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.frequencies import Estimate
from protocol_spec.estimation.histograms import Array, within_one
from protocol_spec.estimation.intervals import critical_value
from protocol_spec.estimation.moments import Moments

__all__ = [
    "Contrast",
    "Covariance",
    "SmallestDifference",
    "contrast",
    "covariance",
    "difference",
    "plausible",
    "smallest_difference",
]


class Covariance(NamedTuple):
    """Of two weighted sums: the part from privacy noise and the part from sampling devices."""

    privacy: float
    sampling: float


class SmallestDifference(NamedTuple):
    """How far apart two bars must be to be told apart, for the pair with the largest error.

    `named` is for a pair chosen before looking; `any_pair` holds for all pairs at once, which is
    what "which is the tallest?" asks.
    """

    named: float
    any_pair: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """A weighted sum of frequencies: its unbiased estimate, and where its error comes from.

    The true sum lies between the smallest and the largest weight; the estimate need not.
    """

    value: float
    privacy_variance: float
    sampling_variance: float
    smallest: float
    largest: float

    def standard_error(self, *, sampling: bool = True) -> float:
        """About the fleet; with `sampling=False`, about the devices that reported."""
        return math.sqrt(self.privacy_variance + (self.sampling_variance if sampling else 0.0))

    def half_width(
        self, confidence: float = 0.95, *, comparisons: int = 1, sampling: bool = True
    ) -> float:
        """Of the interval, before its ends are clipped; `comparisons` are to hold all at once."""
        return critical_value(confidence, comparisons) * self.standard_error(sampling=sampling)

    def interval(
        self, confidence: float = 0.95, *, comparisons: int = 1, sampling: bool = True
    ) -> tuple[float, float]:
        """Centred on the estimate clipped to what is possible; the ends are clipped as well."""
        half = self.half_width(confidence, comparisons=comparisons, sampling=sampling)
        centre = min(max(self.value, self.smallest), self.largest)
        return max(centre - half, self.smallest), min(centre + half, self.largest)


def plausible(estimated: Estimate) -> Array:
    """The frequencies that variances are calculated for: raw, clipped, divided by their sum."""
    clipped = within_one(estimated.raw)
    total = float(clipped.sum())
    return clipped / total if total > 0.0 else np.full_like(clipped, 1.0 / clipped.size)


def covariance(estimated: Estimate, first: npt.ArrayLike, second: npt.ArrayLike) -> Covariance:
    """Of the weighted sums with these weights per value."""
    return covariances(estimated, first, second)[1]


def covariances(
    estimated: Estimate, first: npt.ArrayLike, second: npt.ArrayLike
) -> tuple[Covariance, Covariance, Covariance]:
    """Variances of two weighted sums, and between them their covariance."""
    f, known = plausible(estimated), estimated.moments
    a, b = (c - c.mean() for c in (_checked(estimated, w) for w in (first, second)))
    return _covariance(known, f, a, a), _covariance(known, f, a, b), _covariance(known, f, b, b)


def _covariance(known: Moments, f: Array, a: Array, b: Array) -> Covariance:
    """Of centred weights."""
    privacy = known.base * (a @ b) + known.base_slope * (f @ (a * b))
    sampling = known.dilution * (f @ ((a - f @ a) * (b - f @ b)))
    return Covariance(float(privacy), float(sampling))


def weighted_sum(estimated: Estimate, weights: npt.ArrayLike) -> float:
    """The estimate alone."""
    c = _checked(estimated, weights)
    mean = float(c.mean())
    return mean + float((c - mean) @ estimated.raw)


def contrast(estimated: Estimate, weights: npt.ArrayLike) -> Contrast:
    """The weighted sum of frequencies, with one finite weight for each value."""
    c = _checked(estimated, weights)
    centred = c - c.mean()
    error = _covariance(estimated.moments, plausible(estimated), centred, centred)
    return Contrast(weighted_sum(estimated, c), *error, float(c.min()), float(c.max()))


def difference(estimated: Estimate, u: int, v: int) -> Contrast:
    """How much more frequent the value of index u is than that of index v.

    Its interval is above 0 when this result shows that u is above v. For pairs picked because of
    their bars, ask with `comparisons` = k (k-1) / 2.
    """
    k = estimated.raw.shape[-1]
    for name, index in (("u", u), ("v", v)):
        if not 0 <= index < k:
            raise ParameterError(name, index, f"a value's index lies between 0 and {k - 1}")
    if u == v:
        raise ParameterError("v", v, "a difference is between two values")
    weights = np.zeros(k)
    weights[[u, v]] = 1.0, -1.0
    return contrast(estimated, weights)


def smallest_difference(
    estimated: Estimate, confidence: float = 0.95, *, sampling: bool = True
) -> SmallestDifference:
    """The largest half-width of a difference over all pairs of values."""
    f, known = np.sort(plausible(estimated)), estimated.moments
    dilution = known.dilution if sampling else 0.0
    worst = 2.0 * known.base + _largest_pair(f, known.base_slope + dilution, dilution)
    pairs = math.comb(f.size, 2)
    named, any_pair = (critical_value(confidence, n) * math.sqrt(worst) for n in (1, pairs))
    return SmallestDifference(named, any_pair)


def _largest_pair(f: Array, slope: float, dilution: float) -> float:
    """Largest slope (f_u + f_v) - dilution (f_u - f_v)^2 over pairs of the sorted f.

    For each u it is concave in f_v with its top at f_u + slope / (2 dilution): the best of the
    others is next to that, on one side or the other.
    """
    if dilution > 0.0:
        tops = np.searchsorted(f, f + slope / (2.0 * dilution))
    else:
        tops = np.full(f.size, f.size if slope > 0.0 else 0)
    u = np.arange(f.size)[:, None]
    v = np.clip(tops[:, None] + np.arange(-2, 2), 0, f.size - 1)
    reached = slope * (f[u] + f[v]) - dilution * (f[u] - f[v]) ** 2
    return float(reached[u != v].max())


def _checked(estimated: Estimate, weights: npt.ArrayLike) -> Array:
    c = np.asarray(weights, dtype=np.float64)
    if estimated.raw.ndim != 1:
        raise ParameterError("raw", estimated.raw.shape, "must be the estimate of one result")
    if c.shape != estimated.raw.shape or not np.isfinite(c).all():
        remedy = f"must be {estimated.raw.size} finite numbers, one for each value"
        raise ParameterError("weights", weights, remedy)
    return c
