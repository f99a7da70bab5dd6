"""ALLOMFREE's choice between L-GRR and L-OSUE, by the result that will be read.

The paper chooses by the error of one round. Whoever will read rounds pooled wants the protocol with
less error then: between-memo noise counts more with every round, and favours L-GRR for larger k.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final, Literal, get_args

from protocol_spec.calibration import Calibration, Choice, choose
from protocol_spec.chances import Method
from protocol_spec.errors import ParameterError
from protocol_spec.precision import precise

__all__ = ["READINGS", "ChooseFor", "choose_for"]

ChooseFor = Literal["round", "pooled"]
READINGS: Final = get_args(ChooseFor)


@precise
def choose_for(
    reading: ChooseFor,
    *,
    k: int,
    eps_inf: float,
    eps_1: float,
    rounds: int,
    method: Method = "exact",
) -> Choice:
    """L-GRR when its variance at f = 0 is not above L-OSUE's: of one round, or of all `rounds`.

    Pooled and exact, that is k <= 2 + 3 (wa a + wc c) / (wa + wc) with a = e^eps_inf, c = e^eps_1,
    wa = (1 - 1/T) / (a-1)^2, wc = 1/T / (c-1)^2 and T rounds.
    """
    if reading not in READINGS:
        raise ParameterError("choose_for", reading, "choose 'round' or 'pooled'")
    if rounds < 1:
        raise ParameterError("rounds", rounds, "a number of rounds is 1 or more")
    both = choose(k=k, eps_inf=eps_inf, eps_1=eps_1, method=method)
    if reading == "round":
        return both
    grr, osue = (_pooled(calibration, rounds) for calibration in (both.grr, both.osue))
    return Choice(both.grr if grr <= osue else both.osue, both.grr, both.osue)


def _pooled(calibration: Calibration, rounds: int) -> Decimal:
    """Variance of one device's mean of its reports about a value it does not hold, in decimals."""
    p1, q1, p2, q2 = calibration.exact
    between = q1 * (1 - q1) / (p1 - q1) ** 2
    within = (q1 * p2 * (1 - p2) + (1 - q1) * q2 * (1 - q2)) / ((p1 - q1) * (p2 - q2)) ** 2
    return between + within / rounds
