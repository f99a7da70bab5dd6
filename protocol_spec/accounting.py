"""What a device has disclosed so far, in epsilon for the ledger and in odds for people.

Claim: `Spending.exact` is the exact worst-case log-ratio between two histories that change at the
same moments, and `Spending.charged`, which the ledger books, is never below it. Neither covers
*that* a value changed: memoisation does not hide changes, and no sum of eps_inf bounds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from protocol_spec.calibration import Calibration


@dataclass(frozen=True, slots=True)
class Spending:
    """The privacy spent on one attribute by a device that memoized one or more values."""

    memos: int
    reports: int
    exact: float
    charged: float


def spending(calibration: Calibration, reports_per_memo: Iterable[int]) -> Spending:
    """Sum over distinct values: each memo costs eps_t of its own reports, at most eps_inf.

    A retransmission of the same bytes is not another report. A memo that was drawn but has not
    reported yet is charged in full, because its first report may be on its way.
    """
    counts = list(reports_per_memo)
    exact = math.fsum(calibration.epsilon_after(count) for count in counts)
    charged = len(counts) * calibration.eps_inf
    return Spending(len(counts), sum(counts), min(exact, charged), charged)


class Odds(NamedTuple):
    """How often an answer is given by those whose truth it is, and by those whose it is not."""

    if_true: float
    if_false: float


def report_odds(calibration: Calibration) -> Odds:
    """The odds of a single report."""
    return Odds(calibration.ps, calibration.qs)


def lifetime_odds(calibration: Calibration) -> Odds:
    """The odds of the memo itself: all that any number of reports can ever reveal."""
    return Odds(calibration.p1, calibration.q1)


def largest_shift(epsilon: float) -> str:
    """The bound of local differential privacy in words: what anyone's odds are multiplied by."""
    if epsilon > math.log(100_000):
        return "without a useful bound"
    factor = math.exp(epsilon)
    return f"by at most {factor:.3g}" if factor < 100 else f"by at most {factor:,.0f}"
