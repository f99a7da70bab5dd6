"""Variance, skewness and covariance of estimates, as exact functions of the true frequencies.

Claim: `Moments` gives the exact second and third cumulant of a raw estimate for every frequency
f, for devices drawn at random from a large fleet, from a finite one, or not drawn at all, and for
any weights of devices; and with them the exact variance of any linear function of a histogram.

One device sends m reports of one memo. Its debiased mean, given whether it holds the value, has
cumulants that are polynomials in 1/m; the coefficients follow from p1, q1, p2, q2 and are worked
out once in 80-digit decimals. What remains is sums over devices with their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from protocol_spec.chances import Chances
from protocol_spec.errors import ParameterError
from protocol_spec.estimation.histograms import Array
from protocol_spec.precision import precise

__all__ = ["Channel", "DeviceNoise", "Group", "Moments", "device_noise", "moments"]

Terms = tuple[float, ...]  # coefficients of 1, 1/m and often 1/m^2


class Channel(Protocol):
    """Whatever turns values into reports with four known chances, such as a `Calibration`."""

    @property
    def k(self) -> int:
        """Number of values."""

    @property
    def unary(self) -> bool:
        """Whether values are supported independently of each other, given the true one."""

    @property
    def exact(self) -> Chances:
        """p1, q1 of the memo; p2, q2 of a report, given the memo."""


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
    """Devices with the same noise: how many sent how many reports each, and weigh how much."""

    noise: DeviceNoise
    size: Array
    reports: Array
    weight: Array


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known of an estimate's error before its value is looked at.

    variance   v0 + f slope + f (1-f) dilution
    third      third0 + f third_slope + 3 f (1-f) coupled + f (1-f) (1-2f) third_dilution
    linear     variance of sum c_v raw_v: base Q + base_slope Qf + dilution (Qf - t^2), where
               sum c_v = 0, Q = sum c_v^2, Qf = sum f_v c_v^2, t = sum f_v c_v

    The terms with f (1-f) are sampling error: of having heard these devices and not others.
    `n_eff` is 1 over the sum of squared weights: that many devices of equal weight say as much.
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

    def variance(self, f: Array) -> Array:
        """Variance of the estimate of a value of frequency f."""
        return self._variance(f, f * (1.0 - f))

    def third(self, f: Array) -> Array:
        """Third cumulant of the same estimate."""
        return self._third(f, f * (1.0 - f))

    def variance_and_third(self, f: Array) -> tuple[Array, Array]:
        """Both, a little faster, for whoever asks again and again."""
        spread = f * (1.0 - f)
        return self._variance(f, spread), self._third(f, spread)

    def _variance(self, f: Array, spread: Array) -> Array:
        return self.v0 + f * self.slope + spread * self.dilution

    def _third(self, f: Array, spread: Array) -> Array:
        sampled = 3.0 * self.coupled + (1.0 - 2.0 * f) * self.third_dilution
        third: Array = self.third0 + f * self.third_slope + spread * sampled
        return third

    def skewness(self, f: Array) -> Array:
        """Third cumulant over the 3/2th power of the variance."""
        skewness: Array = self.third(f) / self.variance(f) ** 1.5
        return skewness

    def without_sampling(self) -> Moments:
        """About the devices that reported, weighed as they are, and nobody else."""
        return replace(self, dilution=0.0, coupled=0.0, third_dilution=0.0)


@lru_cache(maxsize=256)
@precise
def device_noise(exact: Chances, unary: bool) -> DeviceNoise:
    """The coefficients, rounded once."""
    p1, q1, p2, q2 = exact
    absent, held = _cumulants(q1, exact), _cumulants(p1, exact)
    slopes = [[h - a for h, a in zip(*pair)] for pair in zip(held, absent)]
    base, base_slope = (absent[0], slopes[0]) if unary else _generalised(exact)
    terms = (absent[0], slopes[0], absent[1], slopes[1], base, base_slope)
    qs, gap = q1 * p2 + (1 - q1) * q2, (p1 - q1) * (p2 - q2)
    return DeviceNoise(float(qs), float(gap), *(tuple(map(float, t)) for t in terms))


def _cumulants(kept: Decimal, exact: Chances) -> tuple[list[Decimal], list[Decimal]]:
    """Variance and third cumulant if the memo supports the value with that chance.

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


def _generalised(exact: Chances) -> tuple[list[Decimal], list[Decimal]]:
    """Exactly one value is supported by each report: estimates of two values are correlated."""
    p1, q1, p2, q2 = exact
    d1, d2 = p1 - q1, p2 - q2
    gap = d1 * d2
    base = [q1 / d1**2, (q2 + d2 * (1 - d2) * q1) / gap**2]
    return base, [(1 - d1) / d1, (1 - d2) / gap]


def moments(groups: Sequence[Group], fleet: int | None = None) -> Moments:
    """Of the weighted sum over all devices, whose weights sum to one.

    `fleet` is the number of devices that those were drawn from without replacement.
    """
    size, weight = _joined([g.size for g in groups]), _joined([g.weight for g in groups])
    square, cube = size * weight**2, size * weight**3

    def total(weights: Array, name: str) -> float:
        each = [_at(getattr(group.noise, name), group.reports) for group in groups]
        return float(weights @ _joined(each))

    draw = _Draw.of(fleet, round(float(size.sum())))
    apart = weight - draw.share
    return Moments(
        v0=total(square, "variance"),
        slope=total(square, "variance_slope"),
        third0=total(cube, "third"),
        third_slope=total(cube, "third_slope"),
        base=total(square, "base"),
        base_slope=total(square, "base_slope"),
        n_eff=_effective(size, weight),
        dilution=draw.second * (float(size @ apart**2) + draw.unheard * draw.share**2),
        coupled=draw.second * total(square * apart, "variance_slope"),
        third_dilution=draw.third * (float(size @ apart**3) - draw.unheard * draw.share**3),
    )


def _joined(parts: Sequence[Array]) -> Array:
    """There is nearly always one group only."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _effective(size: Array, weight: Array) -> float:
    """1 over the sum of squared weights; exactly the number of devices if all weigh the same."""
    relative = weight / weight.max()
    return float((size @ relative) ** 2 / (size @ relative**2))


def _at(terms: Terms, reports: Array) -> Array:
    """The polynomial in 1/m."""
    value = terms[-1] / reports + terms[-2]
    for term in reversed(terms[:-2]):
        value = value / reports + term
    return value


class _Draw(NamedTuple):
    """Sampling without replacement: devices not heard weigh 0, and weights are seen from 1/N.

    For weights w of all N devices, the sum of w x over a random assignment of the x has variance
    f (1-f) times sum (w - 1/N)^2 N/(N-1), and third cumulant f (1-f) (1-2f) times
    sum (w - 1/N)^3 N^2/((N-1)(N-2)). A large fleet: 1/N is 0 and both factors are 1.
    """

    share: float
    unheard: int
    second: float
    third: float

    @classmethod
    def of(cls, fleet: int | None, heard: int) -> _Draw:
        if fleet is None:
            return cls(0.0, 0, 1.0, 1.0)
        if fleet < heard:
            remedy = f"the fleet is at least the n = {heard} that reported"
            raise ParameterError("fleet", fleet, remedy)
        second = fleet / (fleet - 1) if fleet > 1 else 0.0
        third = second * fleet / (fleet - 2) if fleet > 2 else 0.0
        return cls(1.0 / fleet, fleet - heard, second, third)
