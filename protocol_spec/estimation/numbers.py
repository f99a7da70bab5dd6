"""Differences of frequencies, and any other weighted sum of them, with their exact error.

Claim: estimates of one result are correlated, and the variance of a weighted sum accounts for it.
Two bars whose intervals overlap may well differ, and the half-width of one bar is not the
half-width of a difference.

For weights c_v, centred by their mean, the estimate is mean(c) + sum (c_v - mean(c)) raw_v: the
sum over the shifted histogram, unbiased, and never worse than the sum over the raw one. Its
variance is calculated for the raw frequencies, clipped and divided by their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec.attributes import Attribute
from protocol_spec.errors import ParameterError
from protocol_spec.estimation.frequencies import Estimate
from protocol_spec.estimation.intervals import (
    Array,
    critical_value,
    project_to_simplex,
    within_one,
)
from protocol_spec.results import RESULT_QUANTILES, HalfWidths, Numbers, ResultQuantile


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

    def standard_error(self, *, sampling: bool = True) -> float:
        """About the fleet; with `sampling=False`, about the devices that reported."""
        return math.sqrt(self.privacy_variance + (self.sampling_variance if sampling else 0.0))

    def half_width(
        self, confidence: float = 0.95, *, comparisons: int = 1, sampling: bool = True
    ) -> float:
        """Of the interval, before its ends are clipped; all `comparisons` hold at once."""
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
    f, known = plausible(estimated), estimated.moments
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
) -> HalfWidths:
    """The largest half-width of a difference over all pairs of values.

    The largest slope (f_u + f_v) - dilution (f_u - f_v)^2 over pairs of the sorted f: for each u it
    is concave in f_v with its top at f_u + slope / (2 dilution), so the best of the others is next
    to that, on one side or the other.
    """
    f, known = np.sort(plausible(estimated)), estimated.moments
    dilution = known.dilution if sampling else 0.0
    slope = known.base_slope + dilution
    if dilution > 0.0:
        tops = np.searchsorted(f, f + slope / (2.0 * dilution))
    else:
        tops = np.full(f.size, f.size if slope > 0.0 else 0)
    u = np.arange(f.size)[:, None]
    v = np.clip(tops[:, None] + np.arange(-2, 2), 0, f.size - 1)
    reached = slope * (f[u] + f[v]) - dilution * (f[u] - f[v]) ** 2
    error = math.sqrt(2.0 * known.base + float(reached[u != v].max()))
    pairs = math.comb(f.size, 2)
    return HalfWidths(*(critical_value(confidence, n) * error for n in (1, pairs)))


def _checked(estimated: Estimate, weights: npt.ArrayLike) -> Array:
    c = np.asarray(weights, dtype=np.float64)
    if estimated.raw.ndim != 1:
        raise ParameterError("raw", estimated.raw.shape, "must be the estimate of one result")
    if c.shape != estimated.raw.shape or not np.isfinite(c).all():
        remedy = f"must be {estimated.raw.size} finite numbers, one for each value"
        raise ParameterError("weights", weights, remedy)
    return c


# --- ratios: "among the devices that gave a number" -----------------------------------------------
# The interval of a ratio holds as often as that of a difference, also where the denominator is
# small. It is Fieller's: all r for which the sum less r times the share, itself a weighted sum with
# a known error, could be 0 by chance. If the share could be 0, that is every r.


class Parts(NamedTuple):
    """Variance of the numerator, covariance with the denominator, variance of the denominator."""

    above: Array
    both: Array
    below: float

    def of_sum(self, ratio: Array) -> Array:
        """Variance of the sum less `ratio` times the share."""
        found: Array = self.above - 2.0 * ratio * self.both + ratio**2 * self.below
        return np.maximum(found, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """One or several ratios with the same share as denominator, and where their error comes from.

    The true ratio lies between `smallest` and `largest`.
    """

    sums: Array
    share: float
    privacy: Parts
    sampling: Parts
    smallest: float
    largest: float

    @property
    def values(self) -> Array:
        """The ratios, clipped to what is possible."""
        return self._sums / max(self.share, np.finfo(np.float64).tiny)

    @property
    def _sums(self) -> Array:
        """Clipped to what is possible, which can only raise coverage."""
        share = max(self.share, 0.0)
        return np.minimum(np.maximum(self.sums, self.smallest * share), self.largest * share)

    def is_certain(self, confidence: float = 0.95, comparisons: int = 1) -> bool:
        """Whether the denominator could not be 0 by chance."""
        z = critical_value(confidence, comparisons)
        return self.share > z * float(np.sqrt(self.privacy.below + self.sampling.below))

    def variance(self, parts: Parts) -> Array:
        """Of the ratios, to first order, from one of the sources of error."""
        if self.share == 0.0:
            return np.full_like(self.values, np.inf)
        found: Array = parts.of_sum(self.values) / self.share**2
        return found

    def interval(
        self, confidence: float = 0.95, *, comparisons: int = 1, sampling: bool = True
    ) -> tuple[Array, Array]:
        """Limits, clipped to what is possible; all `comparisons` hold at once."""
        zz = critical_value(confidence, comparisons) ** 2
        above, both, below = self.privacy
        if sampling:  # the two errors are independent
            more = self.sampling
            above, both, below = above + more.above, both + more.both, below + more.below
        sums = self._sums
        lead = self.share**2 - zz * below
        if lead <= 0.0 or self.share <= 0.0:
            return np.full_like(sums, self.smallest), np.full_like(sums, self.largest)
        middle = (sums * self.share - zz * both) / lead
        reach = middle**2 - (sums**2 - zz * above) / lead
        half = np.sqrt(np.maximum(reach, 0.0))
        ends = (middle - half, middle + half)
        low, high = (np.minimum(np.maximum(x, self.smallest), self.largest) for x in ends)
        return low, high


# --- numeric attributes: mean, distribution function and quantiles --------------------------------
# All errors come from the same covariance as those of differences. The band of a distribution
# function holds for all edges at once; the interval of a quantile is between edges of bins, because
# a report says nothing about where in its bin a number lies. A histogram may have one value more
# than there are bins: its last value is then not a number, and everything here is about the devices
# that gave one.


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The share of devices below each inner edge of the bins."""

    ratio: Ratio

    @property
    def values(self) -> Array:
        """One share for each inner edge; they need not rise."""
        return self.ratio.sums / self.ratio.share

    @property
    def privacy_variance(self) -> Array:
        return self.ratio.variance(self.ratio.privacy)

    @property
    def sampling_variance(self) -> Array:
        return self.ratio.variance(self.ratio.sampling)

    def band(
        self, confidence: float = 0.95, *, simultaneous: bool = True, sampling: bool = True
    ) -> tuple[Array, Array]:
        """Lower and upper limits, clipped to [0, 1]; for all edges at once by default."""
        comparisons = max(self.ratio.sums.size, 1) if simultaneous else 1
        return self.ratio.interval(confidence, comparisons=comparisons, sampling=sampling)


@dataclass(frozen=True, slots=True)
class Quantile:
    """The number that a share `tau` of the devices lies below.

    `low` and `high` are edges of bins, and infinite where an outer bin is. `value` interpolates
    in its bin; there is none in a bin without an end.
    """

    tau: float
    value: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PartialMean(Contrast):
    """A mean over those devices only that gave a number."""

    ratio: Ratio

    def interval(
        self, confidence: float = 0.95, *, comparisons: int = 1, sampling: bool = True
    ) -> tuple[float, float]:
        """Clipped to what is possible: everything that is, where hardly anyone gave a number."""
        ends = self.ratio.interval(confidence, comparisons=comparisons, sampling=sampling)
        low, high = (float(end[0]) for end in ends)
        return low, high


def mean(estimated: Estimate, representatives: npt.ArrayLike) -> Contrast:
    """The mean over devices if every number were its bin's representative: see `binning_bias`."""
    at = np.asarray(representatives, dtype=np.float64)
    if at.size == estimated.raw.size:
        return contrast(estimated, at)
    bins = _bins(estimated, at.size)
    weights, inside = np.append(at, 0.0), np.append(np.ones(bins), 0.0)
    pairs = ((weights, weights), (weights, inside), (inside, inside))
    privacy, sampling = (
        Parts(np.array([above]), np.array([both]), below)
        for above, both, below in zip(*(covariance(estimated, a, b) for a, b in pairs))
    )
    total, share = (contrast(estimated, c).value for c in (weights, inside))
    ends = float(at.min()), float(at.max())
    ratio = Ratio(np.array([total]), share, privacy, sampling, *ends)
    variances = [float(ratio.variance(parts)[0]) for parts in (privacy, sampling)]
    return PartialMean(float(ratio.values[0]), variances[0], variances[1], *ends, ratio)


def midpoints(edges: Sequence[float]) -> Array:
    """A representative for each bin, if the outer bins have ends."""
    at = _increasing(edges, finite=True)
    return (at[:-1] + at[1:]) / 2.0


def binning_bias(edges: Sequence[float]) -> float:
    """The furthest that the mean of midpoints can be from the mean of the numbers."""
    return float(np.diff(_increasing(edges, finite=True)).max()) / 2.0


def cdf(estimated: Estimate, bins: int | None = None) -> Distribution:
    """The distribution function at the inner edges: `values[j]` is the share in bins 0..j.

    With one bin less than the histogram has values, it is that of the devices that gave a number.
    """
    k = estimated.raw.size
    bins = _bins(estimated, k if bins is None else bins)
    f, known, raw = plausible(estimated), estimated.moments, estimated.raw.cumsum()
    below = f.cumsum()[:bins]
    above = np.zeros(k)
    above[:-1] = f[::-1].cumsum()[-2::-1]  # not 1 - below: that loses digits
    above = above[:bins]
    part = np.arange(1, bins + 1) / k  # the mean of the weights: 1 up to the bin, else 0
    left = 1.0 - part
    reached = part + raw[:bins] - part * raw[-1]
    last, rest = float(part[-1]), float(above[-1])
    between = np.maximum(above - rest, 0.0)
    squares = below * left**2 + above * part**2
    mixed = below * left * (1.0 - last) - between * part * (1.0 - last) + rest * part * last
    each = known.base * k * part
    privacy = Parts(
        (each * left + known.base_slope * squares)[:-1],
        (each * (1.0 - last) + known.base_slope * mixed)[:-1],
        float(known.base * k * last * (1.0 - last) + known.base_slope * squares[-1]),
    )
    sampling = Parts(
        known.dilution * (below * above)[:-1],
        known.dilution * (below * rest)[:-1],
        float(known.dilution * below[-1] * rest),
    )
    return Distribution(Ratio(reached[:-1], float(reached[-1]), privacy, sampling, 0.0, 1.0))


def quantile(
    estimated: Estimate,
    edges: Sequence[float],
    tau: float,
    confidence: float = 0.95,
    *,
    simultaneous: bool = False,
    sampling: bool = True,
) -> Quantile:
    """One quantile; with `simultaneous` any number of them hold at once."""
    if not 0.0 < tau < 1.0:
        raise ParameterError("tau", tau, "must lie strictly between 0 and 1")
    at = _increasing(edges)
    bins = _bins(estimated, at.size - 1)
    function = cdf(estimated, bins)
    lower, upper = function.band(confidence, simultaneous=simultaneous, sampling=sampling)
    low = at[:-1][np.concatenate(([0.0], upper)) < tau].max()
    high = at[1:][np.concatenate((lower, [1.0])) > tau].min()
    low, high = sorted((float(low), float(high)))  # limits of a far too noisy function may cross
    share = function.ratio.share
    inside = estimated.raw[:bins] / (share if share > 0.0 else 1.0)
    point = _interpolated(project_to_simplex(inside), at, tau)
    return Quantile(tau, None if point is None else min(max(point, low), high), low, high)


def median(
    estimated: Estimate, edges: Sequence[float], confidence: float = 0.95, *, sampling: bool = True
) -> Quantile:
    """The number that half of the devices lie below."""
    return quantile(estimated, edges, 0.5, confidence, sampling=sampling)


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


# --- what a result says besides its bars ----------------------------------------------------------


def numbers_of(
    estimated: Estimate, attribute: Attribute, confidence: float = 0.95
) -> Numbers | None:
    """Mean, distribution function and quantiles of the devices that gave a number.

    None for a question of named values, and where hardly any device may have given a number.
    """
    if attribute.edges is None:
        return None
    function = cdf(estimated, attribute.bins)
    if not function.ratio.is_certain(confidence):
        return None
    low, high = function.band(confidence)
    quantiles = []
    for tau in RESULT_QUANTILES:
        found = quantile(estimated, attribute.edges, tau, confidence)
        ends = (end if math.isfinite(end) else None for end in (found.low, found.high))
        quantiles.append(ResultQuantile(tau, found.value, *ends))
    return Numbers(
        *_mean(estimated, attribute, confidence),
        cdf=tuple(function.ratio.values.tolist()),
        cdf_low=tuple(low.tolist()),
        cdf_high=tuple(high.tolist()),
        quantiles=tuple(quantiles),
    )


def _mean(
    estimated: Estimate, attribute: Attribute, confidence: float
) -> tuple[float | None, float | None, float | None, float | None]:
    """Value, limits, and the bias of taking each bin's middle; None if a bin has no middle."""
    edges = attribute.finite_edges
    if edges is None:
        return None, None, None, None
    found = mean(estimated, midpoints(edges))
    value = min(max(found.value, found.smallest), found.largest)
    return value, *found.interval(confidence), binning_bias(edges)
