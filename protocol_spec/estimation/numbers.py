"""Numeric attributes: mean, distribution function and quantiles of a histogram, with intervals.

Claim: all errors come from the same covariance as those of differences. The band of a
distribution function holds for all edges at once; the interval of a quantile is between edges of
bins, because a report says nothing about where in its bin a number lies.

A histogram may have one value more than there are bins: its last value is then no number, and
everything here is about the devices that gave one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.frequencies import Estimate
from protocol_spec.estimation.functionals import (
    Contrast,
    contrast,
    covariances,
    plausible,
    weighted_sum,
)
from protocol_spec.estimation.histograms import Array, project_to_simplex
from protocol_spec.estimation.ratios import Parts, Ratio

__all__ = [
    "Distribution",
    "PartialMean",
    "Quantile",
    "binning_bias",
    "cdf",
    "mean",
    "median",
    "midpoints",
    "quantile",
]


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The share of devices below each inner edge of the bins."""

    ratio: Ratio

    @property
    def values(self) -> Array:
        """One share for each inner edge; need not rise."""
        return self.ratio.sums / self.ratio.share

    @property
    def privacy_variance(self) -> Array:
        """From the noise that devices add."""
        return self.ratio.variance(self.ratio.privacy)

    @property
    def sampling_variance(self) -> Array:
        """From having heard these devices and not others."""
        return self.ratio.variance(self.ratio.sampling)

    def band(
        self, confidence: float = 0.95, *, simultaneous: bool = True, sampling: bool = True
    ) -> tuple[Array, Array]:
        """Lower and upper limits, clipped to [0, 1]; for all edges at once unless told."""
        comparisons = max(self.ratio.sums.size, 1) if simultaneous else 1
        return self.ratio.interval(confidence, comparisons=comparisons, sampling=sampling)


@dataclass(frozen=True, slots=True)
class Quantile:
    """Below which number a share of the devices lies.

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
    privacy, sampling = (
        Parts(np.array([above]), np.array([both]), below)
        for above, both, below in zip(*covariances(estimated, weights, inside))
    )
    total, share = (weighted_sum(estimated, c) for c in (weights, inside))
    ends = float(at.min()), float(at.max())
    ratio = Ratio(np.array([total]), share, privacy, sampling, *ends)
    return PartialMean(
        value=float(ratio.values[0]),
        privacy_variance=float(ratio.variance(privacy)[0]),
        sampling_variance=float(ratio.variance(sampling)[0]),
        smallest=ends[0],
        largest=ends[1],
        ratio=ratio,
    )


def midpoints(edges: Sequence[float]) -> Array:
    """A representative for each bin, if the outer bins have ends."""
    return (_finite(edges)[:-1] + _finite(edges)[1:]) / 2.0


def binning_bias(edges: Sequence[float]) -> float:
    """The furthest that the mean of midpoints can be from the mean of the numbers."""
    return float(np.diff(_finite(edges)).max()) / 2.0


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


def _increasing(edges: Sequence[float]) -> Array:
    at = np.asarray(edges, dtype=np.float64)
    if at.ndim != 1 or at.size < 2 or not (np.diff(at) > 0.0).all():
        raise ParameterError("edges", edges, "must be increasing numbers, one more than bins")
    return at


def _finite(edges: Sequence[float]) -> Array:
    at = np.asarray(edges, dtype=np.float64)
    if at.ndim != 1 or at.size < 2 or not np.isfinite(at).all() or not (np.diff(at) > 0.0).all():
        raise ParameterError("edges", edges, "must increase and have finite ends for a mean")
    return at
