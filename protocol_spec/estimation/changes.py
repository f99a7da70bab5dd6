"""How frequencies change: over the rounds of a campaign, and between two results.

Claim: the error of a trend accounts for what rounds have in common. Answers with fresh noise are
independent. Reports of one memo are not: what the memo and the choice of devices contribute cancels
in a change, as far as the same devices reported, and nothing else is taken to cancel. How many
devices two rounds share is bounded by how many of those heard before returned.

A fit is linear in the estimates: at each moment a weighted sum of the rounds, with weights that do
not depend on what was estimated, so that it is unbiased for the same sum of the true frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.intervals import (
    Array,
    critical_value,
    device_noise,
    project_to_simplex,
    within_one,
)
from protocol_spec.mechanisms.base import Channel, Mechanism

CONFIDENCE: Final = 0.95
MOMENTS: Final = 61  # at which a curve is calculated
_MISFIT_Z: Final = 3.09  # one in a thousand fits that are right is said not to describe rounds

Shape = Callable[[Array], Array]  # of moments, in rounds: a row of known functions for each


class Sums(NamedTuple):
    """Weighted sums over rounds, and how often what stays is in their variances: at most."""

    parts: Array
    kept: Array


@dataclass(frozen=True, eq=False)
class Series:
    """Estimates of one question in rounds or windows, oldest first.

    `raw[i]` is about the rounds `first[i]` to `last[i]`, from `n[i]` reports. With `memos`, rounds
    i and j share from least[i, j] n[i] n[j] to most[i, j] n[i] n[j] devices; without, all noise is
    fresh, and a device answers at most `each` times.
    """

    raw: Array
    first: Array
    last: Array
    n: Array
    channel: Channel
    memos: bool
    each: int
    least: Array
    most: Array

    @property
    def span(self) -> float:
        """From the beginning of the first round to the end of the last."""
        return float(self.last[-1] + 1.0 - self.first[0])

    def device_variance(self, weights: Array, f: Array) -> tuple[Array, Array]:
        """Of one report's weighted sum: what is drawn for each round, and what stays; for each
        histogram of `f`."""
        noise, c = device_noise(self.channel), weights - weights.mean()
        held = f @ (c * c)
        kept, fresh = (
            base * float(c @ c) + slope * held for base, slope in zip(noise.base, noise.base_slope)
        )
        sampling = np.maximum(held - (f @ c) ** 2, 0.0)
        if self.memos:
            return fresh, kept + sampling
        return fresh + kept + self.each * sampling, np.zeros_like(held)

    def sums(self, parts: Array) -> Sums:
        up, down = np.maximum(parts, 0.0), np.maximum(-parts, 0.0)
        alike = ((up @ self.most) * up + (down @ self.most) * down).sum(axis=-1)
        cancels = 2.0 * ((up @ self.least) * down).sum(axis=-1)
        return Sums(parts, np.maximum(alike - cancels, 0.0))

    def values(self, weights: Array) -> Array:
        """The weighted sum in each round, of its shifted histogram."""
        summed: Array = weights.mean() + self.raw @ (weights - weights.mean())
        return summed


def series(
    mechanism: Mechanism,
    raw: npt.ArrayLike,
    rounds: npt.ArrayLike,
    n: npt.ArrayLike,
    response: npt.ArrayLike,
    each: int = 1,
) -> Series:
    """`rounds[i]` are the first and last of estimate i, `response[i]` the devices heard before it
    and how many of them returned; zeros where nothing is known of that.

    Devices with one memo for life share its noise in all their rounds. Those that may answer with
    several are taken to have changed memos between any two rounds.
    """
    (first, last), (heard, returned) = (
        np.asarray(pair, dtype=np.float64).reshape(-1, 2).T for pair in (rounds, response)
    )
    size, table = np.asarray(n, dtype=np.float64), np.asarray(raw, dtype=np.float64)
    if mechanism.analysis.no_trend or size.size < 2 or table.shape != (size.size, mechanism.k):
        reason = mechanism.analysis.no_trend or "a trend needs two rounds with enough reports"
        raise ParameterError("rounds", size.size, reason)
    memos = mechanism.analysis.combined != "window"
    most = np.minimum.outer(size, size)
    least = np.diag(size)
    if memos and mechanism.memos == 1:
        new = size - returned
        ever = np.maximum(heard, heard[0] + np.cumsum(new) - new)  # also those forgotten since
        later = np.triu(size[:, None] - np.maximum(ever - returned, 0.0), k=1)
        shared = np.minimum(np.maximum(later, 0.0), most)
        least = least + shared + shared.T
    pairs = np.outer(size, size)
    channel = mechanism.channels[0]
    return Series(table, first, last, size, channel, memos, each, least / pairs, most / pairs)


# --- fits -----------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Estimates, and limits that hold for each by itself and for all at once."""

    value: Array
    low: Array
    high: Array
    low_all: Array
    high_all: Array


@dataclass(frozen=True, eq=False)
class Fit:
    """Least squares in a `Series`, each round weighing as many reports as it has.

    Coefficients, and what is calculated from them, are sums over the rounds: rows of their parts.
    """

    of: Series
    shape: Shape
    coefficients: Array
    period: float = 0.0  # of a wave, in rounds

    @cached_property
    def _curve(self) -> Sums:
        """At moments that are evenly spaced from the first round's beginning to the last's end."""
        at = np.linspace(self.of.first[0], self.of.last[-1] + 1.0, MOMENTS)
        return self.of.sums(self.shape(at) @ self.coefficients)

    @cached_property
    def _change(self) -> Sums:
        return self.of.sums(self._curve.parts[-1] - self._curve.parts[0])

    @cached_property
    def _wave(self) -> Sums:
        """The wave's two coefficients, turned in all directions."""
        angles = np.linspace(0.0, math.pi, MOMENTS)
        turned = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return self.of.sums(turned @ self.coefficients[1:])

    @cached_property
    def _band(self) -> float:
        """The critical value for all moments at once, from the length of the correlations' path on
        the sphere (Naiman's inequality; noise that rounds share makes the path shorter)."""
        path = self._curve.parts / np.sqrt(self.of.n)
        unit = path / np.linalg.norm(path, axis=1, keepdims=True)
        steps = np.clip((unit[1:] * unit[:-1]).sum(axis=1), -1.0, 1.0)
        length, low, high = float(np.arccos(steps).sum()), 0.0, 40.0
        for _ in range(60):
            z = (low + high) / 2.0
            beyond = 2.0 * NormalDist().cdf(-z) + length / math.pi * math.exp(-z * z / 2.0)
            low, high = (z, high) if beyond > 1.0 - CONFIDENCE else (low, z)
        return high

    @cached_property
    def _inner(self) -> Array:
        """The fitted value of each round."""
        fitted: Array = _columns(self.of, self.shape) @ self.coefficients
        return fitted

    @cached_property
    def _histograms(self) -> Array:
        """Of each round as fitted, which errors are calculated for."""
        return project_to_simplex(self._inner @ self.of.raw)

    def curve(self, weights: Array) -> Interval:
        """A weighted sum of frequencies at `MOMENTS` moments; `low_all` and `high_all` hold at all
        of them. Limits are never outside what is possible."""
        z = critical_value(CONFIDENCE), self._band
        return self._interval(self._curve, weights, z, (weights.min(), weights.max()))

    def change(self, weights: Array) -> Interval:
        """From the first moment to the last; at once with the changes of as many sums as there are
        values."""
        z, reach = (critical_value(CONFIDENCE, n) for n in (1, weights.size)), np.ptp(weights)
        return self._interval(self._change, weights, tuple(z), (-reach, reach))

    def swing(self, weights: Array) -> tuple[Interval, float]:
        """Of a wave: the highest less the lowest value, and the first moment of the highest.

        With the stated confidence both coefficients are in a circle around the estimated ones.
        """
        a, b = self.coefficients[1:] @ self.of.values(weights)
        value, error = np.array(2.0 * math.hypot(a, b)), self._error(self._wave, weights).max()
        alphas = (-math.expm1(math.log(CONFIDENCE) / n) for n in (1, weights.size))
        far = (2.0 * error * math.sqrt(-2.0 * math.log(alpha)) for alpha in alphas)
        ends = (np.clip(value + side, 0.0, np.ptp(weights)) for x in far for side in (-x, x))
        later = self.of.span / 2.0 + math.atan2(b, a) / math.tau * self.period
        return Interval(value, *ends), float(self.of.first[0]) + later % self.period

    def describes(self, weights: Array) -> bool:
        """Whether chance explains how far rounds are from the curve (chi-squared, made normal by
        Wilson and Hilferty's cube root)."""
        free = len(self.of.n) - len(self.coefficients)
        if free < 1:
            return True
        y, parts = self.of.values(weights), self.of.device_variance(weights, self._histograms)
        share = float(((y - self._inner @ y) ** 2 * self.of.n / sum(parts)).sum()) / free
        part = 2.0 / (9.0 * free)
        return float((share ** (1.0 / 3.0) - (1.0 - part)) / math.sqrt(part)) < _MISFIT_Z

    def _error(self, sums: Sums, weights: Array) -> Array:
        """No round's variance is taken to be less than the average: few reports may have it so."""
        fresh, kept = self.of.device_variance(weights, self._histograms)
        fresh = np.maximum(fresh, fresh.mean())
        error: Array = np.sqrt(sums.parts**2 @ (fresh / self.of.n) + kept.mean() * sums.kept)
        return error

    def _interval(
        self, sums: Sums, weights: Array, z: Sequence[float], limits: tuple[float, float]
    ) -> Interval:
        value, error = sums.parts @ self.of.values(weights), self._error(sums, weights)
        inside = np.clip(value, *limits)
        ends = (np.clip(inside + s * each * error, *limits) for each in z for s in (-1.0, 1.0))
        return Interval(value, *ends)


def fit_line(of: Series) -> Fit:
    return _fit(of, lambda x: [np.ones_like(x), x])


def fit_smooth(of: Series) -> Fit:
    """A cubic spline with a knot for every four rounds, but from 3 to 9: it follows what takes a
    third of the time, with 36 rounds a seventh."""
    count = min(max(of.n.size // 4, 3), 9)
    knots = np.linspace(-1.0, 1.0, count + 2)[1:-1]
    return _fit(
        of, lambda x: [*(x**i for i in range(4)), *(np.maximum(x - k, 0.0) ** 3 for k in knots)]
    )


def fit_harmonic(of: Series, period: float) -> Fit:
    """A level, and one wave of that `period` in rounds: the same in every period."""
    longest = float((of.last - of.first + 1.0).max())
    if of.span < 0.75 * period or longest > period / 2.0:
        remedy = "a wave needs rounds over most of its length, and at least two windows in it"
        raise ParameterError("period", period, remedy)
    turn = math.pi * of.span / period  # of x = 1
    return _fit(of, lambda x: [np.ones_like(x), np.cos(turn * x), np.sin(turn * x)], period)


def _fit(of: Series, at: Callable[[Array], list[Array]], period: float = 0.0) -> Fit:
    """The functions are averaged over the rounds of a window, and x runs from -1 to 1."""

    def shape(moments: Array) -> Array:
        return np.stack(at(2.0 * (moments - of.first[0]) / of.span - 1.0), axis=-1)

    columns = _columns(of, shape)
    count, root = columns.shape[1], np.sqrt(of.n)[:, None]
    if np.linalg.matrix_rank(columns * root) < count:
        needed = f"this fit needs at least {count} rounds or windows, spread over the time"
        raise ParameterError("rounds", of.n.size, needed)
    coefficients = np.asarray(np.linalg.pinv(columns * root) * root.T, dtype=np.float64)
    return Fit(of, shape, coefficients, period)


def _columns(of: Series, shape: Shape) -> Array:
    ends = zip(of.first.tolist(), of.last.tolist())
    return np.array([shape(np.arange(a, b + 1.0) + 0.5).mean(axis=0) for a, b in ends])


# --- two results ----------------------------------------------------------------------------------


def difference_interval(
    first: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    second: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    correlation: npt.ArrayLike = 0.0,
) -> tuple[Array, Array]:
    """Of `first` less `second`, each an estimate with its limits: from the distances to those, with
    the confidence of both (Zou and Donner). Skewed intervals give a skewed one.

    `correlation` is that of the errors; less than it is makes the interval wider.
    """
    (x, low, high), (y, below, above) = (
        tuple(np.asarray(part, dtype=np.float64) for part in each) for each in (first, second)
    )
    rho = np.asarray(correlation, dtype=np.float64)

    def reach(one: Array, other: Array) -> Array:
        squared = one**2 + other**2 - 2.0 * rho * one * other
        return np.sqrt(np.maximum(squared, 0.0))

    return x - y - reach(x - low, above - y), x - y + reach(high - x, y - below)


def shared_correlation(of: Series) -> Array:
    """Of the errors of the first and the last estimate of a series, for each value: at least."""
    average, k = project_to_simplex(of.n @ of.raw / of.n.sum()), of.raw.shape[1]
    parts = (of.device_variance(np.eye(1, k, i)[0], average) for i in range(k))
    kept = np.array([float(stays / (fresh + stays)) for fresh, stays in parts])
    together = float(of.least[0, -1] * math.sqrt(of.n[0] * of.n[-1]))
    return within_one(kept * together)
