"""Numeric attributes in numbers: mean, distribution function and quantiles of a result. Pure.

Devices whose answer is no number ("none of these / not known") are left out: what is stated is
about the others, a ratio of two estimates. Its error is that of numerator minus ratio times
denominator, which is one weighted sum of frequencies (the delta method); nothing is stated where
the denominator cannot be told from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from protocol_spec import RESULT_QUANTILES, Attribute, Numbers, ResultQuantile
from protocol_spec.estimation import (
    Array,
    Estimate,
    binning_bias,
    cdf,
    contrast,
    critical_value,
    mean,
    midpoints,
    plausible,
    project_to_simplex,
    quantile,
)

Limits = tuple[Array, Array]


def numbers_of(attribute: Attribute, estimated: Estimate, confidence: float) -> Numbers | None:
    """What a numeric attribute's histogram says in numbers; None for other attributes."""
    if attribute.edges is None:
        return None
    if attribute.bins == attribute.k:
        return _of_all(attribute, attribute.edges, estimated, confidence)
    answered = _Answered(estimated, attribute.bins)
    if answered.share_low(confidence) <= 0.0:
        return None
    return _of_answered(attribute, attribute.edges, answered, confidence)


def _of_all(
    attribute: Attribute, edges: Sequence[float], estimated: Estimate, confidence: float
) -> Numbers:
    """Every device's answer is a number."""
    made = cdf(estimated)
    low, high = made.band(confidence)
    ends = attribute.finite_edges
    centre: tuple[float | None, ...] = (None, None, None, None)
    if ends is not None:
        found = mean(estimated, midpoints(ends))
        inside = min(max(found.value, found.smallest), found.largest)
        centre = (inside, *found.interval(confidence), binning_bias(ends))
    quantiles = [quantile(estimated, edges, tau, confidence) for tau in RESULT_QUANTILES]
    rows = [_row(q.tau, q.value, q.low, q.high) for q in quantiles]
    return _numbers(centre, np.clip(made.values, 0.0, 1.0), (low, high), rows)


class _Answered:
    """The devices that answered with a number: the first `bins` values of an estimate."""

    def __init__(self, estimated: Estimate, bins: int) -> None:
        self.estimated, self.bins = estimated, bins
        self._share = contrast(estimated, np.arange(estimated.raw.size) < bins)
        self.histogram = estimated.shifted[:bins] / self._share.value
        self._held = plausible(estimated)[:bins]

    def share_low(self, confidence: float) -> float:
        """Lower limit of the share of devices that did."""
        return self._share.value - self._share.half_width(confidence)

    def cdf(self) -> Array:
        """At the upper end of every bin; 1 at the last one."""
        values: Array = np.clip(np.append(np.cumsum(self.histogram)[:-1], 1.0), 0.0, 1.0)
        return values

    def cdf_error(self) -> Array:
        """Standard error of it: of 1 up to the edge, less the ratio, in closed form."""
        bins, k = self.bins, self.bins + 1
        below, share = np.cumsum(self._held), float(self._held.sum())
        ratio, places = below / share, np.arange(1, k)
        average = (places - bins * ratio) / k  # of the weights
        squares = places * (1.0 - ratio) ** 2 + (bins - places) * ratio**2
        held = below * (1.0 - ratio) ** 2 + (share - below) * ratio**2
        known = self.estimated.moments
        variance = (
            known.base * (squares - k * average**2)
            + known.base_slope * (held + average**2)
            + known.dilution * held
        )
        error = np.sqrt(np.maximum(variance, 0.0)) / self._share.value
        error[-1] = 0.0  # all are below the last edge
        return error

    def mean(self, representatives: Array, z: float) -> tuple[float, float, float]:
        """Of numbers that are their bin's representative: estimate and limits."""
        found = float(representatives @ self.histogram)
        centre = min(max(found, float(representatives.min())), float(representatives.max()))
        weights = np.append(representatives - centre, 0.0)
        half = z * contrast(self.estimated, weights).standard_error() / self._share.value
        low, high = float(representatives.min()), float(representatives.max())
        return centre, max(centre - half, low), min(centre + half, high)


def _of_answered(
    attribute: Attribute, edges: Sequence[float], answered: _Answered, confidence: float
) -> Numbers:
    """Some devices had no number."""
    one, all_edges = (critical_value(confidence, n) for n in (1, max(answered.bins - 1, 1)))
    values, error = answered.cdf(), answered.cdf_error()
    limits = _limits(values, all_edges * error)
    ends = attribute.finite_edges
    centre: tuple[float | None, ...] = (None, None, None, None)
    if ends is not None:
        centre = (*answered.mean(midpoints(ends), one), binning_bias(ends))
    lower, upper = _limits(values, one * error)
    reached = np.cumsum(project_to_simplex(answered.histogram))
    rows = [_quantile(edges, tau, reached, lower, upper) for tau in RESULT_QUANTILES]
    return _numbers(centre, values, limits, rows)


def _limits(values: Array, half: Array) -> Limits:
    return np.maximum(values - half, 0.0), np.minimum(values + half, 1.0)


def _quantile(
    edges: Sequence[float], tau: float, reached: Array, lower: Array, upper: Array
) -> ResultQuantile:
    """Limits are edges of bins: a report says nothing about where in its bin a number lies."""
    at = np.asarray(edges, dtype=np.float64)
    low = at[:-1][np.concatenate(([0.0], upper[:-1])) < tau].max()
    high = at[1:][np.concatenate((lower[:-1], [1.0])) > tau].min()
    low, high = sorted((float(low), float(high)))
    place = min(int(np.searchsorted(reached, tau)), reached.size - 1)
    start = float(reached[place - 1]) if place else 0.0
    (left, right), rise = list(pairwise(at.tolist()))[place], float(reached[place]) - start
    if not math.isfinite(left) or not math.isfinite(right):
        return _row(tau, None, low, high)
    part = min(max((tau - start) / rise, 0.0), 1.0) if rise > 0.0 else 1.0
    return _row(tau, min(max(left + (right - left) * part, low), high), low, high)


def _row(tau: float, value: float | None, low: float, high: float) -> ResultQuantile:
    ends = [end if math.isfinite(end) else None for end in (low, high)]
    return ResultQuantile(tau, value, *ends)


def _numbers(
    centre: Sequence[float | None], values: Array, limits: Limits, rows: Sequence[ResultQuantile]
) -> Numbers:
    middle, low, high, bias = centre
    at, lowest, highest = (tuple(each.tolist()) for each in (values, *limits))
    return Numbers(middle, low, high, bias, at, lowest, highest, tuple(rows))
