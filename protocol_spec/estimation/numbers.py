"""Numeric attributes: mean, distribution function and quantiles of a histogram, with intervals.

Claim: all errors come from the same covariance as those of differences. The band of a
distribution function holds for all edges at once; the interval of a quantile is between edges of
bins, because a report says nothing about where in its bin a number lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.frequencies import Estimate
from protocol_spec.estimation.functionals import Contrast, contrast, plausible
from protocol_spec.estimation.histograms import Array
from protocol_spec.estimation.intervals import critical_value

__all__ = [
    "Distribution",
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
    """The share of devices below each inner edge of the bins: k-1 unbiased estimates."""

    values: Array
    privacy_variance: Array
    sampling_variance: Array

    def band(
        self, confidence: float = 0.95, *, simultaneous: bool = True, sampling: bool = True
    ) -> tuple[Array, Array]:
        """Lower and upper limits, clipped to [0, 1]; for all edges at once unless told."""
        variance = self.privacy_variance + (self.sampling_variance if sampling else 0.0)
        z = critical_value(confidence, self.values.size if simultaneous else 1)
        half, centre = z * np.sqrt(variance), np.clip(self.values, 0.0, 1.0)
        return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


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


def mean(estimated: Estimate, representatives: npt.ArrayLike) -> Contrast:
    """The mean over devices if every number were its bin's representative: see `binning_bias`."""
    return contrast(estimated, representatives)


def midpoints(edges: Sequence[float]) -> Array:
    """A representative for each bin, if the outer bins have ends."""
    return (_finite(edges)[:-1] + _finite(edges)[1:]) / 2.0


def binning_bias(edges: Sequence[float]) -> float:
    """The furthest that the mean of midpoints can be from the mean of the numbers."""
    return float(np.diff(_finite(edges)).max()) / 2.0


def cdf(estimated: Estimate) -> Distribution:
    """The distribution function at the inner edges: `values[j]` is the share in bins 0..j."""
    f, known = plausible(estimated), estimated.moments
    below, above = np.cumsum(f)[:-1], np.cumsum(f[::-1])[-2::-1]
    share = np.arange(1, f.size) / f.size  # the mean of the weights: 1 below the edge, else 0
    squares = below * (1.0 - share) ** 2 + above * share**2
    raw = np.cumsum(estimated.raw)
    return Distribution(
        values=share + raw[:-1] - share * raw[-1],
        privacy_variance=known.base * f.size * share * (1.0 - share) + known.base_slope * squares,
        sampling_variance=known.dilution * below * above,
    )


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
    at = _increasing(edges, estimated.raw.shape[-1])
    lower, upper = cdf(estimated).band(confidence, simultaneous=simultaneous, sampling=sampling)
    low = at[:-1][np.concatenate(([0.0], upper)) < tau].max()
    high = at[1:][np.concatenate((lower, [1.0])) > tau].min()
    low, high = sorted((float(low), float(high)))  # limits of a far too noisy function may cross
    point = _interpolated(estimated.projected, at, tau)
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
    if not np.isfinite((low, high)).all():
        return None
    part = 1.0 - (float(reached[bin_]) - tau) / float(histogram[bin_])
    return low + (high - low) * min(max(part, 0.0), 1.0)


def _increasing(edges: Sequence[float], k: int) -> Array:
    at = np.asarray(edges, dtype=np.float64)
    if at.shape != (k + 1,) or not (np.diff(at) > 0.0).all():
        raise ParameterError("edges", edges, f"must be {k + 1} increasing numbers for {k} bins")
    return at


def _finite(edges: Sequence[float]) -> Array:
    at = np.asarray(edges, dtype=np.float64)
    if at.ndim != 1 or at.size < 2 or not np.isfinite(at).all() or not (np.diff(at) > 0.0).all():
        raise ParameterError("edges", edges, "must increase and have finite ends for a mean")
    return at
