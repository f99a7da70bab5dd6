"""Counts of devices that are not all alike: answers of several rounds, reports of several levels.

Claim: as for one round, `raw` is unbiased and all moments are exact, because no device is in two
of the groups that are added up (for windows: with one round for life).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.frequencies import Estimate, estimate
from protocol_spec.estimation.moments import Channel, Group, device_noise, moments

__all__ = ["estimate_levels", "estimate_window"]


def estimate_window(
    counts: npt.ArrayLike, n: npt.ArrayLike, calibration: Channel, *, each: int = 1
) -> Estimate:
    """Rounds in which every answer was drawn afresh: `counts[r]` of the `n[r]` reports of round r.

    With `each` = 1 no device is in two rounds. With more, a device may be in up to `each` of
    them, and sampling error is stated for that: an upper bound.
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
    """One round of nested reports: `counts[l, v]` of the `n[l]` devices at level l support v.

    Levels weigh by n over variance (at f = 0), which is the least variance; unbiased if a device's
    level does not depend on its value. Rounds of the same devices must not be averaged: the latest
    report of a device says all that the earlier ones said.
    """
    table, devices = np.atleast_2d(np.asarray(counts)), np.atleast_1d(np.asarray(n))
    if not len(table) == len(devices) == len(levels):
        raise ParameterError("n", devices.shape, "one row of counts and one n for each level")
    heard = [i for i, size in enumerate(devices) if size]
    if not heard:
        raise ParameterError("n", n, "an estimate needs at least one report")
    parts = [estimate(table[i], int(devices[i]), levels[i]) for i in heard]
    precision = np.array([1.0 / part.v0 for part in parts])
    share = precision / precision.sum()
    groups = [
        Group(
            device_noise(levels[i].exact, levels[i].unary),
            *(np.array([x], dtype=np.float64) for x in (devices[i], 1.0, weight / devices[i])),
        )
        for i, weight in zip(heard, share)
    ]
    raw = share @ np.stack([part.raw for part in parts])
    return Estimate(raw, moments(groups, fleet), parts[0].sums_to_one)
