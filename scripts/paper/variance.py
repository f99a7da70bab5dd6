"""The paper's variance tables computed again, each cell compared with what was printed.

Claim: with `method="paper"` every printed number follows from the paper's closed forms, by
rounding, by dropping the decimals of a whole number, or by rounding twice. The same cell with
`method="exact"` shows what the paper's L-GRR gives away when k > 2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from typing import Final

from paper import printed
from paper.printed import Block, Budget, Column, N, Row, Table
from protocol_spec import calibrate, calibrate_once

_MOST_PLACES: Final = 6  # the most decimals that the tables print
_ANY_K: Final = 2  # unary encodings: the variance is the same for every k


class Verdict(StrEnum):
    """How a printed number follows from the computed one, if it does."""

    EQUAL = "equal"
    TRUNCATED = "truncated"
    DOUBLE_ROUNDING = "double rounding"
    DIFFERS = "differs"


def places(text: str) -> int:
    """Number of decimals in a printed number."""
    return len(text.partition(".")[2])


def classify(text: str, value: float) -> Verdict:
    """The first rule that turns `value` into `text`, digit for digit.

    Only whole numbers may be truncated: a decimal that is one too low in its last place differs.
    """
    digits = places(text)
    if text == f"{value:.{digits}f}":
        return Verdict.EQUAL
    if digits == 0 and text == str(math.floor(value)):
        return Verdict.TRUNCATED
    if 0 < digits < _MOST_PLACES and text == _rounded_twice(value, digits):
        return Verdict.DOUBLE_ROUNDING
    return Verdict.DIFFERS


def _rounded_twice(value: float, digits: int) -> str:
    """Rounded to six decimals and that again to fewer, ties to even."""
    once = Decimal(f"{value:.{_MOST_PLACES}f}")
    return str(once.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN))


@dataclass(frozen=True, slots=True)
class Cell:
    """One printed number with the variance from the paper's calibration and from the exact one."""

    block: Block
    row: Row
    column: Column
    printed: str
    paper: float
    exact: float

    @property
    def verdict(self) -> Verdict:
        """How the printed number follows from the paper's calibration."""
        return classify(self.printed, self.paper)

    @property
    def computed(self) -> str:
        """The paper's calibration, rounded to as many decimals as were printed."""
        return f"{self.paper:.{places(self.printed)}f}"

    @property
    def ratio(self) -> float:
        """Variance with the paper's calibration over variance with the exact one."""
        return self.paper / self.exact


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table of the paper, cell by cell in reading order."""

    table: Table
    cells: tuple[Cell, ...]

    def count(self, *verdicts: Verdict) -> int:
        """How many cells have one of these verdicts."""
        counts = Counter(cell.verdict for cell in self.cells)
        return sum(counts[verdict] for verdict in verdicts)

    def ratios(self, column: Column) -> tuple[float, float]:
        """Smallest and largest ratio in one column."""
        ratios = [cell.ratio for cell in self.cells if cell.column == column]
        return min(ratios), max(ratios)


def compare(table: Table) -> Comparison:
    """Compute every cell of one table with both calibrations."""
    cells = (
        Cell(block, row, column, text, *variances(column, row.budget))
        for block in table.blocks
        for row in block.rows
        for column, text in zip(table.columns, row.cells, strict=True)
    )
    return Comparison(table, tuple(cells))


def compare_all(tables: Iterable[Table] = printed.TABLES) -> tuple[Comparison, ...]:
    """Both tables."""
    return tuple(compare(table) for table in tables)


def reproduced(comparisons: Iterable[Comparison]) -> bool:
    """True when no cell is left unexplained."""
    return all(comparison.count(Verdict.DIFFERS) == 0 for comparison in comparisons)


def variances(column: Column, budget: Budget) -> tuple[float, float]:
    """The variance with the paper's calibration and with the exact one; one-time has only one."""
    protocol, k, eps_inf = column.protocol, column.k or _ANY_K, float(budget.eps_inf)
    if budget.eps_1 is None:
        once = calibrate_once(protocol, k=k, epsilon=eps_inf).variance(N)
        return once, once
    eps_1 = float(budget.eps_1)
    paper = calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1, method="paper")
    exact = calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1, method="exact")
    return paper.variance(N), exact.variance(N)
