"""The paper's mechanism: a memo of each value for life, and fresh noise over it in every round.

Claim: one report is eps_1-LDP, all reports of one memo together are eps_inf-LDP. That a value
changed is not hidden: a new value is a new memo, and costs eps_inf again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol_spec.accounting import lifetime_odds
from protocol_spec.attributes import Attribute
from protocol_spec.calibration import Calibration, calibrate, candidates, choose
from protocol_spec.explanation import (
    FIRST_ONLY,
    Explanation,
    Phrase,
    Shift,
    changes_unanswered,
    one_report_says,
    phrase,
    phrase_odds,
)
from protocol_spec.mechanisms.base import AUTO, Analysis, Budget, Mechanism, Reporting, Rules
from protocol_spec.probabilities import LONGITUDINAL


@dataclass(frozen=True)
class Memoized(Mechanism):
    """Up to `memos` memos, eps_inf for each."""

    calibration: Calibration = field()
    memos: int = field()
    reporting: ClassVar[Reporting] = "memoized"
    rules: ClassVar[Rules] = Rules(
        LONGITUDINAL,
        ("L-GRR", "L-SS", "L-OSUE"),
        LONGITUDINAL,
        memo_per_value=True,
        answers_first_value_only=True,
    )
    analysis: ClassVar[Analysis] = Analysis(
        combined="pooled",
        hides="the value; a second value is never reported",
        floor="noise of the one memo per device",
        together="pooled",
        caveat="Each device randomises its answer once, for life, and repeats it with fresh noise: "
        "errors of different rounds are not independent, and pooling is for values that do not "
        "change.",
        over_time="Each device randomises its answer once, for life, and repeats it with fresh "
        "noise in every round. Averaging rounds removes the fresh noise, **not the first-stage "
        "noise**: with these {devices} devices no number of rounds makes the interval narrower "
        "than the floor. More devices do. All rounds share a common error for the same reason, "
        "which a fit accounts for. Pooling is for values that do not change.",
    )

    @classmethod
    def asked(cls, attribute: Attribute, budget: Budget, digest: bytes) -> Memoized:  # noqa: ARG003
        k, eps_inf, eps_1, method = attribute.k, budget.eps_inf, budget.eps_1, attribute.method
        if attribute.protocol == AUTO:
            rounds = budget.rounds if budget.choose_for == "pooled" else 1
            noise = choose(k=k, eps_inf=eps_inf, eps_1=eps_1, rounds=rounds, method=method)
        else:
            noise = calibrate(attribute.protocol, k=k, eps_inf=eps_inf, eps_1=eps_1, method=method)
        return cls(noise, budget.max_values)

    def why(self, attribute: Attribute, budget: Budget) -> str:
        if attribute.method == "paper":
            return "the paper's choice"
        rounds, answers = 1, "one answer"
        if budget.choose_for != "round":
            rounds, answers = budget.rounds, f"{budget.rounds} answers of a device"
        both = candidates(k=attribute.k, eps_inf=budget.eps_inf, eps_1=budget.eps_1)
        sums = ", ".join(f"{c.protocol} {c.total_variance(rounds):.4g}" for c in both)
        return f"variance of {answers}, over all values: {sums}"

    def explain(self, attribute: Attribute) -> Explanation:
        noise, most, example = self.calibration, self.memos, attribute.values[0]
        belief: Phrase | Shift = Shift(noise.eps_inf)
        bound = phrase("for the one value that is answered for")
        not_hidden: tuple[Phrase, ...] = (FIRST_ONLY,)
        if most > 1:
            belief = phrase("{factor} for each value", factor=belief)
            bound = phrase(
                "{epsilon} for each of at most {most} values", epsilon=noise.eps_inf, most=most
            )
            not_hidden = (
                phrase(
                    "At most {most} different values of yours are ever answered for.", most=most
                ),
                phrase(
                    "What noise cannot hide: if your value changes, someone who keeps all your "
                    "reports can in the long run notice that it changed, though not what it was."
                ),
            )
        return Explanation(
            one_report=one_report_says(noise, example),
            all_reports=phrase_odds(
                "If your true answer is “{value}”, the one answer kept for all your reports says "
                "“{value}” {often}; if it were something else, still {otherwise}.",
                lifetime_odds(noise),
                example,
            ),
            belief_one_report=Shift(noise.single_report_epsilon),
            belief_all_reports=belief,
            bound=bound,
            booked=phrase(
                "The whole is booked when a memo is drawn, because that is the most that any "
                "number of reports from it can reveal."
            ),
            not_hidden=not_hidden,
            warning=changes_unanswered(most) if attribute.changes else None,
        )
