"""The paper's variance tables computed again, each cell compared with what was printed.

Claim: with `method="paper"` every printed number follows from the paper's closed forms, by
rounding, by dropping the decimals of a whole number, or by rounding twice. The same cell with
`method="exact"` shows what the paper's L-GRR gives away when k > 2.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from protocol_spec import calibrate, calibrate_once

PRINTED: Final = tomllib.loads(Path(__file__).with_name("printed.toml").read_text("utf-8"))
N: Final = 10_000  # devices in both tables; the variance is that of a value nobody holds
_MOST_PLACES: Final = 6  # the most decimals that the tables print
_ANY_K: Final = 2  # unary encodings: the variance is the same for every k


class Budget(NamedTuple):
    """eps_inf and eps_1 as printed; a one-time protocol has only the first."""

    eps_inf: str
    eps_1: str | None = None


@dataclass(frozen=True, slots=True)
class PrintedVariance:
    """One cell. `label` is the budget in the margin, `budget` the one that the number was computed
    for; `k` is None for unary encodings, whose variance does not depend on it."""

    table: str
    label: Budget
    budget: Budget
    protocol: str
    k: int | None
    text: str

    @property
    def column(self) -> str:
        return self.protocol if self.k is None else f"{self.protocol} k={self.k}"


def _printed(table: str) -> Iterator[PrintedVariance]:
    columns = PRINTED["variances"][table]["columns"].split()
    for line in PRINTED["variances"][table]["rows"].strip().splitlines():
        margin, *groups = line.split("|")
        label, _, corrected = margin.partition("*")
        budget = Budget(*(corrected or label).split())
        for column, cell in zip(columns, " ".join(groups).split(), strict=True):
            protocol, _, k = column.partition(":")
            size = int(k) if k else None
            yield PrintedVariance(table, Budget(*label.split()), budget, protocol, size, cell)


VARIANCES: Final = tuple(cell for table in PRINTED["variances"] for cell in _printed(table))


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

    def facts(self) -> dict[str, Any]:
        """Variances are unrounded; printed and computed numbers are text."""
        p = self.printed
        return {
            "table": p.table,
            "eps_inf": p.budget.eps_inf,
            "eps_1": p.budget.eps_1,
            "printed_budget": p.label,
            "protocol": p.protocol,
            "k": p.k,
            "printed": p.text,
            "computed": f"{self.paper:.{places(p.text)}f}",
            "verdict": self.verdict.value,
            "paper": self.paper,
            "exact": self.exact,
        }


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


# --- in Markdown ---------------------------------------------------------------------------------

LEGEND: Final = f"""\
Variance of an estimated frequency at n = {N:,}, f = 0, as printed. "exact" is the variance of the
exact calibration, with which one report spends all of eps_1; it is shown where it differs. Two rows
of the paper have a misprinted eps_inf, which is shown next to the right one."""


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, aligned to be read as they are; the first row is the header."""
    widths = [max(3, *map(len, column)) for column in zip(*rows)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = ((r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])) for r in rows)
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return [head, f"| {' | '.join(rule)} |", *body]


def as_lines(cells: Sequence[Cell]) -> list[str]:
    """In Markdown: the paper's tables, what is not rounded, and the sums."""
    lines = LEGEND.splitlines()
    for name, group in groupby(cells, key=lambda cell: cell.printed.table):
        lines += ["", f"### {name} protocols", "", *table(_rows(list(group)))]
    exceptions = [["protocol", "eps_inf", "eps_1", "printed", "computed", "verdict"]]
    exceptions += [
        [c.printed.column, *map(str, c.printed.budget), c.printed.text, f"{c.paper:.6f}", c.verdict]
        for c in cells
        if c.verdict is not Verdict.EQUAL
    ]
    lines += ["", "### Printed numbers that are not the rounded ones", ""]
    lines += table(exceptions)
    return [*lines, "", "### Summary", "", *summary(cells)]


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


def summary(cells: Sequence[Cell]) -> Iterator[str]:
    """The number of explained cells, and what the exact calibration saves."""
    for name, group in groupby(cells, key=lambda cell: cell.printed.table):
        counts = Counter(cell.verdict for cell in group)
        cut, twice = counts[Verdict.TRUNCATED], counts[Verdict.DOUBLE_ROUNDING]
        yield (
            f"- {name}: {counts[Verdict.EQUAL] + cut} of {counts.total()} cells have the printed "
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
                f"- {column}: the paper's calibration makes the variance {least} to {most} times "
                "the exact one"
            )
