"""Intervals that hold as often as they say, also where estimates are skewed or near 0 and 1.

Claim: a nominal 95 % interval of `skew_corrected_interval` holds in 95 % of cases up to what the
discreteness of counts allows, for one value and, with the critical value of all, for all at once.

A score interval is all f whose own variance would not make the estimate surprising. "Surprising"
is a number of standard deviations. The normal one is wrong in the tails of a skewed count, and a
simultaneous interval lives in the tails: it is corrected by the first term of Cornish and Fisher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.histograms import Array, within_one
from protocol_spec.estimation.moments import Moments

__all__ = [
    "GRID",
    "critical_value",
    "score_interval",
    "skew_corrected_interval",
    "skew_corrected_intervals",
]

GRID: Final = np.linspace(0.0, 1.0, 401)
_NEAR: Final = 2.0**-50  # ends that are as near as this have met
_TURNS: Final = 400  # far more than there ever are: every eighth halves the width
_LEAST: Final = 0.6  # of the normal critical value: the correction is a series and must not run off
_ORIGIN: Final = np.array([0.0, 1.0])[:, None, None]  # the end that f is seen from,
_UP: Final = np.array([1.0, -1.0])[:, None, None]  # and where it lies from there


@lru_cache(maxsize=256)
def critical_value(confidence: float, comparisons: int = 1) -> float:
    """Two-sided normal quantile; for several comparisons the Sidak one that holds for all."""
    if not 0.0 < confidence < 1.0:
        raise ParameterError("confidence", confidence, "must lie strictly between 0 and 1")
    if comparisons < 1:
        raise ParameterError("comparisons", comparisons, "must be 1 or more")
    alpha = -np.expm1(np.log(confidence) / comparisons)
    return -NormalDist().inv_cdf(float(alpha) / 2.0)


def skew_corrected_interval(
    raw: npt.ArrayLike, moments: Moments, *, z: float
) -> tuple[Array, Array]:
    """The smallest and the largest f in [0, 1] that do not make the estimate surprising.

    Centred on the estimate clipped to [0, 1], which can only raise coverage. Moments depend on f
    only, so equal estimates have equal intervals and are worked out once.
    """
    (interval,) = skew_corrected_intervals(raw, moments, [z])
    return interval


def skew_corrected_intervals(
    raw: npt.ArrayLike, moments: Moments, z: Sequence[float]
) -> list[tuple[Array, Array]]:
    """The same for several critical values at once, which takes hardly longer than for one."""
    clipped = within_one(np.asarray(raw, dtype=np.float64))
    centre, place = np.unique(clipped, return_inverse=True)
    low, above = _ends(centre, moments, z)
    ends = np.minimum(low, centre), np.maximum(1.0 - above, centre)
    lows, highs = (end[:, place.ravel()].reshape(-1, *clipped.shape) for end in ends)
    return list(zip(lows, highs))


class _Curve:
    """How far an estimate can be from 0 (or 1) by chance, if f is at g.

    Of every g there are two blocks: the first looks up from g = f, the second down from g = 1 - f.
    In each there is a row for every critical value.
    """

    def __init__(self, moments: Moments, z: Sequence[float]) -> None:
        self._moments = moments
        self._z = np.array(z)[:, None]
        self._side = _UP * (self._z * self._z - 1.0) / 6.0

    def __call__(self, g: Array) -> Array:
        variance, third = self._moments.variance_and_third(_ORIGIN + _UP * g)
        deviation = self._z * np.sqrt(variance)
        corrected = deviation + self._side * third / variance
        reached: Array = g + np.maximum(corrected, _LEAST * deviation)
        return reached


@lru_cache(maxsize=64)  # it is the same for all results of as many reports
def _scan(moments: Moments, z: tuple[float, ...]) -> Array:
    """The largest value of the curve up to each point of the grid, with a row for each z."""
    scan: Array = np.maximum.accumulate(_Curve(moments, z)(GRID), axis=2).reshape(-1, GRID.size)
    return scan


def _ends(centre: Array, moments: Moments, z: Sequence[float]) -> Array:
    """Lower ends seen from 0, and upper ends seen from 1: smallest g where g + reach is enough.

    All are found at once.
    """
    target = np.repeat(_ORIGIN + _UP * centre, len(z), axis=1)
    scan = _scan(moments, tuple(z))
    rows = zip(scan, target.reshape(len(scan), -1))
    first = np.array([row.searchsorted(wanted) for row, wanted in rows]).reshape(target.shape)
    between = GRID[np.maximum((first - 1, first), 0)]
    return _crossing(_Curve(moments, z), target, between)


def _crossing(curve: Callable[[Array], Array], target: Array, ends: Array) -> Array:
    """Where the curve reaches the target between the first end, where it does not, and the second.

    The secant's crossing, again and again, never leaving the two ends. The value at an end that
    stayed twice is halved, so that it moves next (Illinois), and now and then it is the middle, so
    that the ends always meet.
    """
    under, over = curve(ends) - target
    values = np.array((np.minimum(under, -_NEAR), np.maximum(over, 0.0)))
    before = np.zeros(ends.shape, dtype=np.bool_)
    for turn in range(_TURNS):
        width = ends[1] - ends[0]
        apart = width > _NEAR
        if not apart.any():
            break
        under, over = values
        share = 0.5 if turn % 8 == 7 else over / (over - under)
        step = np.minimum(np.maximum(share * width, _NEAR / 2.0), width - _NEAR / 2.0)
        middle = ends[1] - step
        rest = curve(middle) - target
        moved = np.array((rest < 0.0, rest >= 0.0)) & apart
        other_again = (moved & before)[::-1]
        values = np.where(moved, rest, np.where(other_again, values / 2.0, values))
        ends = np.where(moved, middle, ends)
        before = moved
    met: Array = ends[1]
    return met


def score_interval(
    raw: npt.ArrayLike, v0: float, v1: float, *, z: float, dilution: float = 0.0
) -> tuple[Array, Array]:
    """The same without the correction, in closed form; for large n, and one value at a time."""
    centre = within_one(np.asarray(raw, dtype=np.float64))
    zz = z * z
    lead = 1.0 + zz * dilution
    half = centre + zz * (v1 - v0 + dilution) / 2.0
    product = centre**2 - zz * v0
    root = np.sqrt(np.maximum(half**2 - lead * product, 0.0))
    # The end further from 0 first: subtracting the root would lose the digits of the other.
    outer = half + np.copysign(root, half)
    inner = np.divide(product, outer, out=np.zeros_like(outer), where=outer != 0.0)
    ends = np.stack((outer / lead, inner))
    return within_one(ends.min(axis=0)), within_one(ends.max(axis=0))
