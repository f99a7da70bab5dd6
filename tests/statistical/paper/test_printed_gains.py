"""The printed gains were copied without a slip."""

from __future__ import annotations

import re
from decimal import Decimal
from statistics import mean

import pytest

from paper.printed_gains import DATA_SETS, HALVES, REFERENCES, Half
from simulation.model.datasets import NAMES
from tests.support import places

SOURCE = places.SHARED / "paper.tex"

every_half = pytest.mark.parametrize(
    "half", HALVES, ids=[f"{half.data_set}-{half.ratio}" for half in HALVES]
)


def test_four_data_sets_at_two_ratios_and_eight_budgets() -> None:
    assert [(half.data_set, half.ratio) for half in HALVES] == [
        (name, ratio) for ratio in ("0.3", "0.6") for name in NAMES
    ]
    budgets = ["0.5", "1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]
    assert all([row.eps_inf for row in half.rows] == budgets for half in HALVES)


@every_half
@pytest.mark.parametrize("column", [0, 1], ids=REFERENCES)
def test_the_means_are_those_of_the_column(half: Half, column: int) -> None:
    """Each of nine numbers was rounded to two decimals on its own."""
    shown = mean(Decimal(row.gains[column]) for row in half.rows)
    assert abs(shown - Decimal(half.means[column])) <= Decimal("0.01")


@every_half
def test_every_digit_is_in_the_papers_source(half: Half) -> None:
    first = 2 * DATA_SETS.index(half.data_set)
    columns = slice(first, first + 2)
    ours = {row.eps_inf: list(row.gains) for row in half.rows} | {"Mean": list(half.means)}
    assert {key: cells[columns] for key, cells in _source_table(half.label).items()} == ours


def _source_table(label: str) -> dict[str, list[str]]:
    """The rows of one table of the LaTeX source; skips the test where there is none."""
    if not SOURCE.exists():
        pytest.skip("the paper's source is not beside this checkout")
    before = SOURCE.read_text(encoding="utf-8").partition(f"label{{{label}}}")[0]
    table = before.rpartition(r"\midrule")[2]
    rows = re.findall(r"^\s*([\d.]+|Mean)((?:\s*&\s*[\d.]+)+)", table, re.MULTILINE)
    return {key: re.findall(r"[\d.]+", cells) for key, cells in rows}
