"""From counts to frequencies, of one round or of several rounds of the same devices.

Claim: `raw` is unbiased for any data; the variance behind every interval is exact, not the f = 0
approximation; and pooling rounds never treats reports of one memo as independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.intervals import (
    Array,
    DeviceNoise,
    Group,
    Moments,
    critical_value,
    device_noise,
    project_to_simplex,
    shift_to_one,
    skew_corrected_interval,
    skew_corrected_intervals,
    within_one,
)
from protocol_spec.estimation.intervals import moments as moments_of_groups
from protocol_spec.mechanisms.base import Channel, Mechanism

Weights = Literal["equal", "reports", "blue"]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Frequencies of one attribute with everything needed to state their error.

    `raw` holds unbiased estimates, one per value; they may lie outside [0, 1].
    """

    raw: Array
    moments: Moments
    sums_to_one: bool

    @property
    def v0(self) -> float:
        """Variance of an estimate, from privacy noise, if no device held the value."""
        return self.moments.v0

    @property
    def v1(self) -> float:
        """The same if every device held it."""
        return self.moments.v0 + self.moments.slope

    @property
    def dilution(self) -> float:
        """Sampling adds f (1-f) of this to a variance: 1/n_eff, less where the fleet is finite."""
        return self.moments.dilution

    @property
    def n_eff(self) -> float:
        """Effective devices: 1 over the sum of squared device weights; n if all weigh the same.

        It is small where a few devices reported far more often than the rest: the result is then
        about those few.
        """
        return self.moments.n_eff

    @property
    def shifted(self) -> Array:
        """Unbiased and summing to one. For unary protocols it also has (1 - 1/k) of the error."""
        return self.raw if self.sums_to_one else shift_to_one(self.raw)

    @property
    def projected(self) -> Array:
        """The nearest true histogram: none negative, sum one. Biased; best for display."""
        return project_to_simplex(self.raw)

    @property
    def privacy_error(self) -> Array:
        """Standard error from the noise devices add (target: the devices that reported)."""
        return np.sqrt(self.moments.without_sampling().variance(within_one(self.raw)))

    @property
    def sampling_error(self) -> Array:
        """Standard error from having reports of these devices and not of the rest of the fleet."""
        held = within_one(self.raw)
        return np.sqrt(held * (1.0 - held) * self.dilution)

    def interval(
        self, confidence: float = 0.95, *, simultaneous: bool = False, sampling: bool = True
    ) -> tuple[Array, Array]:
        """Skew-corrected score intervals, clipped to [0, 1], never empty.

        `simultaneous` makes them hold for all values at once (Sidak), which is what a reader who
        picks the tallest bar needs. `sampling=False` is about the devices that reported, weighed
        as they are, rather than the fleet they come from: with weights by reports, about the mean
        over reports. For the plain share of these devices, set `fleet` to their number.
        """
        z = critical_value(confidence, self.raw.shape[-1] if simultaneous else 1)
        about = self.moments if sampling else self.moments.without_sampling()
        return skew_corrected_interval(self.raw, about, z=z)

    def both_intervals(self, confidence: float = 0.95) -> list[tuple[Array, Array]]:
        """`interval` of each value by itself, and of all at once, in the time that one takes."""
        z = [critical_value(confidence, values) for values in (1, self.raw.shape[-1])]
        return skew_corrected_intervals(self.raw, self.moments, z)


def estimate(
    counts: npt.ArrayLike, n: int, calibration: Channel, *, fleet: int | None = None
) -> Estimate:
    """One round: `counts[v]` of the n reports support value v.

    `fleet` is the number of devices the n were drawn from without replacement; sampling error
    vanishes when all of them reported.
    """
    counts = _checked_counts(counts, calibration)
    if n < 1:
        raise ParameterError("n", n, "an estimate needs at least one report")
    if (counts > n).any():
        largest = int(counts.max())
        raise ParameterError("counts", largest, f"no value has more support than n = {n}")
    noise = device_noise(calibration)
    raw = (counts / n - noise.qs) / noise.gap
    return Estimate(raw, _moments_of_one_round(noise, n, fleet), not calibration.unary)


@lru_cache(maxsize=256)
def _moments_of_one_round(noise: DeviceNoise, n: int, fleet: int | None) -> Moments:
    """Known as soon as the number of reports is."""
    return moments_of_groups([_group(noise, n, 1.0 / n)], fleet)


def _group(noise: DeviceNoise, size: float, weight: float) -> Group:
    """Devices with one report each, of equal weight."""
    return Group(noise, *(np.array([x], dtype=np.float64) for x in (size, 1.0, weight)))


def estimate_pooled(
    counts: npt.ArrayLike,
    reports: npt.ArrayLike,
    devices: npt.ArrayLike,
    calibration: Channel,
    *,
    weights: Weights = "equal",
    fleet: int | None = None,
) -> Estimate:
    """Several rounds of static values: `devices[g]` devices sent `reports[g]` reports each.

    `counts[g, v]` of the reports of group g support v. Weights per device:
      equal    the mean of exactly these devices, whoever reported more often (default)
      reports  proportional to the number of reports; `counts` may then be one row of totals,
               which is all that is left once rounds are sealed
      blue     least variance; unbiased only if taking part does not depend on the value

    `fleet` as in `estimate`. With unequal weights some sampling error stays although the whole
    fleet reported: the weighted mean of all is not their plain one.
    """
    m, size = _participation(reports, devices)
    table = np.atleast_2d(_checked_counts(counts, calibration))
    noise = device_noise(calibration)
    weight = _device_weights(weights, m, noise)
    weight = weight / (weight * size).sum()
    if weights == "reports":
        support = table.sum(axis=0) / (m * size).sum()
    elif table.shape[0] != m.size:
        raise ParameterError("counts", table.shape, f"{weights!r} weights need a row per group")
    else:
        support = (weight / m) @ table
    raw = (support - noise.qs) / noise.gap
    group = Group(noise, size, m, weight)
    return Estimate(raw, moments_of_groups([group], fleet), not calibration.unary)


def effective_devices(reports: npt.ArrayLike, devices: npt.ArrayLike) -> float:
    """`Estimate.n_eff` of rounds pooled with weights by reports, before there is an estimate.

    4 devices with 365 reports each and 196 with one count as 5 devices, not 200; none at all as 0.
    The float64 nearest to the exact ratio, so that it is never below a whole number that the ratio
    reaches.
    """
    if np.sum(devices) == 0:
        return 0.0
    pairs = [(int(m), int(size)) for m, size in zip(*_participation(reports, devices))]
    return sum(m * size for m, size in pairs) ** 2 / sum(m * m * size for m, size in pairs)


def _participation(reports: npt.ArrayLike, devices: npt.ArrayLike) -> tuple[Array, Array]:
    m = np.asarray(reports, dtype=np.float64)
    size = np.asarray(devices, dtype=np.float64)
    sound = m.ndim == 1 and m.shape == size.shape and (m >= 1).all() and (size >= 0).all()
    if not sound or size.sum() < 1:
        remedy = "one positive number of reports and one number of devices for each group"
        raise ParameterError("reports", reports, remedy)
    return m, size


def _device_weights(weights: Weights, m: Array, noise: DeviceNoise) -> Array:
    if weights == "equal":
        return np.ones_like(m)
    if weights == "reports":
        return m
    if weights != "blue":
        raise ParameterError("weights", weights, "choose 'equal', 'reports' or 'blue'")
    between, within = noise.variance
    return 1.0 / (between + within / m)


def _checked_counts(counts: npt.ArrayLike, calibration: Channel) -> npt.NDArray[Any]:
    table = np.asarray(counts)
    if table.dtype.kind not in "iu" or (table < 0).any():
        raise ParameterError("counts", counts, "must be whole numbers, none negative")
    if table.ndim < 1 or table.shape[-1] != calibration.k:
        raise ParameterError("counts", table.shape, f"must have k = {calibration.k} columns")
    return table


# --- which estimate reports of a mechanism are for ------------------------------------------------


def estimate_reports(
    mechanism: Mechanism,
    counts: npt.ArrayLike,
    n: npt.ArrayLike,
    participation: tuple[Sequence[int], Sequence[int]],
    *,
    fleet: int | None = None,
) -> Estimate:
    """One round, or several where the mechanism allows it (`Analysis.combined`): `counts[c, v]` of
    the `n[c]` reports of channel c support v. `participation` as in `estimate_pooled`, `fleet` as
    in `estimate`."""
    table, sizes, (reports, devices) = np.asarray(counts), np.asarray(n), participation
    if len(mechanism.channels) > 1:
        return estimate_levels(table, sizes, mechanism.channels, fleet=fleet)
    row, answers, channel = table[0], int(sizes[0]), mechanism.channels[0]
    if mechanism.analysis.combined != "window":
        if list(reports) == [1]:
            return estimate(row, answers, channel, fleet=fleet)
        return estimate_pooled(row, reports, devices, channel, weights="reports", fleet=fleet)
    # Answers with fresh noise are independent; only in sampling, a device with two is one.
    made, n_eff = estimate(row, answers, channel), effective_devices(reports, devices)
    dilution = 1.0 / n_eff
    if fleet is not None:
        pooled = estimate_pooled(row, reports, devices, channel, weights="reports", fleet=fleet)
        dilution = pooled.dilution
    elif n_eff == answers:
        return made
    return replace(made, moments=replace(made.moments, n_eff=n_eff, dilution=dilution))


# --- devices that are not all alike: answers of several rounds, reports of several levels ---------
# Unbiased and exact as for one round, because no device is in two of the groups that are added up
# (for windows: with one round for life).


def estimate_window(
    counts: npt.ArrayLike, n: npt.ArrayLike, calibration: Channel, *, each: int = 1
) -> Estimate:
    """Rounds in which every answer was drawn again: `counts[r]` of the `n[r]` reports of round r.

    With `each` = 1 no device is in two rounds. With more, a device may be in up to `each` of
    them, and the sampling error is that of the worst case: an upper bound.
    """
    table, answers = np.atleast_2d(np.asarray(counts)), np.atleast_1d(np.asarray(n))
    if answers.shape != table.shape[:1]:
        raise ParameterError("n", answers.shape, "one number of reports for each round")
    if each < 1:
        raise ParameterError("each", each, "a device answers at least one round")
    together = estimate(table.sum(axis=0), int(answers.sum()), calibration)
    repeated = float(min(each, answers.size))
    known = together.moments
    sampled = replace(known, n_eff=known.n_eff / repeated, dilution=known.dilution * repeated)
    return replace(together, moments=sampled)


def estimate_levels(
    counts: npt.ArrayLike,
    n: npt.ArrayLike,
    levels: Sequence[Channel],
    *,
    fleet: int | None = None,
) -> Estimate:
    """Nested reports, one of each device: `counts[l, v]` of the `n[l]` at level l support v.

    One vote for each device, whatever its level: the mean of exactly these devices.
    Rounds of the same devices must not be averaged: the latest report of a device contains all
    information of the earlier ones.
    """
    table, devices = np.atleast_2d(np.asarray(counts)), np.atleast_1d(np.asarray(n))
    if not len(table) == len(devices) == len(levels):
        raise ParameterError("n", devices.shape, "one row of counts and one n for each level")
    used = [i for i, size in enumerate(devices) if size]
    if not used:
        raise ParameterError("n", n, "an estimate needs at least one report")
    parts = [estimate(table[i], int(devices[i]), levels[i]) for i in used]
    size = devices[used].astype(np.float64)
    each = np.full(size.shape, 1.0 / size.sum())  # of a device
    groups = [_group(device_noise(levels[i]), *of) for i, *of in zip(used, size, each)]
    raw = (size * each) @ np.stack([part.raw for part in parts])
    return Estimate(raw, moments_of_groups(groups, fleet), parts[0].sums_to_one)
