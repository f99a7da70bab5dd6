"""The paper's mechanism: a memo of each value for life, and fresh noise over it in every round.

Claim: one report is eps_1-LDP, all reports of one memo together are eps_inf-LDP. That a value
changed is not hidden: a new value is a new memo, and costs eps_inf again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol_spec.attributes import Attribute
from protocol_spec.calibration import Calibration, calibrate, choose_for
from protocol_spec.mechanisms.base import AUTO, Budget, Mechanism, Reporting, Rules
from protocol_spec.probabilities import LONGITUDINAL


@dataclass(frozen=True)
class Memoized(Mechanism):
    """Up to `memos` memos, eps_inf for each."""

    calibration: Calibration = field()
    memos: int = field()
    reporting: ClassVar[Reporting] = "memoized"
    rules: ClassVar[Rules] = Rules(
        LONGITUDINAL, ("L-GRR", "L-OSUE"), LONGITUDINAL, memo_per_value=True, steady=True
    )

    @classmethod
    def asked(cls, attribute: Attribute, budget: Budget, digest: bytes) -> Memoized:  # noqa: ARG003
        k, eps_inf, eps_1, method = attribute.k, budget.eps_inf, budget.eps_1, attribute.method
        if attribute.protocol == AUTO:
            reading, rounds = budget.choose_for, budget.rounds
            noise = choose_for(
                reading, k=k, eps_inf=eps_inf, eps_1=eps_1, rounds=rounds, method=method
            ).chosen
        else:
            noise = calibrate(attribute.protocol, k=k, eps_inf=eps_inf, eps_1=eps_1, method=method)
        return cls(noise, budget.max_values)
