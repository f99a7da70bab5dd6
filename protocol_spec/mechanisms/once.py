"""One round for life: a device also draws the rounds in which it answers, and is silent otherwise.

Claim: everything a device ever sends is `each` x epsilon-LDP with respect to its whole history of
values, whatever changes, how often and when. The draw of the rounds does not look at the data;
given it, the output depends on the values of those rounds only, each answered once, with epsilon.

There is no memo. Noise of different rounds is independent, so a window of rounds may be added up,
and trends may be fitted. The price: a round is answered by `each` of `rounds` of the devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import ClassVar, Final

from protocol_spec.accounting import Spending
from protocol_spec.attributes import Attribute
from protocol_spec.calibration import Calibration, calibrate_once
from protocol_spec.errors import ParameterError
from protocol_spec.explanation import Explanation, Shift, one_report_says, phrase, phrase_count
from protocol_spec.mechanisms.base import AUTO, Analysis, Budget, Mechanism, Reporting, Rules
from protocol_spec.randomiser import Entropy, Randomiser, Step, random_below

ONE_ANSWER: Final = ("GRR", "OUE", "SS")
BEST_SETS: Final = ("GRR", "SS")


@dataclass(frozen=True)
class Once(Mechanism):
    """A device answers `each` of a campaign's `rounds`, each answer with the whole of epsilon.

    `lifetime_epsilon` is what all its answers disclose together, charged from joining on, because
    their rounds are drawn then.
    """

    calibration: Calibration = field()
    rounds: int
    each: int
    lifetime_epsilon: float = field()
    reporting: ClassVar[Reporting] = "once"
    rules: ClassVar[Rules] = Rules(ONE_ANSWER, BEST_SETS, ONE_ANSWER, draws_rounds=True)
    analysis: ClassVar[Analysis] = Analysis(
        combined="window",
        hides="the whole history, whatever changes",
        floor="every device has answered",
        together="all released",
        caveat="Each device answers only in rounds that it drew when it joined, with fresh noise: "
        "values may change, errors of different rounds are independent, and trends may be fitted.",
        over_time="{caveat} A point stands for the rounds of its window; a window ends as soon as "
        "enough devices have answered. The bands of different windows are **independent**.",
    )
    memos = 0

    @classmethod
    def calibrate(
        cls, protocol: str = AUTO, *, k: int, epsilon: float, rounds: int, each: int = 1
    ) -> Once:
        """A one-time protocol, or "auto" for the best sets: SS, or GRR."""
        if rounds < 1:
            raise ParameterError("rounds", rounds, "a campaign has at least one round")
        if not 1 <= each <= rounds:
            raise ParameterError("each", each, f"a device answers from 1 to {rounds} rounds")
        noise = better_once(k, epsilon)
        if protocol != AUTO:
            noise = calibrate_once(protocol, k=k, epsilon=epsilon)
        return cls(noise, rounds, each, each * epsilon)

    @classmethod
    def asked(cls, attribute: Attribute, budget: Budget, digest: bytes) -> Once:  # noqa: ARG003
        rounds, each = budget.rounds, budget.each
        once = cls.calibrate(
            attribute.protocol, k=attribute.k, epsilon=budget.eps_1, rounds=rounds, each=each
        )
        return replace(once, lifetime_epsilon=budget.eps_inf)  # as stated, not each * eps_1

    def why(self, attribute: Attribute, budget: Budget) -> str:  # noqa: ARG002
        return why_sets(self.calibration)

    @property
    def epsilon(self) -> float:
        """Of one answer."""
        return self.calibration.eps_inf

    @property
    def step_epsilons(self) -> list[float]:
        return [self.epsilon]

    def steps(self, adjusted: Callable[[float], Decimal]) -> list[Step]:
        return super().steps(adjusted)[:1]

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> Randomiser:  # noqa: ARG002
        return OnceRandomiser(self, entropy)

    def epsilon_after(self, reports: int) -> float:
        return min(reports * self.epsilon, self.lifetime_epsilon)

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        answers = sum(reports_per_memo)
        return Spending(0, answers, self.epsilon_after(answers), self.lifetime_epsilon)

    def expected_reports(self, devices: int, window: int = 1) -> float:
        """How many of the devices answer within that many rounds, on average."""
        return devices * self.each * window / self.rounds

    def window_variance(self, devices: int, window: int, f: float) -> tuple[float, float]:
        """(from privacy noise, from sampling) of a frequency over a window of rounds."""
        if devices < 1:
            raise ParameterError("devices", devices, "a number of devices is 1 or more")
        if not 1 <= window <= self.rounds:
            raise ParameterError("window", window, f"has from 1 to {self.rounds} rounds")
        answers = self.expected_reports(devices, window)
        return self.calibration.pooled_variance(1, 1, f) / answers, f * (1.0 - f) / answers

    booked_as = "answer drawn"

    def charge_left(self, answers: int) -> float:
        return (self.each - answers) * self.charge

    def explain(self, attribute: Attribute) -> Explanation:
        if self.each == 1:
            bound = phrase("for the one answer, however often your value changes")
        else:
            bound = phrase(
                "{epsilon} for each of at most {most} answers, however often your value changes",
                epsilon=self.epsilon,
                most=self.each,
            )
        stand_in = phrase("one of the answers, drawn at random")
        if attribute.otherwise is not None:
            stand_in = phrase("“{value}”", value=attribute.values[attribute.otherwise])
        return Explanation(
            one_report=one_report_says(self.calibration, attribute.values[0]),
            all_reports=phrase_count(
                self.each,
                "That one report is all that ever leaves; nothing about any other moment does.",
                "At most {count} reports ever leave, each about the value of its own round only.",
            ),
            belief_one_report=Shift(self.epsilon),
            belief_all_reports=Shift(self.lifetime_epsilon),
            bound=bound,
            booked=phrase(
                "Each answer is booked when it is drawn; the rounds were drawn before, whatever "
                "your values are."
            ),
            not_hidden=(
                phrase(
                    "If your value cannot be read in a round that was drawn, it is answered for as "
                    "{stand_in}. A missed round is not made up for.",
                    stand_in=stand_in,
                ),
            ),
        )


class OnceRandomiser(Randomiser):
    """Draws one attribute's rounds and answers; the memo is the answer, and is not stored."""

    def __init__(self, once: Once, entropy: Entropy = os.urandom) -> None:
        super().__init__(once.calibration, entropy)
        self._once = once

    def rounds(self, first: int = 0) -> tuple[int, ...]:
        return draw_rounds(first, self._once.rounds, self._once.each, self._entropy)

    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        return memo


def draw_rounds(
    first: int, count: int, each: int, entropy: Entropy = os.urandom
) -> tuple[int, ...]:
    """`each` of the rounds first..count-1, every set of them equally likely; all if fewer are left.

    Floyd's algorithm: as many draws as rounds, no list of all rounds, no modulo bias.
    """
    left = max(count - first, 0)
    drawn: set[int] = set()
    for last in range(max(left - each, 0), left):
        candidate = random_below(last + 1, entropy)
        drawn.add(last if candidate in drawn else candidate)
    return tuple(sorted(first + number for number in drawn))


def better_once(k: int, epsilon: float) -> Calibration:
    """SS, which is GRR if its best sets have one value; neither is ever behind OUE."""
    sets = calibrate_once("SS", k=k, epsilon=epsilon)
    return sets if sets.size > 1 else calibrate_once("GRR", k=k, epsilon=epsilon)


def why_sets(chosen: Calibration) -> str:
    """For analysts."""
    return f"the least variance over all values: sets of {chosen.size} of the {chosen.k}"
