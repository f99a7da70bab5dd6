"""Differences of frequencies, and any other weighted sum of them, with their exact error.

Claim: estimates of one result are correlated, and the variance of a weighted sum accounts for it.
Two bars whose intervals overlap may well differ, and the half-width of one bar is not the
half-width of a difference.

For weights c_v, centred by their mean, the estimate is mean(c) + sum (c_v - mean(c)) raw_v: the
sum over the shifted histogram, unbiased, and never worse than the sum over the raw one. Its
variance is calculated for the projected histogram.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec.attributes import Attribute
from protocol_spec.errors import ParameterError
from protocol_spec.estimation.frequencies import Estimate
from protocol_spec.estimation.intervals import (
    LEAST,
    Array,
    Moments,
    critical_value,
    project_to_simplex,
    within_one,
)
from protocol_spec.results import (
    RESULT_QUANTILES,
    RESULT_SERIES,
    HalfWidths,
    Numbers,
    ResultQuantile,
)


class Covariance(NamedTuple):
    """Of two weighted sums: the part from privacy noise and the part from sampling devices."""

    privacy: float
    sampling: float


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

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.privacy_variance + self.sampling_variance)

    def half_width(self, confidence: float = 0.95, comparisons: int = 1) -> float:
        """Of the interval, before its ends are clipped; all `comparisons` hold at once."""
        return critical_value(confidence, comparisons) * self.standard_error

    def interval(self, confidence: float = 0.95, comparisons: int = 1) -> tuple[float, float]:
        """Centred on the estimate clipped to what is possible; the ends are clipped as well."""
        half = self.half_width(confidence, comparisons)
        centre = min(max(self.value, self.smallest), self.largest)
        return max(centre - half, self.smallest), min(centre + half, self.largest)


def covariance(estimated: Estimate, first: npt.ArrayLike, second: npt.ArrayLike) -> Covariance:
    """Of the weighted sums with these weights per value."""
    f, known = estimated.projected, estimated.moments
    a, b = (c - c.mean() for c in (_checked(estimated, w) for w in (first, second)))
    privacy = known.base * (a @ b) + known.base_slope * (f @ (a * b))
    sampling = known.dilution * (f @ ((a - f @ a) * (b - f @ b)))
    return Covariance(float(privacy), float(sampling))


def contrast(estimated: Estimate, weights: npt.ArrayLike) -> Contrast:
    """The weighted sum of frequencies, with one finite weight for each value."""
    c = _checked(estimated, weights)
    mean = float(c.mean())
    value = mean + float((c - mean) @ estimated.raw)
    return Contrast(value, *covariance(estimated, c, c), float(c.min()), float(c.max()))


@dataclass(frozen=True, slots=True)
class Difference(Contrast):
    """Of the frequencies of two values, whose sum is `both`. Its interval is a score interval: all
    differences whose own error would not make the estimate surprising."""

    both: float
    moments: Moments

    def interval(self, confidence: float = 0.95, comparisons: int = 1) -> tuple[float, float]:
        zz, known = critical_value(confidence, comparisons) ** 2, self.moments
        centre = min(max(self.value, -1.0), 1.0)
        rate = zz * (known.base_slope + known.dilution)

        def above(centre: float) -> float:
            """The largest difference x with (x - centre)^2 = zz times its variance: for `both`, and
            where x is more than that, for x itself."""
            lead = 1.0 + zz * known.dilution
            for half, fixed in ((centre, rate * self.both), (centre + rate / 2.0, 0.0)):
                rest = centre**2 - 2.0 * zz * known.base - fixed
                end = (half + math.sqrt(max(half**2 - lead * rest, 0.0))) / lead
                if end <= self.both:
                    break
            return min(end, 1.0)

        return -above(-centre), above(centre)


def difference(estimated: Estimate, u: int, v: int) -> Difference:
    """How much more frequent the value of index u is than that of index v.

    Its interval is above 0 when this result shows that u is above v. For pairs picked because of
    their bars, ask with `comparisons` = k (k-1) / 2.
    """
    k, known = estimated.raw.shape[-1], estimated.moments
    for name, index in (("u", u), ("v", v)):
        if not 0 <= index < k:
            raise ParameterError(name, index, f"a value's index lies between 0 and {k - 1}")
    if u == v:
        raise ParameterError("v", v, "a difference is between two values")
    value = float(estimated.raw[u] - estimated.raw[v])
    both = min(max(float(within_one(estimated.raw[[u, v]]).sum()), abs(value)), 1.0)
    privacy = 2.0 * known.base + known.base_slope * both
    sampling = known.dilution * max(both - value**2, 0.0)
    return Difference(value, privacy, sampling, -1.0, 1.0, both, known)


def smallest_difference(estimated: Estimate, confidence: float = 0.95) -> HalfWidths:
    """How far apart any two values must be for the interval of their difference not to hold 0.

    The error of two equal values grows with their sum, so it is that of the two largest.
    """
    largest, known = np.sort(within_one(estimated.raw))[-2:], estimated.moments
    slope = known.base_slope + known.dilution
    error = math.sqrt(2.0 * known.base + slope * min(float(largest.sum()), 1.0))
    pairs = math.comb(estimated.raw.size, 2)
    return HalfWidths(*(critical_value(confidence, n) * error for n in (1, pairs)))


def _checked(estimated: Estimate, weights: npt.ArrayLike) -> Array:
    c = np.asarray(weights, dtype=np.float64)
    if estimated.raw.ndim != 1:
        raise ParameterError("raw", estimated.raw.shape, "must be the estimate of one result")
    if c.shape != estimated.raw.shape or not np.isfinite(c).all():
        remedy = f"must be {estimated.raw.size} finite numbers, one for each value"
        raise ParameterError("weights", weights, remedy)
    return c


# --- numeric attributes: mean, distribution function and quantiles --------------------------------
# All errors come from the same covariance as those of differences. The band of a distribution
# function holds for all edges at once; the interval of a quantile is between edges of bins, because
# a report says nothing about where in its bin a number lies. A histogram may have one value more
# than there are bins: its last value is then not a number, and everything here is about the devices
# that gave one: a ratio, whose interval is all r for which the sum less r times the share of those
# devices, itself a weighted sum with a known error, could be 0 by chance (Fieller). If the share
# could be 0, that is every r.

_HALVINGS: Final = 50


@dataclass(frozen=True, eq=False)
class Distribution:
    """The share of devices below each inner edge of the bins, of those that gave a number."""

    estimated: Estimate
    bins: int

    @cached_property
    def share(self) -> float:
        """Of the devices that gave a number."""
        return contrast(self.estimated, self._number).value

    @property
    def _number(self) -> Array:
        return (np.arange(self.estimated.raw.size) < self.bins).astype(np.float64)

    @cached_property
    def _sums(self) -> Array:
        """The shifted histogram's, up to each inner edge."""
        raw, k = self.estimated.raw, self.estimated.raw.size
        up_to = np.arange(1, self.bins)
        summed: Array = raw.cumsum()[: self.bins - 1] + up_to * ((1.0 - raw.sum()) / k)
        return summed

    @property
    def values(self) -> Array:
        """One share for each inner edge, clipped to [0, 1]; they need not rise."""
        return within_one(self._sums / max(self.share, np.finfo(np.float64).tiny))

    def is_certain(self, confidence: float = 0.95) -> bool:
        """Whether more devices gave a number than none by chance."""
        error = contrast(self.estimated, self._number).standard_error
        return self.share > critical_value(confidence) * error

    def band(self, confidence: float = 0.95, *, simultaneous: bool = True) -> tuple[Array, Array]:
        """Lower and upper limits, clipped to [0, 1]; for all edges at once by default.

        As for a single bar, the error is that of the share that is tested, and skewed.
        """
        if not self.is_certain(confidence):
            return np.zeros(self.bins - 1), np.ones(self.bins - 1)
        z = critical_value(confidence, max(self.bins - 1, 1) if simultaneous else 1)
        return self._end(z, -1.0), self._end(z, 1.0)

    def _end(self, z: float, side: float) -> Array:
        """The ratio nearest to the estimate that it makes surprising, towards 0 or towards 1."""
        sums = np.minimum(np.maximum(self._sums, 0.0), self.share)

        def surprising(ratio: Array) -> npt.NDArray[np.bool_]:
            variance, third = self._error(ratio)
            deviation = np.sqrt(variance)
            skew = -side * (z * z - 1.0) / 6.0 * third / variance
            reach = np.maximum(z * deviation + skew, LEAST * z * deviation)
            found: npt.NDArray[np.bool_] = -side * (sums - ratio * self.share) > reach
            return found

        inner = sums / self.share
        outer = np.full_like(inner, max(side, 0.0))
        inner = np.where(surprising(outer), inner, outer)
        for _ in range(_HALVINGS):
            middle = (inner + outer) / 2.0
            beyond = surprising(middle)
            inner, outer = np.where(beyond, inner, middle), np.where(beyond, middle, outer)
        return inner

    def _error(self, ratio: Array) -> tuple[Array, Array]:
        """Variance and third cumulant of the sum less `ratio` times the share, if that is 0.

        Values are of three kinds: below the edge, above it, not a number. Between values, third
        cumulants are taken as if bits were independent, which is exact for unary protocols.
        """
        k, known, below = self.estimated.raw.size, self.estimated.moments, np.arange(1, self.bins)
        share = min(self.share, 1.0)
        number = np.array([below, self.bins - below, np.full_like(below, k - self.bins)])
        f = np.array([share * ratio, share * (1.0 - ratio), np.full_like(ratio, 1.0 - share)])
        c = np.array([1.0 - ratio, -ratio, np.zeros_like(ratio)])
        centred = c - (number * c).sum(axis=0) / k
        squares, cubes = centred**2, centred**3
        variance = known.base * (number * squares).sum(axis=0)
        variance += (f * (known.base_slope * squares + known.dilution * c**2)).sum(axis=0)
        third = known.third0 * (number * cubes).sum(axis=0)
        third += known.third_slope * (f * cubes).sum(axis=0)
        third += 3.0 * known.base_coupled * (f * squares * c).sum(axis=0)
        third += known.third_dilution * (f * c**3).sum(axis=0)
        return variance, third


@dataclass(frozen=True, slots=True)
class PartialMean(Contrast):
    """A mean over those devices only that gave a number: `total` over their `share`.

    `privacy` and `sampling` are the covariances of the two: of total, of both, of share.
    """

    total: float
    share: float
    privacy: Array
    sampling: Array

    def interval(self, confidence: float = 0.95, comparisons: int = 1) -> tuple[float, float]:
        """Clipped to what is possible: everything that is, where hardly anyone gave a number."""
        zz = critical_value(confidence, comparisons) ** 2
        above, both, below = (zz * float(part) for part in self.privacy + self.sampling)
        lead = self.share**2 - below
        if lead <= 0.0 or self.share <= 0.0:
            return self.smallest, self.largest
        total = min(max(self.total, self.smallest * self.share), self.largest * self.share)
        middle = (total * self.share - both) / lead
        half = math.sqrt(max(middle**2 - (total**2 - above) / lead, 0.0))
        return max(middle - half, self.smallest), min(middle + half, self.largest)


def mean(estimated: Estimate, representatives: npt.ArrayLike) -> Contrast:
    """The mean over devices if every number were its bin's representative: see `true_mean`."""
    at = np.asarray(representatives, dtype=np.float64)
    if at.size == estimated.raw.size:
        return contrast(estimated, at)
    bins = _bins(estimated, at.size)
    weights, inside = np.append(at, 0.0), np.append(np.ones(bins), 0.0)
    pairs = ((weights, weights), (weights, inside), (inside, inside))
    parts = np.array([covariance(estimated, a, b) for a, b in pairs]).T
    total, share = (contrast(estimated, c).value for c in (weights, inside))
    smallest, largest = float(at.min()), float(at.max())
    known = max(share, 1e-9)
    value = min(max(total / known, smallest), largest)
    gradient = np.array([1.0, -2.0 * value, value**2]) / known**2
    privacy, sampling = (max(float(gradient @ part), 0.0) for part in parts)
    return PartialMean(value, privacy, sampling, smallest, largest, total, share, *parts)


def true_mean(
    estimated: Estimate, edges: Sequence[float], confidence: float = 0.95
) -> tuple[float, float]:
    """Limits of the mean of the numbers themselves, wherever in its bin each of them lies.

    From the lower limit of the mean of lower ends to the upper limit of that of upper ends, so
    that each bin's width counts as often as the bin does, with the error of that.
    """
    at = _increasing(edges, finite=True)
    (low, _), (_, high) = (mean(estimated, each).interval(confidence) for each in (at[:-1], at[1:]))
    return low, high


def midpoints(edges: Sequence[float]) -> Array:
    """A representative for each bin, if the outer bins have ends."""
    at = _increasing(edges, finite=True)
    return (at[:-1] + at[1:]) / 2.0


def cdf(estimated: Estimate, bins: int | None = None) -> Distribution:
    """The distribution function at the inner edges: `values[j]` is the share in bins 0..j.

    With one bin less than the histogram has values, it is that of the devices that gave a number.
    """
    return Distribution(estimated, _bins(estimated, estimated.raw.size if bins is None else bins))


def quantile(
    estimated: Estimate, edges: Sequence[float], tau: float, confidence: float = 0.95
) -> ResultQuantile:
    """The number that a share `tau` of the devices lies below.

    Its limits are edges of bins, and None where an outer bin has no end. The value interpolates in
    its bin; there is none in a bin without an end.

    Edges are tested one after the other from each end, up to the first that is not excluded: an
    interval fails only if the true edge is excluded. Taking the furthest edge that is excluded
    anywhere would give every edge of a flat distribution a chance to fail.
    """
    if not 0.0 < tau < 1.0:
        raise ParameterError("tau", tau, "must lie strictly between 0 and 1")
    at = _increasing(edges)
    bins = _bins(estimated, at.size - 1)
    function = cdf(estimated, bins)
    lower, upper = function.band(confidence, simultaneous=False)
    too_low = np.concatenate(([True], upper < tau, [False]))  # of all edges, the first to the last
    too_high = np.concatenate(([False], lower > tau, [True]))
    low = float(at[int(np.argmin(too_low)) - 1])
    high = float(at[at.size - int(np.argmin(too_high[::-1]))])
    share = function.share
    inside = estimated.raw[:bins] / (share if share > 0.0 else 1.0)
    point = _interpolated(project_to_simplex(inside), at, tau)
    value = None if point is None else min(max(point, low), high)
    return ResultQuantile(tau, value, *(end if math.isfinite(end) else None for end in (low, high)))


def _interpolated(histogram: Array, edges: Array, tau: float) -> float | None:
    """Where the distribution function of the projected histogram reaches tau."""
    reached = np.cumsum(histogram)
    bin_ = min(int(np.searchsorted(reached, tau)), histogram.size - 1)
    low, high = float(edges[bin_]), float(edges[bin_ + 1])
    if math.isinf(low) or math.isinf(high):
        return None
    part = 1.0 - (float(reached[bin_]) - tau) / float(histogram[bin_])
    return low + (high - low) * min(max(part, 0.0), 1.0)


def _bins(estimated: Estimate, bins: int) -> int:
    """As many as there are values, or one less."""
    k = estimated.raw.size
    if estimated.raw.ndim != 1 or bins not in (k - 1, k) or bins < 1:
        raise ParameterError("edges", bins, f"must be those of {k} bins, or {k - 1} and one value")
    return bins


def _increasing(edges: Sequence[float], *, finite: bool = False) -> Array:
    at = np.asarray(edges, dtype=np.float64)
    good = at.ndim == 1 and at.size >= 2 and (np.diff(at) > 0.0).all()
    if finite and not (good and np.isfinite(at).all()):
        raise ParameterError("edges", edges, "must increase and have finite ends for a mean")
    if not good:
        raise ParameterError("edges", edges, "must be increasing numbers, one more than bins")
    return at


# --- what a result says ---------------------------------------------------------------------------


def series_of(estimated: Estimate, confidence: float = 0.95) -> dict[str, list[float]]:
    """A number for each value under each of the names in `RESULT_SERIES`."""
    ends, ends_of_all = estimated.both_intervals(confidence)
    errors = estimated.privacy_error, estimated.sampling_error
    arrays = (estimated.raw, estimated.projected, *errors, *ends, *ends_of_all)
    return {name: array.tolist() for name, array in zip(RESULT_SERIES, arrays)}


def numbers_of(
    estimated: Estimate, attribute: Attribute, confidence: float = 0.95
) -> Numbers | None:
    """Mean, distribution function and quantiles of the devices that gave a number.

    None for a question of named values, and where hardly any device may have given a number.
    """
    if attribute.edges is None:
        return None
    function = cdf(estimated, attribute.bins)
    if not function.is_certain(confidence):
        return None
    (low, high), edges = function.band(confidence), attribute.edges
    return Numbers(
        *_mean(estimated, attribute, confidence),
        cdf=tuple(function.values.tolist()),
        cdf_low=tuple(low.tolist()),
        cdf_high=tuple(high.tolist()),
        quantiles=tuple(quantile(estimated, edges, tau, confidence) for tau in RESULT_QUANTILES),
    )


def _mean(
    estimated: Estimate, attribute: Attribute, confidence: float
) -> tuple[float | None, float | None, float | None, float | None]:
    """Value, limits, and how far beyond them the true mean can be because numbers are not in the
    middle of their bins; None if a bin has no middle."""
    edges = attribute.finite_edges
    if edges is None:
        return None, None, None, None
    found = mean(estimated, midpoints(edges))
    value = min(max(found.value, found.smallest), found.largest)
    (low, high), (lowest, highest) = (
        found.interval(confidence),
        true_mean(estimated, edges, confidence),
    )
    return value, low, high, max(low - lowest, highest - high, 0.0)
