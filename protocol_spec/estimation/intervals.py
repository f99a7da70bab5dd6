"""Intervals that hold as often as they say, also where estimates are skewed or near 0 and 1.

Claim: a nominal 95 % interval of `skew_corrected_interval` holds in 95 % of cases up to what the
discreteness of counts allows, for one value and, with the critical value of all, for all at once.

A score interval is all f whose own variance would not make the estimate surprising. "Surprising"
is a number of standard deviations. The normal one is wrong in the tails of a skewed count, and a
simultaneous interval lives in the tails: it is corrected by the first term of Cornish and Fisher.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.histograms import Array
from protocol_spec.estimation.moments import Moments

__all__ = ["GRID", "critical_value", "score_interval", "skew_corrected_interval"]

GRID: Final = np.linspace(0.0, 1.0, 401)
_HALVINGS: Final = 52
_LEAST: Final = 0.6  # of the normal critical value: the correction is a series and must not run off


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
    clipped = np.clip(np.asarray(raw, dtype=np.float64), 0.0, 1.0)
    centre, place = np.unique(clipped, return_inverse=True)
    low, above = _ends(centre, moments, z)
    high = 1.0 - above
    ends = np.minimum(low, centre), np.maximum(high, centre)
    lows, highs = (end[place].reshape(clipped.shape) for end in ends)
    return lows, highs


def _ends(centre: Array, moments: Moments, z: float) -> Array:
    """Lower ends seen from 0, and upper ends seen from 1: smallest g where g + reach is enough.

    Both are found at once. The first row looks up from g = f, the second down from g = 1 - f.
    """
    from_0 = np.array([[True], [False]])
    target = np.where(from_0, centre, 1.0 - centre)
    side = np.where(from_0, 1.0, -1.0) * (z * z - 1.0) / 6.0

    def curve(g: Array) -> Array:
        """How far an estimate can be from 0 (or 1) by chance, if f is at g."""
        f = np.where(from_0, g, 1.0 - g)
        surprising = np.maximum(z + side * moments.skewness(f), _LEAST * z)
        reached: Array = g + surprising * np.sqrt(moments.variance(f))
        return reached

    scan = np.maximum.accumulate(curve(GRID), axis=1)
    first = np.stack([np.searchsorted(row, wanted) for row, wanted in zip(scan, target)])
    below: Array = GRID[np.maximum(first - 1, 0)]
    enough: Array = GRID[first]
    for _ in range(_HALVINGS):
        middle = (below + enough) / 2.0
        reached = curve(middle) >= target
        below, enough = np.where(reached, below, middle), np.where(reached, middle, enough)
    return enough


def score_interval(
    raw: npt.ArrayLike, v0: float, v1: float, *, z: float, dilution: float = 0.0
) -> tuple[Array, Array]:
    """The same without the correction, in closed form; for large n, and one value at a time."""
    centre = np.clip(np.asarray(raw, dtype=np.float64), 0.0, 1.0)
    zz = z * z
    lead = 1.0 + zz * dilution
    half = centre + zz * (v1 - v0 + dilution) / 2.0
    product = centre**2 - zz * v0
    root = np.sqrt(np.maximum(half**2 - lead * product, 0.0))
    # The end further from 0 first: subtracting the root would lose the digits of the other.
    outer = half + np.copysign(root, half)
    inner = np.divide(product, outer, out=np.zeros_like(outer), where=outer != 0.0)
    ends = np.stack((outer / lead, inner))
    return np.clip(ends.min(axis=0), 0.0, 1.0), np.clip(ends.max(axis=0), 0.0, 1.0)
