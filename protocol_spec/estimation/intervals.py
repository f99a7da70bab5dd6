"""Histograms from raw estimates, the exact error of an estimate, and intervals from that.

Claim: `Moments` gives the exact second and third cumulant of a raw estimate for every frequency
f, for devices drawn at random from a large fleet, from a finite one, or not drawn at all, and for
any weights of devices; and with them the exact variance of any linear function of a histogram.

One device sends m reports of one memo. Its debiased mean, given whether it holds the value, has
cumulants that are polynomials in 1/m; the coefficients follow from p1, q1, p2, q2 and are
calculated once in 80-digit decimals. What remains is sums over devices with their weights.

Claim: a nominal 95 % interval of `skew_corrected_interval` holds in 95 % of cases up to what the
discreteness of counts allows, for one value and, with the critical value of all, for all at once.

A score interval is all f whose own variance would not make the estimate surprising. "Surprising"
is a number of standard deviations. The normal one is wrong in the tails of a skewed count, where
simultaneous intervals end: it is corrected by the first term of Cornish and Fisher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from statistics import NormalDist
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.mechanisms.base import Channel
from protocol_spec.probabilities import Probabilities, precise

Array = npt.NDArray[np.float64]


def project_to_simplex(raw: npt.ArrayLike) -> Array:
    """Euclidean projection on the histograms (also called Norm-Sub), along the last axis."""
    values = np.asarray(raw, dtype=np.float64)
    projected: Array = values - excess(values, 1.0)
    return np.maximum(projected, 0.0, out=projected)


def excess(values: Array, total: Array | float) -> Array:
    """What to take from all, along the last axis, so that their parts above zero have that sum."""
    falling = -np.sort(-values, axis=-1)
    of_most = (np.cumsum(falling, axis=-1) - total) / np.arange(1, values.shape[-1] + 1)
    positive = np.maximum((falling > of_most).sum(axis=-1, keepdims=True), 1)
    found: Array = np.take_along_axis(of_most, positive - 1, axis=-1)
    return found


def within_one(raw: Array) -> Array:
    """Clipped to [0, 1], in a third of the time that `np.clip` takes for a few numbers."""
    return np.minimum(np.maximum(raw, 0.0), 1.0)


def shift_to_one(raw: npt.ArrayLike) -> Array:
    """Add the same amount to every estimate so that they sum to one; stays unbiased."""
    values = np.asarray(raw, dtype=np.float64)
    missing = 1.0 - values.sum(axis=-1, keepdims=True)
    shifted: Array = values + missing / values.shape[-1]
    return shifted


# --- moments --------------------------------------------------------------------------------------


Number = TypeVar("Number", float, Decimal)
Terms = tuple[float, ...]  # coefficients of 1, 1/m and often 1/m^2


class DeviceNoise(NamedTuple):
    """One device's debiased mean of m reports. Slopes: how much more if it holds the value."""

    qs: float
    gap: float
    variance: Terms
    variance_slope: Terms
    third: Terms
    third_slope: Terms
    base: Terms
    base_slope: Terms


class Group(NamedTuple):
    """Devices with the same noise: sizes, numbers of reports each, and weights, as arrays."""

    noise: DeviceNoise
    size: Array
    reports: Array
    weight: Array


# Moments by how they grow with the weights of devices: with their squares, and with their cubes.
SQUARES: Final = ("v0", "slope", "base", "base_slope", "dilution")
CUBES: Final = ("third0", "third_slope", "coupled", "third_dilution")


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known of an estimate's error before its value is.

    variance   v0 + f slope + f (1-f) dilution
    third      third0 + f third_slope + 3 f (1-f) coupled + f (1-f) (1-2f) third_dilution
    linear     variance of sum c_v raw_v: base Q + base_slope Qf + dilution (Qf - t^2), where
               sum c_v = 0, Q = sum c_v^2, Qf = sum f_v c_v^2, t = sum f_v c_v

    The terms with f (1-f) are sampling error: of having reports of these devices and not of others.
    `n_eff` is 1 over the sum of squared weights: the number of devices of equal weight that would
    give the same sampling error.
    """

    v0: float
    slope: float
    third0: float
    third_slope: float
    base: float
    base_slope: float
    n_eff: float
    dilution: float
    coupled: float
    third_dilution: float

    def variance_and_third(self, f: Array) -> tuple[Array, Array]:
        """Variance and third cumulant of the estimate of a value of frequency f."""
        spread = f * (1.0 - f)
        sampled = 3.0 * self.coupled + (1.0 - 2.0 * f) * self.third_dilution
        variance: Array = self.v0 + f * self.slope + spread * self.dilution
        return variance, self.third0 + f * self.third_slope + spread * sampled

    @property
    def base_coupled(self) -> float:
        """`coupled` of a weighted sum, which has `base_slope` in place of `slope`."""
        return self.coupled * self.base_slope / self.slope if self.slope else 0.0

    def variance(self, f: Array) -> Array:
        return self.variance_and_third(f)[0]

    def skewness(self, f: Array) -> Array:
        """Third cumulant over the 3/2th power of the variance."""
        variance, third = self.variance_and_third(f)
        skewness: Array = third / variance**1.5
        return skewness

    def without_sampling(self) -> Moments:
        """About the devices that reported, weighed as they are, and nobody else."""
        return replace(self, dilution=0.0, coupled=0.0, third_dilution=0.0)


def device_noise(channel: Channel) -> DeviceNoise:
    """The coefficients, rounded once."""
    return _device_noise(channel.exact, None if channel.unary else channel.k)


@lru_cache(maxsize=256)
@precise
def _device_noise(exact: Probabilities, k: int | None) -> DeviceNoise:
    p1, q1, p2, q2 = exact
    absent, held = _cumulants(q1, exact), _cumulants(p1, exact)
    slopes = [[h - a for h, a in zip(*pair)] for pair in zip(held, absent)]
    linear = [absent[0], slopes[0]]
    if k is not None:
        linear = [
            list(x) for x in zip(*(linear_terms(*pair, k) for pair in zip(absent[0], held[0])))
        ]
    terms = (absent[0], slopes[0], absent[1], slopes[1], *linear)
    qs, gap = q1 * p2 + (1 - q1) * q2, (p1 - q1) * (p2 - q2)
    return DeviceNoise(float(qs), float(gap), *(tuple(map(float, t)) for t in terms))


def linear_terms(absent: Number, held: Number, k: int) -> tuple[Number, Number]:
    """`Moments.base` and `base_slope` where every report supports as many values (GRR, SS).

    From the variances of a value not held, and held. A device's estimates sum to a constant, so
    that each has covariance -1 times its variance with the sum of all others. That determines the
    covariance of the value held with another, and of two that are not held.
    """
    with_held = -held / (k - 1)
    apart = -(absent + with_held) / (k - 2) if k > 2 else -absent
    return absent - apart, held - absent - 2 * with_held + 2 * apart


def _cumulants(kept: Decimal, exact: Probabilities) -> tuple[list[Decimal], list[Decimal]]:
    """Variance and third cumulant if the memo supports the value with that probability.

    A mixture of Bin(m, p2) and Bin(m, q2), by the laws of total variance and cumulance.
    """
    p1, q1, p2, q2 = exact
    d1, d2 = p1 - q1, p2 - q2
    memo, one, none = kept * (1 - kept), p2 * (1 - p2), q2 * (1 - q2)
    variance = [memo * d2**2, kept * one + (1 - kept) * none]
    third = [
        memo * (1 - 2 * kept) * d2**3,
        3 * memo * d2 * (one - none),
        kept * one * (1 - 2 * p2) + (1 - kept) * none * (1 - 2 * q2),
    ]
    gap = d1 * d2
    return [term / gap**2 for term in variance], [term / gap**3 for term in third]


def moments(groups: Sequence[Group], fleet: int | None = None) -> Moments:
    """Of the weighted sum over all devices, whose weights sum to one.

    `fleet` is the number N of devices that those were drawn from without replacement. Devices
    without reports weigh 0, and weights count from 1/N: for weights w of all N devices, the sum of
    w x over a random assignment of the x has variance f (1-f) times sum (w - 1/N)^2 N/(N-1), and
    third cumulant f (1-f) (1-2f) times sum (w - 1/N)^3 N^2/((N-1)(N-2)). For a large fleet, 1/N is
    0 and both factors are 1.
    """
    size, weight = _joined([g.size for g in groups]), _joined([g.weight for g in groups])
    square, cube = size * weight**2, size * weight**3

    def total(weights: Array, name: str) -> float:
        each = [_at(getattr(group.noise, name), group.reports) for group in groups]
        return float(weights @ _joined(each))

    share, silent, second, third = 0.0, 0, 1.0, 1.0
    if fleet is not None:
        reporting = round(float(size.sum()))
        if fleet < reporting:
            remedy = f"the fleet is at least the n = {reporting} that reported"
            raise ParameterError("fleet", fleet, remedy)
        share, silent = 1.0 / fleet, fleet - reporting
        second = fleet / (fleet - 1) if fleet > 1 else 0.0
        third = second * fleet / (fleet - 2) if fleet > 2 else 0.0
    apart = weight - share
    relative = weight / weight.max()  # so that n_eff is exactly n if all weigh the same
    return Moments(
        v0=total(square, "variance"),
        slope=total(square, "variance_slope"),
        third0=total(cube, "third"),
        third_slope=total(cube, "third_slope"),
        base=total(square, "base"),
        base_slope=total(square, "base_slope"),
        n_eff=float((size @ relative) ** 2 / (size @ relative**2)),
        dilution=second * (float(size @ apart**2) + silent * share**2),
        coupled=second * total(square * apart, "variance_slope"),
        third_dilution=third * (float(size @ apart**3) - silent * share**3),
    )


def _joined(parts: Sequence[Array]) -> Array:
    """There is nearly always one group only."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _at(terms: Terms, reports: Array) -> Array:
    """The polynomial in 1/m."""
    value = terms[-1] / reports + terms[-2]
    for term in reversed(terms[:-2]):
        value = value / reports + term
    return value


# --- intervals ------------------------------------------------------------------------------------


GRID: Final = np.linspace(0.0, 1.0, 401)
_NEAR: Final = 2.0**-50  # ends that are as near as this have met
_TURNS: Final = 400  # far more than there ever are: every eighth halves the width
LEAST: Final = 0.6  # of the normal critical value: the correction is a series and must not diverge
_ORIGIN: Final = np.array([0.0, 1.0])[:, None, None]  # the end that f is measured from,
_UP: Final = np.array([1.0, -1.0])[:, None, None]  # and the direction


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
    only, so equal estimates have equal intervals, which are calculated once.
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

    For every g there are two blocks: the first counts up from g = f, the second down from
    g = 1 - f. In each there is a row for every critical value.
    """

    def __init__(self, moments: Moments, z: Sequence[float]) -> None:
        self._moments = moments
        self._z = np.array(z)[:, None]
        self._side = _UP * (self._z * self._z - 1.0) / 6.0

    def __call__(self, g: Array) -> Array:
        variance, third = self._moments.variance_and_third(_ORIGIN + _UP * g)
        deviation = self._z * np.sqrt(variance)
        corrected = deviation + self._side * third / variance
        reached: Array = g + np.maximum(corrected, LEAST * deviation)
        return reached


@lru_cache(maxsize=64)  # it is the same for all results of as many reports
def _scan(moments: Moments, z: tuple[float, ...]) -> Array:
    """The largest value of the curve up to each point of the grid, with a row for each z."""
    scan: Array = np.maximum.accumulate(_Curve(moments, z)(GRID), axis=2).reshape(-1, GRID.size)
    return scan


def _ends(centre: Array, moments: Moments, z: Sequence[float]) -> Array:
    """Lower ends from 0, upper ends from 1: smallest g where g + reach is enough, all at once."""
    target = np.repeat(_ORIGIN + _UP * centre, len(z), axis=1)
    scan = _scan(moments, tuple(z))
    rows = zip(scan, target.reshape(len(scan), -1))
    first = np.array([row.searchsorted(wanted) for row, wanted in rows]).reshape(target.shape)
    between = GRID[np.maximum((first - 1, first), 0)]
    return _crossing(_Curve(moments, z), target, between)


def _crossing(curve: Callable[[Array], Array], target: Array, ends: Array) -> Array:
    """Where the curve reaches the target between the first end, where it does not, and the second.

    The secant's crossing, repeatedly, never leaving the two ends. The value at an end that stayed
    twice is halved, so that it moves next (Illinois), and every eighth time it is the middle, so
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
