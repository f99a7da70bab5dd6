"""The paper's variance tables computed again, each cell compared with what was printed.

Claim: with `method="paper"` every printed number follows from the paper's closed forms, by
rounding, by dropping the decimals of a whole number, or by rounding twice. The same cell with
`method="exact"` shows what the paper's L-GRR gives away when k > 2.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from itertools import groupby
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
        counts = Counter(cell.verdict for cell in self.cells)
        return sum(counts[verdict] for verdict in verdicts)

    def ratios(self, column: Column) -> tuple[float, float]:
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
    return tuple(compare(table) for table in tables)


def reproduced(comparisons: Iterable[Comparison]) -> bool:
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


# --- as text, Markdown and JSON ------------------------------------------------------------------

_HEADER: Final = (
    "eps_inf",
    "eps_1",
    "protocol",
    "printed",
    "computed",
    "verdict",
    "exact",
    "paper/exact",
)
_LINE: Final = "  {:<7}  {:<5}  {:<12}  {:>8}  {:>8}  {:<15}  {:>12}  {:>11}"

_LEGEND: Final = f"""\
Variance of an estimated frequency at n = {N}, f = 0: the paper's tables, cell by cell.

  printed      the number in the paper
  computed     the same from the paper's calibration, rounded to the printed digits
  verdict      equal            the printed number is the computed one
               truncated        a whole number whose decimals were dropped, not rounded
               double rounding  rounded to six decimals first, then again to fewer
               differs          none of these
  exact        the variance from the exact calibration, with which one report spends all of eps_1
  paper/exact  how many times larger the paper's calibration makes it; 1 when both are the same"""


def as_text(comparisons: Sequence[Comparison]) -> str:
    """For a terminal, at most 100 columns wide."""
    lines = [_LEGEND]
    for comparison in comparisons:
        for block, cells in _blocks(comparison):
            lines += ["", f"{comparison.table.title} protocols, {block.heading}", ""]
            table = [_LINE.format(*fields).rstrip() for fields in (_HEADER, *_fields(cells))]
            lines += [table[0], "  " + "-" * 92, *table[1:]]
            lines += [f"  {note}" for note in _misprints(block)]
    lines += ["", "Printed numbers that are not the rounded ones", ""]
    lines += [f"  {line}" for line in _exceptions(comparisons)] or ["  none"]
    lines += ["", "Summary", "", *(f"  {line}" for line in summary(comparisons))]
    return "\n".join(lines)


def as_markdown(comparisons: Sequence[Comparison]) -> str:
    """The same tables and summary, for a document."""
    lines: list[str] = []
    for comparison in comparisons:
        for block, cells in _blocks(comparison):
            lines += [f"### {comparison.table.title} protocols, {block.heading}", ""]
            rule = ("---", "---", "---", "--:", "--:", "---", "--:", "--:")
            lines += [f"| {' | '.join(fields)} |" for fields in (_HEADER, rule, *_fields(cells))]
            lines += ["", *(note.replace("*", "\\*") + "\n" for note in _misprints(block))]
    lines += ["### Summary", "", *(f"- {line}" for line in summary(comparisons))]
    return "\n".join(lines)


def as_json(comparisons: Sequence[Comparison]) -> str:
    """One object; variances are unrounded floats, printed and computed numbers are text."""
    tables = [
        {
            "title": comparison.table.title,
            "label": comparison.table.label,
            "verdicts": {verdict.value: comparison.count(verdict) for verdict in Verdict},
            "cells": [_json_cell(cell) for cell in comparison.cells],
        }
        for comparison in comparisons
    ]
    return json.dumps({"n": N, "reproduced": reproduced(comparisons), "tables": tables}, indent=2)


def _json_cell(cell: Cell) -> dict[str, object]:
    return {
        **_json_budget(cell.row.budget),
        "printed_budget": _json_budget(cell.row.label),
        "protocol": cell.column.protocol,
        "k": cell.column.k,
        "printed": cell.printed,
        "computed": cell.computed,
        "verdict": cell.verdict.value,
        "paper": cell.paper,
        "exact": cell.exact,
        "ratio": cell.ratio,
    }


def _json_budget(budget: Budget) -> dict[str, float | None]:
    eps_1 = None if budget.eps_1 is None else float(budget.eps_1)
    return {"eps_inf": float(budget.eps_inf), "eps_1": eps_1}


def _blocks(comparison: Comparison) -> Iterator[tuple[Block, list[Cell]]]:
    for block, cells in groupby(comparison.cells, key=lambda cell: cell.block):
        yield block, list(cells)


def _fields(cells: Sequence[Cell]) -> Iterator[tuple[str, ...]]:
    """The texts of each line; a budget is named once, on the first line of its row."""
    previous: Row | None = None
    for cell in cells:
        budget = ("", "") if cell.row is previous else _budget_fields(cell.row)
        previous = cell.row
        yield (
            *budget,
            str(cell.column),
            cell.printed,
            cell.computed,
            cell.verdict.value,
            f"{cell.exact:.8f}",
            _times(cell.ratio),
        )


def _budget_fields(row: Row) -> tuple[str, str]:
    star = "*" if row.mislabelled else ""
    return row.budget.eps_inf + star, "-" if row.budget.eps_1 is None else row.budget.eps_1


def _times(ratio: float) -> str:
    if ratio == 1:
        return "1"
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _misprints(block: Block) -> Iterator[str]:
    for row in block.rows:
        if row.mislabelled:
            yield f"* {_named(row.budget)}: the paper's label is misprinted as {_named(row.label)}"


def _named(budget: Budget) -> str:
    eps_1 = "" if budget.eps_1 is None else f", eps_1 = {budget.eps_1}"
    return f"eps_inf = {budget.eps_inf}{eps_1}"


def _exceptions(comparisons: Sequence[Comparison]) -> list[str]:
    return [
        f"{_named(cell.row.budget)}, {cell.column!s:<12}  "
        f"{cell.printed:>8} for {cell.paper:>14.6f}  {cell.verdict.value}"
        for comparison in comparisons
        for cell in comparison.cells
        if cell.verdict is not Verdict.EQUAL
    ]


def summary(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """The number of explained cells, and what the exact calibration saves."""
    yield from map(_counts, comparisons)
    for comparison in comparisons:
        for column in comparison.table.columns:
            least, most = comparison.ratios(column)
            if most > 1:
                yield (
                    f"{column}: the paper's calibration makes the variance {_times(least)} to "
                    f"{_times(most)} times the exact one"
                )


def _counts(comparison: Comparison) -> str:
    cut, twice = comparison.count(Verdict.TRUNCATED), comparison.count(Verdict.DOUBLE_ROUNDING)
    return (
        f"{comparison.table.title}: {comparison.count(Verdict.EQUAL) + cut} of "
        f"{len(comparison.cells)} cells have the printed digits"
        + (f" ({cut} truncated)" if cut else "")
        + (f", {twice} rounded twice" if twice else "")
        + f", {comparison.count(Verdict.DIFFERS)} differ"
    )


FORMS: Final[dict[str, Callable[[Sequence[Comparison]], str]]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
