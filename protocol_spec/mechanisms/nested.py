"""Gradual release: all reports of a value that stays are drawn at once, each from the next.

Claim: the first t reports *together* disclose exactly e_t, for a schedule e_1 < ... < e_G =
eps_inf. The report of level G is drawn from the value with e_G, and that of every level below from
the one above, so that all that x has to do with levels 1..t is in level t. A device sends level
min(j, G) as its j-th report; whoever has the latest has all there is to know.

The price, which owners must know: a *late* report alone discloses e_t, where one of the paper's
reports alone discloses eps_1.

Level t alone is the one-time GRR, SS or OUE at e_t. Bits go from level to level by RR2 of L-OSUE,
for (eps_inf, eps_1) = (e_{t+1}, e_t). Sets grow: those of level t contain those of the level above,
or are drawn blindly; each level has the best size that the one above allows. As drawn, every step
is rounded to more noise, and steps of one kind commute, so that rounding is more noise at the end
as well: e_t is never exceeded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Final

from protocol_spec.accounting import Spending
from protocol_spec.attributes import Attribute
from protocol_spec.calibration import (
    Calibration,
    calibrate,
    calibrate_once,
    with_probabilities,
)
from protocol_spec.encoding import BodyFormat
from protocol_spec.errors import ParameterError
from protocol_spec.explanation import (
    FIRST_ONLY,
    Explanation,
    Shift,
    changes_unanswered,
    phrase,
    phrase_sets,
)
from protocol_spec.mechanisms.base import (
    AUTO,
    Analysis,
    Budget,
    Mechanism,
    Reporting,
    Rules,
    Support,
)
from protocol_spec.mechanisms.once import BEST_SETS, ONE_ANSWER, why_sets
from protocol_spec.outcomes import Outcome
from protocol_spec.probabilities import (
    ONE,
    SETS,
    Probabilities,
    exact_probabilities,
    kept_for,
    precise,
)
from protocol_spec.randomiser import (
    DrawnStep,
    Entropy,
    Randomiser,
    Step,
    drawn_probabilities,
    just_below,
    respond,
    rounded,
)

_MOST: Final = 255  # levels, for calculations; a manifest may have fewer
_DECIMALS: Final = 6


@dataclass(frozen=True)
class Nested(Mechanism):
    """The levels of a schedule: `levels[t-1]` is what level t is alone, with p and q at e_t.

    An answer is the level's number in one byte, and the body behind it.
    """

    levels: tuple[Calibration, ...]
    reporting: ClassVar[Reporting] = "nested"
    rules: ClassVar[Rules] = Rules(
        ONE_ANSWER, BEST_SETS, ONE_ANSWER, has_levels=True, answers_first_value_only=True
    )
    analysis: ClassVar[Analysis] = Analysis(
        combined="latest",
        hides="the value; a late report alone reveals more than eps_1",
        floor="the last level",
        together="latest",
        caveat="Each report of a device reveals a little more and contains what earlier ones "
        "revealed: rounds must not be averaged, and values are assumed not to change.",
        one_report="The first report",
        all_reports="The last and most revealing report",
        no_trend="Nothing can be fitted over rounds: each result includes the earlier ones, and a "
        "device answers for the first value that it had. For values that change, a mechanism with "
        "fresh answers can show a trend.",
    )

    @classmethod
    def calibrate(cls, protocol: str, *, k: int, schedule: Sequence[float]) -> Nested:
        """GRR, SS or OUE over a rising schedule of epsilons, the last of which is eps_inf."""
        if protocol not in ONE_ANSWER:
            raise ParameterError("protocol", protocol, f"choose one of {', '.join(ONE_ANSWER)}")
        if not 1 <= len(schedule) <= _MOST:
            raise ParameterError("schedule", schedule, f"has from 1 to {_MOST} levels")
        if any(earlier >= later for earlier, later in pairwise(schedule)):
            raise ParameterError("schedule", schedule, "must rise from level to level")
        levels = [calibrate_once(protocol, k=k, epsilon=schedule[-1])]
        for epsilon in reversed(schedule[:-1]):
            levels.insert(0, calibrate_once(protocol, k=k, epsilon=epsilon, above=levels[0]))
        return cls(tuple(levels))

    @classmethod
    def asked(cls, attribute: Attribute, budget: Budget, digest: bytes) -> Nested:  # noqa: ARG003
        protocol = attribute.protocol
        k, schedule = attribute.k, attribute.levels
        if protocol != AUTO:
            return cls.calibrate(protocol, k=k, schedule=schedule)
        sets = cls.calibrate("SS", k=k, schedule=schedule)
        return sets if sets.levels[0].size > 1 else cls.calibrate("GRR", k=k, schedule=schedule)

    def why(self, attribute: Attribute, budget: Budget) -> str:  # noqa: ARG002
        return f"{why_sets(self.levels[0])}, {self.calibration.size} in the last report"

    @cached_property
    def calibration(self) -> Calibration:
        """Of the last level: all that any number of reports disclose."""
        return self.levels[-1]

    @cached_property
    def counted(self) -> BodyFormat:
        """Of every level, whose sets have sizes of their own."""
        return BodyFormat(self.protocol != "GRR", self.k)

    @cached_property
    def answer_bytes(self) -> int:
        return 1 + self.counted.length

    @precise
    def as_drawn(self) -> Nested:
        """With the probabilities that devices really use: the chain of the integers."""
        drawn: list[Calibration] = []
        above, size = (ONE, ONE - ONE), None if self.calibration.unary else 1  # the value itself
        for level, step in reversed(list(zip(self.levels, nested_thresholds(self)))):
            p, q = drawn_probabilities(step, self.k, size)
            size = level.size or None
            above = above[0] * p + (1 - above[0]) * q, above[1] * p + (1 - above[1]) * q
            drawn.append(with_probabilities(level, Probabilities(*above, ONE, ONE - ONE)))
        return Nested(tuple(reversed(drawn)))

    @cached_property
    def channels(self) -> tuple[Calibration, ...]:
        return self.as_drawn().levels

    @property
    def step_epsilons(self) -> list[float]:
        return [level.eps_inf for level in self.levels]

    @precise
    def steps(self, adjusted: Callable[[float], Decimal]) -> list[Step]:
        """To each level from the one above, level 1 first; the last is drawn from the value."""
        schedule = [adjusted(level.eps_inf) for level in self.levels]
        if self.protocol in SETS:
            kept = [kept_for(e, self.k, level.size) for e, level in zip(schedule, self.levels)]
            keeps = [*(lower / upper for lower, upper in pairwise(kept)), kept[-1]]
            return [(keep, Decimal(level.size)) for keep, level in zip(keeps, self.levels)]
        steps: list[Step] = []
        for lower, upper in pairwise(schedule):
            steps.append(exact_probabilities("L-OSUE", self.k, upper, lower)[2:])
        return [*steps, exact_probabilities("OUE", self.k, schedule[-1], schedule[-1])[:2]]

    def fault(self, answer: bytes) -> Outcome | None:
        if not 1 <= answer[0] <= len(self.levels):
            return Outcome.BAD_VALUE
        return self.levels[answer[0] - 1].formats[1].fault(answer[1:])

    def round_fault(self, answer: bytes, number: int) -> Outcome | None:
        """A device sends one report in a round, and begins with level 1."""
        return Outcome.BAD_LEVEL if answer[0] > number + 1 else None

    def supported(self, body: bytes, device: str) -> Support:  # noqa: ARG002 - same for all devices
        return Support(body[0] - 1, body[1 : self.answer_bytes])

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> Randomiser:  # noqa: ARG002
        return NestedRandomiser(self, entropy)

    def level_of(self, report: int) -> int:
        """The level of a device's j-th report, counted from 1."""
        if report < 1:
            raise ParameterError("report", report, "reports are counted from 1")
        return min(report, len(self.levels))

    def epsilon_after(self, reports: int) -> float:
        if reports < 0:
            raise ParameterError("reports", reports, "a number of reports is 0 or more")
        return self.levels[self.level_of(reports) - 1].eps_inf if reports else 0.0

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """eps_inf is charged with the memo, because all levels are drawn at once."""
        counts = list(reports_per_memo)
        if not counts:
            return Spending(0, 0, 0.0, 0.0)
        return Spending(1, sum(counts), self.epsilon_after(sum(counts)), self.lifetime_epsilon)

    booked_as = "memo of all levels drawn"
    first_answer_begins = b"\1"  # its level

    def explain(self, attribute: Attribute) -> Explanation:
        example = attribute.values[0]
        least, most = self.levels[0].eps_inf, self.lifetime_epsilon
        return Explanation(
            one_report=phrase_sets(
                "If your true answer is “{value}”, the first report says “{value}” {often}; if it "
                "were something else, still {otherwise}.",
                "The first report names {count} of the {k} answers. If your true answer is "
                "“{value}”, it is among them {often}; if it were something else, still "
                "{otherwise}.",
                self.channels[0],
                example,
            ),
            all_reports=phrase_sets(
                "If your true answer is “{value}”, report {last}, and each after it, says "
                "“{value}” {often}; if it were something else, still {otherwise}.",
                "Report {last}, and each after it, names {count} of the {k} answers. If your true "
                "answer is “{value}”, it is among them {often}; if it were something else, still "
                "{otherwise}.",
                self.calibration,
                example,
                last=len(self.levels),
            ),
            belief_one_report=phrase(
                "{least} if it is the first, {most} if it is a late one",
                least=Shift(least),
                most=Shift(most),
            ),
            belief_all_reports=Shift(most),
            bound=phrase("for the one value, all reports together"),
            booked=phrase(
                "The whole is booked with the first report, because all later ones are drawn with "
                "it; each report that is sent reveals a little more."
            ),
            not_hidden=(
                FIRST_ONLY,
                phrase(
                    "What grows: each report reveals more than the one before. The first reveals "
                    "epsilon {first}; a late report alone reveals as much as all before it "
                    "together, up to epsilon {last}.",
                    first=least,
                    last=most,
                ),
                phrase(
                    "What is kept: the collector keeps your latest report, beside your device's "
                    "number, until the campaign ends, so that every device counts once. Each "
                    "report replaces the one before; `allomfree-edge forget` deletes it."
                ),
            ),
            warning=changes_unanswered(1) if attribute.changes else None,
        )


@precise
def nested_thresholds(nested: Nested) -> tuple[DrawnStep, ...]:
    """p and q of the step to each level from the one above, in units of 2^-64, level 1 first."""
    unary = nested.calibration.unary
    return tuple(rounded(step, unary) for step in nested.steps(just_below))


class NestedRandomiser(Randomiser):
    """Draws all levels of one value. A memo is the bodies of all levels, level 1 first, joined."""

    def __init__(self, nested: Nested, entropy: Entropy = os.urandom) -> None:
        super().__init__(nested.calibration, entropy)
        self._steps = nested_thresholds(nested)
        self._nested = nested
        self._formats = [level.formats[1] for level in nested.levels]

    def draw(self, index: int) -> tuple[bytes, ...]:
        """The bodies of all levels, level 1 first. Once per value, ever."""
        held, bodies = self.format.supported(self.format.encode(index)), list[bytes]()
        for form, step in reversed(list(zip(self._formats, self._steps))):
            bodies.insert(0, respond(form, held, step, self._entropy))
            held = form.supported(bodies[0])
        return tuple(bodies)

    def memoize(self, key: int) -> bytes:
        return b"".join(self.draw(key))

    def report(self, memo: bytes, sent: int = 0) -> bytes:
        size, level = self.format.length, self._nested.level_of(sent + 1)
        if len(memo) != size * len(self._nested.levels):
            raise ValueError("the memo does not fit this attribute")
        return bytes([level]) + memo[size * (level - 1) : size * level]


def gradual_levels(calibration: Calibration, most: int = 16, close: float = 0.99) -> list[float]:
    """The schedule on which all reports together disclose what the memo's would: e_t = eps_t.

    It stops at eps_inf, when eps_t has come `close` to it or after `most` levels.
    """
    if not 1 <= most <= _MOST:
        raise ParameterError("most", most, f"from 1 to {_MOST} levels")
    levels: list[float] = []
    while len(levels) < most - 1:
        epsilon = calibration.epsilon_after(len(levels) + 1)
        if epsilon >= close * calibration.eps_inf:
            break
        levels.append(epsilon)
    return [*levels, calibration.eps_inf]


def default_levels(eps_inf: float, eps_1: float) -> tuple[float, ...]:
    """The levels of a question whose author gave none: what the paper's reports would disclose.

    eps_1, then what the first two, three, ... reports of an L-OSUE's memo disclose together,
    rounded to six decimals, then eps_inf.
    """
    disclosed = gradual_levels(calibrate("L-OSUE", k=2, eps_inf=eps_inf, eps_1=eps_1))
    between = {round(epsilon, _DECIMALS) for epsilon in disclosed[1:-1]}
    return (eps_1, *sorted(e for e in between if eps_1 < e < eps_inf), eps_inf)
