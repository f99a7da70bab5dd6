"""What intervals do not account for: devices that lie, and devices that are silent.

Claim: an honest campaign is called implausible with at most the stated chance over its whole life.
Bounds about liars and about silent devices are worst cases: no choice of lies, and no values of
the silent, is further off, chance apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.frequencies import Estimate
from protocol_spec.estimation.intervals import CUBES, SQUARES, device_noise
from protocol_spec.mechanisms.base import Channel

FALSE_ALARMS: Final = 0.01  # the chance that an honest campaign is ever called implausible


# --- could honest devices have sent this? ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plausibility:
    """How far a result is from what honest devices can send, in standard errors.

    `sum_z` is that of the sum of all bars from one; None where it is one for any reports, because
    each supports as many values. `lowest` is the place of the most negative bar, `lowest_z` how
    far it is from zero. `sum_limit` and `lowest_limit` are what chance explains.
    """

    total: float
    sum_z: float | None
    sum_limit: float
    lowest: int
    lowest_z: float
    lowest_limit: float
    false_alarms: float

    @property
    def sum_is_off(self) -> bool:
        return self.sum_z is not None and abs(self.sum_z) > self.sum_limit

    @property
    def lowest_is_off(self) -> bool:
        return self.lowest_z < -self.lowest_limit

    @property
    def ok(self) -> bool:
        return not (self.sum_is_off or self.lowest_is_off)


def plausibility(
    estimated: Estimate, results: int = 1, false_alarms: float = FALSE_ALARMS
) -> Plausibility:
    """Do the bars sum to one, and is none below zero, up to chance?

    The rate is that of all `results` of a campaign together, each of which is tested for its sum
    and its k bars (Bonferroni). Both variances are exact: the sum's does not depend on the true
    histogram, and a bar below zero is least surprising for a value that nobody holds. Estimates of
    such a value are skewed upwards, so that a normal lower tail is on the safe side.
    """
    if not 0.0 < false_alarms < 1.0 or results < 1:
        raise ParameterError("false_alarms", false_alarms, "a chance, and at least one result")
    k, known, raw = estimated.raw.size, estimated.moments, estimated.raw
    each = false_alarms / results / (1 if estimated.sums_to_one else 2)
    total, sum_z, sum_limit = float(raw.sum()), None, _upper_tail(each / 2.0)
    if not estimated.sums_to_one:
        variance = k * known.v0 + known.slope
        skew = (k * known.third0 + known.third_slope) / variance**1.5
        sum_z = (total - 1.0) / math.sqrt(variance)
        sum_limit += abs(skew) * (sum_limit**2 - 1.0) / 6.0
    lowest = int(raw.argmin())
    lowest_z = float(raw[lowest]) / math.sqrt(known.v0)
    limit = _upper_tail(each / k)
    return Plausibility(total, sum_z, sum_limit, lowest, lowest_z, limit, false_alarms)


def _upper_tail(chance: float) -> float:
    return -NormalDist().inv_cdf(chance)


# --- what could liars do? -------------------------------------------------------------------------


def lie_shift(channels: Sequence[Channel], share: float, weight: float = 1.0) -> float:
    """The furthest that a bar is off on average if that share of the devices lies together.

    About a value that none of them holds. Liars always report what moves its bar most, at the level
    where it moves most; those who hold the value can lower it by another `share`. `weight` is how
    many times the average device one of them weighs: with weights by reports, the largest number
    of reports over the mean.
    """
    if not 0.0 <= share <= 1.0:
        raise ParameterError("share", share, "a share of devices lies between 0 and 1")
    return min(share * weight, 1.0) * _pull(channels)


def share_for_shift(channels: Sequence[Channel], error: float, weight: float = 1.0) -> float:
    """The largest share of liars that leaves every bar within `error`, chance apart."""
    if not error >= 0.0:
        raise ParameterError("error", error, "an error is 0 or more")
    return min(error / (weight * _pull(channels)), 1.0)


def _pull(channels: Sequence[Channel]) -> float:
    """Of one liar: what it adds beyond the 0 that it would add on average without lying."""
    noise = [device_noise(channel) for channel in channels]
    return max(max(1.0 - each.qs, each.qs) / each.gap for each in noise)


# --- what could silence hide, and known totals undo? ----------------------------------------------


def unevenness(reports: npt.ArrayLike, devices: npt.ArrayLike) -> float:
    """How far any frequency by reports can be from the same frequency by devices.

    `devices[g]` devices sent `reports[g]` reports each. It is reached if those who reported more
    often than the average, and only they, hold a value.
    """
    m, size = np.asarray(reports, dtype=np.float64), np.asarray(devices, dtype=np.float64)
    if not size.sum():
        return 0.0
    apart = m / (m @ size) - 1.0 / size.sum()
    return float(size @ np.maximum(apart, 0.0))


def post_stratified(groups: Sequence[Estimate], totals: Sequence[float]) -> Estimate:
    """The whole fleet from estimates of its groups, weighed by their known sizes.

    Corrects for groups that answer more often than others, as far as devices of one group are
    alike. Sampling error is stated as if all groups had the same frequencies, which is at least
    what it is if weights are near the groups' shares of the reports.
    """
    weight = np.asarray(totals, dtype=np.float64)
    if len(groups) != weight.size or not weight.size or not (weight >= 0.0).all():
        raise ParameterError("totals", totals, "one number of devices for each group")
    if not weight.sum() > 0.0:
        raise ParameterError("totals", totals, "at least one device")
    weight = weight / weight.sum()
    known = [group.moments for group in groups]
    summed = {
        name: float(sum(w**power * getattr(each, name) for w, each in zip(weight, known)))
        for power, names in ((2, SQUARES), (3, CUBES))
        for name in names
    }
    n_eff = 1.0 / float(sum(w**2 / each.n_eff for w, each in zip(weight, known)))
    raw = weight @ np.stack([group.raw for group in groups])
    return replace(groups[0], raw=raw, moments=replace(known[0], n_eff=n_eff, **summed))
