"""Gradual release: all reports of a value that stays are drawn at once, each from the next.

Claim: the first t reports *together* tell exactly e_t, for a schedule e_1 < ... < e_G = eps_inf.
The report of level G is drawn from the value with e_G, and that of every level below from the one
above, so that all that x has to do with levels 1..t is in level t. A device sends level min(j, G)
as its j-th report; whoever has the latest has all there is to know.

The price, to be told to owners: a *late* report alone tells e_t, where one of the paper's reports
alone tells eps_1.

Level t alone is the one-time GRR or OUE at e_t. Steps between levels are those of RR2 in L-GRR and
L-OSUE, for (eps_inf, eps_1) = (e_{t+1}, e_t). As drawn, every step is rounded to more noise, and
steps of one kind commute, so that rounding is more noise at the end as well: e_t is never exceeded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from protocol_spec.accounting import Spending
from protocol_spec.body import BodyFormat
from protocol_spec.calibration import Calibration, calibrate_once, from_chances
from protocol_spec.chances import Chances, exact_chances
from protocol_spec.errors import ParameterError
from protocol_spec.precision import ONE, precise
from protocol_spec.randomiser import Entropy, drawn_chances, just_below, respond, rounded

__all__ = ["NESTABLE", "Nested", "NestedRandomiser", "gradual_levels", "nested_thresholds"]

_STEP = {"GRR": "L-GRR", "OUE": "L-OSUE"}
NESTABLE = tuple(_STEP)
MAX_LEVELS = 255

Step = tuple[Decimal, Decimal]


@dataclass(frozen=True, slots=True)
class Nested:
    """The levels of a schedule: `levels[t-1]` is what level t is alone, with p and q at e_t."""

    levels: tuple[Calibration, ...]

    @classmethod
    def calibrate(cls, protocol: str, *, k: int, schedule: Sequence[float]) -> Nested:
        """GRR or OUE over a rising schedule of epsilons, the last of which is eps_inf."""
        if protocol not in _STEP:
            raise ParameterError("protocol", protocol, f"choose one of {', '.join(_STEP)}")
        if not 1 <= len(schedule) <= MAX_LEVELS:
            raise ParameterError("schedule", schedule, f"has from 1 to {MAX_LEVELS} levels")
        if any(earlier >= later for earlier, later in pairwise(schedule)):
            raise ParameterError("schedule", schedule, "must rise from level to level")
        return cls(tuple(calibrate_once(protocol, k=k, epsilon=e) for e in schedule))

    @property
    def protocol(self) -> str:
        """GRR or OUE."""
        return self.levels[-1].protocol

    @property
    def k(self) -> int:
        """Number of values."""
        return self.levels[-1].k

    @property
    def eps_inf(self) -> float:
        """What all reports together tell."""
        return self.levels[-1].eps_inf

    def level_of(self, report: int) -> int:
        """The level of a device's j-th report, counted from 1."""
        if report < 1:
            raise ParameterError("report", report, "reports are counted from 1")
        return min(report, len(self.levels))

    def epsilon_after(self, reports: int) -> float:
        """Exact privacy loss of the first so many reports together."""
        if reports < 0:
            raise ParameterError("reports", reports, "a number of reports is 0 or more")
        return self.levels[self.level_of(reports) - 1].eps_inf if reports else 0.0

    def spending(self, reports: int) -> Spending:
        """Charged in full from the start, because all levels are drawn at once."""
        return Spending(1, reports, self.epsilon_after(reports), self.eps_inf)

    @precise
    def step(self, level: int) -> tuple[float, float]:
        """p and q with which a level is drawn from the one above; the last one, from the value."""
        schedule = [Decimal(each.eps_inf) for each in self.levels]
        p, q = _steps(self.protocol, self.k, schedule)[level - 1]
        return float(p), float(q)

    @precise
    def as_drawn(self) -> Nested:
        """With the chances that devices really use: the chain of the integers, level by level."""
        unary, drawn = self.levels[-1].unary, []
        above = ONE, ONE - ONE  # the value itself
        for level, step in reversed(list(zip(self.levels, nested_thresholds(self)))):
            p, q = drawn_chances(step, unary, self.k)
            above = above[0] * p + (1 - above[0]) * q, above[1] * p + (1 - above[1]) * q
            drawn.append(from_chances(level, Chances(*above, ONE, ONE - ONE)))
        return Nested(tuple(reversed(drawn)))


@precise
def nested_thresholds(nested: Nested) -> tuple[tuple[int, int], ...]:
    """p and q of the step to each level from the one above, in units of 2^-64, level 1 first."""
    schedule = [just_below(level.eps_inf) for level in nested.levels]
    return tuple(rounded(*step) for step in _steps(nested.protocol, nested.k, schedule))


def _steps(protocol: str, k: int, schedule: Sequence[Decimal]) -> list[Step]:
    steps = []
    for lower, upper in pairwise(schedule):
        chances = exact_chances(_STEP[protocol], k, upper, lower)
        steps.append((chances.p2, chances.q2))
    top = exact_chances(protocol, k, schedule[-1], schedule[-1])
    return [*steps, (top.p1, top.q1)]


class NestedRandomiser:
    """Draws all levels of one value. It keeps no state: storing them is the caller's duty."""

    def __init__(self, nested: Nested, entropy: Entropy = os.urandom) -> None:
        self.format = BodyFormat(nested.levels[-1].unary, nested.k)
        self.thresholds = nested_thresholds(nested)
        self._entropy = entropy

    def draw(self, index: int) -> tuple[bytes, ...]:
        """The bodies of all levels, level 1 first. Once per value, ever."""
        body, bodies = self.format.encode(index), []
        for keep, add in reversed(self.thresholds):
            body = respond(self.format, body, keep, add, self._entropy)
            bodies.append(body)
        return tuple(reversed(bodies))


def gradual_levels(calibration: Calibration, most: int = 16, close: float = 0.99) -> list[float]:
    """The schedule on which all reports together tell what the memo's would: e_t = eps_t.

    It stops at eps_inf, when eps_t has come `close` to it or after `most` levels.
    """
    if not 1 <= most <= MAX_LEVELS:
        raise ParameterError("most", most, f"from 1 to {MAX_LEVELS} levels")
    levels: list[float] = []
    while len(levels) < most - 1:
        epsilon = calibration.epsilon_after(len(levels) + 1)
        if epsilon >= close * calibration.eps_inf:
            break
        levels.append(epsilon)
    return [*levels, calibration.eps_inf]
