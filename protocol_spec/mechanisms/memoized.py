"""The paper's mechanism: a memo of each value for life, and fresh noise over it in every round.

Claim: one report is eps_1-LDP, all reports of one memo together are eps_inf-LDP. That a value
changed is not hidden: a new value is a new memo, and costs eps_inf again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from protocol_spec.accounting import Spending, spending
from protocol_spec.attributes import Attribute
from protocol_spec.calibration import Calibration, calibrate, choose_for
from protocol_spec.mechanisms.base import (
    AUTO,
    Budget,
    MechanismRandomiser,
    PlainAnswers,
    Reporting,
    Rules,
    Step,
    two_steps,
)
from protocol_spec.probabilities import LONGITUDINAL
from protocol_spec.randomiser import Entropy, Randomiser


@dataclass(frozen=True)
class Memoized(PlainAnswers):
    """Up to `memos` memos, eps_inf for each."""

    calibration: Calibration
    memos: int
    reporting: ClassVar[Reporting] = "memoized"
    rules: ClassVar[Rules] = Rules(
        LONGITUDINAL, ("L-GRR", "L-OSUE"), LONGITUDINAL, memo_per_value=True, steady=True
    )

    @classmethod
    def asked(cls, attribute: Attribute, budget: Budget, digest: bytes) -> Memoized:  # noqa: ARG003
        k, eps_inf, eps_1 = attribute.k, budget.eps_inf, budget.eps_1
        if attribute.protocol == AUTO:
            both = choose_for(
                budget.choose_for,
                k=k,
                eps_inf=eps_inf,
                eps_1=eps_1,
                rounds=budget.rounds,
                method=attribute.method,
            )
            return cls(both.chosen, budget.max_values)
        noise = calibrate(
            attribute.protocol, k=k, eps_inf=eps_inf, eps_1=eps_1, method=attribute.method
        )
        return cls(noise, budget.max_values)

    @property
    def lifetime_epsilon(self) -> float:
        return self.memos * self.calibration.eps_inf

    @property
    def step_epsilons(self) -> list[float]:
        return [self.calibration.eps_inf, self.calibration.eps_1]

    def steps(self, adjusted: Callable[[float], Decimal]) -> list[Step]:
        return two_steps(self.calibration, adjusted)

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> MechanismRandomiser:  # noqa: ARG002
        return Randomiser(self.calibration, entropy)

    def epsilon_after(self, reports: int) -> float:
        return self.calibration.epsilon_after(reports)

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        return spending(self.calibration, reports_per_memo)
