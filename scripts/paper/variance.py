"""The paper's variance tables computed again, each cell compared with what was printed.

Claim: with `method="paper"` every printed number follows from the paper's closed forms, by
rounding, by dropping the decimals of a whole number, or by rounding twice. The same cell with
`method="exact"` shows what the paper's L-GRR gives away when k > 2.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

from paper.printed import LABELS, VARIANCES, Budget, N, PrintedVariance
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
    once = Decimal(f"{value:.{_MOST_PLACES}f}")
    twice = once.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)
    if 0 < digits < _MOST_PLACES and text == str(twice):
        return Verdict.DOUBLE_ROUNDING
    return Verdict.DIFFERS


@dataclass(frozen=True, slots=True)
class Cell:
    """One printed number with the variance from the paper's calibration and from the exact one."""

    printed: PrintedVariance
    paper: float
    exact: float

    @property
    def verdict(self) -> Verdict:
        return classify(self.printed.text, self.paper)

    @property
    def ratio(self) -> float:
        """Variance with the paper's calibration over variance with the exact one."""
        return self.paper / self.exact


def compare(printed: Iterable[PrintedVariance] = VARIANCES) -> list[Cell]:
    """Compute every cell with both calibrations."""
    return [Cell(p, *variances(p.protocol, p.k, p.budget)) for p in printed]


def reproduced(cells: Iterable[Cell]) -> bool:
    return all(cell.verdict is not Verdict.DIFFERS for cell in cells)


def variances(protocol: str, k: int | None, budget: Budget) -> tuple[float, float]:
    """The variance with the paper's calibration and with the exact one; one-time has only one."""
    size, eps_inf = k or _ANY_K, float(budget.eps_inf)
    if budget.eps_1 is None:
        once = calibrate_once(protocol, k=size, epsilon=eps_inf).variance(N)
        return once, once
    budgets = {"eps_inf": eps_inf, "eps_1": float(budget.eps_1)}
    paper = calibrate(protocol, k=size, **budgets, method="paper")
    exact = calibrate(protocol, k=size, **budgets, method="exact")
    return paper.variance(N), exact.variance(N)


# --- as text, Markdown and JSON ------------------------------------------------------------------

LEGEND: Final = f"""\
Variance of an estimated frequency at n = {N:,}, f = 0, as printed. "exact" is the variance of the
exact calibration, with which one report spends all of eps_1; it is shown where it differs. Two rows
of the paper have a misprinted eps_inf, which is shown next to the right one."""


def table(rows: Sequence[Sequence[str]], *, markdown: bool) -> list[str]:
    """Lines of a table whose first row is the header and whose first column is left-aligned."""
    if markdown:
        rule = ["---", *("--:" for _ in rows[0][1:])]
        return [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def as_lines(cells: Sequence[Cell], *, markdown: bool) -> list[str]:
    """For a terminal or for a document: the paper's tables, what is not rounded, and the sums."""
    mark, lines = "### " if markdown else "", LEGEND.splitlines()
    for name, group in groupby(cells, key=lambda cell: cell.printed.table):
        lines += ["", f"{mark}{name} protocols", "", *table(_rows(list(group)), markdown=markdown)]
    exceptions = [["protocol", "eps_inf", "eps_1", "printed", "computed", "verdict"]]
    exceptions += [
        [c.printed.column, *map(str, c.printed.budget), c.printed.text, f"{c.paper:.6f}", c.verdict]
        for c in cells
        if c.verdict is not Verdict.EQUAL
    ]
    lines += ["", f"{mark}Printed numbers that are not the rounded ones", ""]
    lines += table(exceptions, markdown=markdown)
    item = "- " if markdown else ""
    return [*lines, "", f"{mark}Summary", "", *(f"{item}{line}" for line in summary(cells))]


def _rows(cells: Sequence[Cell]) -> list[list[str]]:
    """As the paper prints them, with the exact variances next to those that they improve."""
    header = ["eps_inf", "eps_1"]
    improved = {c.printed.column for c in cells if c.ratio != 1}
    rows: dict[Budget, list[str]] = {}
    for cell in cells:
        printed, (eps_inf, eps_1) = cell.printed, cell.printed.budget
        wrong = "" if printed.label == printed.budget else f" (printed {printed.label.eps_inf})"
        row = rows.setdefault(printed.budget, [eps_inf + wrong, eps_1 or "-"])
        shown = [printed.text, *([f"{cell.exact:.6f}"] if printed.column in improved else [])]
        row += shown
        if len(rows) == 1:
            header += [printed.column, "exact"][: len(shown)]
    return [header, *rows.values()]


def as_json(cells: Sequence[Cell]) -> str:
    """One object; variances are unrounded floats, printed and computed numbers are text."""
    tables = []
    for name, group in groupby(cells, key=lambda cell: cell.printed.table):
        mine = list(group)
        counts = Counter(cell.verdict for cell in mine)
        verdicts = {verdict.value: counts[verdict] for verdict in Verdict}
        found = [_json_cell(cell) for cell in mine]
        tables.append({"title": name, "label": LABELS[name], "verdicts": verdicts, "cells": found})
    return json.dumps({"n": N, "reproduced": reproduced(cells), "tables": tables}, indent=2)


def _json_cell(cell: Cell) -> dict[str, Any]:
    def numbers(budget: Budget) -> dict[str, float | None]:
        eps_1 = None if budget.eps_1 is None else float(budget.eps_1)
        return {"eps_inf": float(budget.eps_inf), "eps_1": eps_1}

    printed = cell.printed
    return {
        **numbers(printed.budget),
        "printed_budget": numbers(printed.label),
        "protocol": printed.protocol,
        "k": printed.k,
        "printed": printed.text,
        "computed": f"{cell.paper:.{places(printed.text)}f}",
        "verdict": cell.verdict.value,
        "paper": cell.paper,
        "exact": cell.exact,
        "ratio": cell.ratio,
    }


def summary(cells: Sequence[Cell]) -> Iterator[str]:
    """The number of explained cells, and what the exact calibration saves."""
    for name, group in groupby(cells, key=lambda cell: cell.printed.table):
        counts = Counter(cell.verdict for cell in group)
        cut, twice = counts[Verdict.TRUNCATED], counts[Verdict.DOUBLE_ROUNDING]
        yield (
            f"{name}: {counts[Verdict.EQUAL] + cut} of {counts.total()} cells have the printed "
            f"digits{f' ({cut} truncated)' if cut else ''}"
            f"{f', {twice} rounded twice' if twice else ''}, {counts[Verdict.DIFFERS]} differ"
        )
    ratios: dict[str, list[float]] = {}
    for cell in cells:
        ratios.setdefault(cell.printed.column, []).append(cell.ratio)
    for column, found in ratios.items():
        if max(found) > 1:
            least, most = (f"{r:.2f}" if r < 100 else f"{r:,.0f}" for r in (min(found), max(found)))
            yield (
                f"{column}: the paper's calibration makes the variance {least} to {most} times "
                "the exact one"
            )
