"""Tables for collectors that keep the reports of one device together, while its value is static.

Claim: the mean of the table over devices is an unbiased estimate for every frequency, and of all
such tables the one with the least variance at the frequency it was designed for. Counting reports
(the pooled estimate) is the straight-line table; a curved one knows that a memo is 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from protocol_spec.errors import ParameterError
from protocol_spec.mechanisms.base import Channel
from protocol_spec.probabilities import ONE, precise

__all__ = ["LinkedTable", "linked_table"]


@dataclass(frozen=True, slots=True)
class LinkedTable:
    """`table[s]` stands for a device of whose reports s support the value.

    `variance` is that of one device's contribution to the frequency, if it does not hold the
    value and if it does.
    """

    table: tuple[float, ...]
    variance: tuple[float, float]
    memo_absent: float
    memo_gap: float

    def frequency(self, devices: Sequence[int]) -> float:
        """The estimate, when `devices[s]` devices had s reports in favour."""
        mean = math.fsum(n * g for n, g in zip(devices, self.table)) / sum(devices)
        return (mean - self.memo_absent) / self.memo_gap


@precise
def linked_table(calibration: Channel, reports: int, designed_at: float = 0.0) -> LinkedTable:
    """The table for devices that sent `reports` reports each. Only for unary protocols."""
    if not calibration.unary:
        raise ParameterError("protocol", "L-GRR", "linked tables are for unary protocols")
    if reports < 1:
        raise ParameterError("reports", reports, "a number of reports is 1 or more")
    if not 0.0 <= designed_at <= 1.0:
        raise ParameterError("designed_at", designed_at, "a frequency lies between 0 and 1")
    p1, q1, p2, q2 = calibration.exact
    ones, zeros = (_binomial(reports, p) for p in (p2, q2))
    memo = q1 + Decimal(designed_at) * (p1 - q1)
    # Where p2 is 1 or q2 is 0 some numbers are impossible; any entry would do for them.
    both = [memo * one + (1 - memo) * zero or ONE for one, zero in zip(ones, zeros)]
    l1, l0 = _multipliers(ones, zeros, both)
    table = [(l1 * one + l0 * zero) / b for one, zero, b in zip(ones, zeros, both)]

    def variance(kept: Decimal) -> float:
        chances = (kept * one + (1 - kept) * zero for one, zero in zip(ones, zeros))
        square = sum(chance * g * g for chance, g in zip(chances, table))
        return float((square - kept**2) / (p1 - q1) ** 2)

    rounded = tuple(map(float, table))
    return LinkedTable(rounded, (variance(q1), variance(p1)), float(q1), float(p1 - q1))


def _multipliers(
    ones: list[Decimal], zeros: list[Decimal], both: list[Decimal]
) -> tuple[Decimal, Decimal]:
    """Those that make the table's mean 1 if the memo is a one, and 0 if it is a zero."""
    first = sum(one * one / b for one, b in zip(ones, both))
    mixed = sum(one * zero / b for one, zero, b in zip(ones, zeros, both))
    last = sum(zero * zero / b for zero, b in zip(zeros, both))
    determinant = Decimal(first * last - mixed * mixed)
    return last / determinant, -mixed / determinant


def _binomial(n: int, p: Decimal) -> list[Decimal]:
    return [math.comb(n, s) * _power(p, s) * _power(1 - p, n - s) for s in range(n + 1)]


def _power(base: Decimal, exponent: int) -> Decimal:
    return base**exponent if exponent else ONE  # decimal leaves 0^0 undefined
