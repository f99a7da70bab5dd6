"""Every number in the paper's two variance tables follows from the paper's own closed forms."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paper import cli, printed
from paper.cli import Printed
from paper.printed import Budget, Row, Table
from paper.variance import Cell, Verdict, classify, compare_all, places, variances
from tests.support.harness import ROOT, every

SCRIPT = ROOT / "scripts/reproduce_paper.py"

Key = tuple[str, str | None, int | None]  # eps_inf, eps_1, k of GRR

# The numbers that are not the rounded ones, and what was printed.
TRUNCATED: dict[Key, str] = {
    ("0.5", "0.30", 1024): "26706",
    ("1.0", "0.60", 1024): "3153",
    ("0.5", "0.25", 1024): "60218",
    ("1.0", "0.50", 1024): "7198",
    ("1.0", "0.40", 1024): "16443",
    ("2.0", "0.80", 1024): "673",
    ("0.5", "0.15", 32): "10",
    ("1.0", "0.30", 1024): "40412",
    ("2.0", "0.60", 1024): "1737",
    ("4.0", "1.20", 1024): "6",
    ("0.5", "0.10", 32): "30",
    ("0.5", "0.10", 1024): "972656",
    ("1.0", "0.10", 32): "20",
    ("1.0", "0.10", 1024): "620584",
    ("2.0", "0.20", 1024): "29356",
}
ROUNDED_TWICE: dict[Key, str] = {("4.0", "1.60", 1024): "2.12772"}

LONGITUDINAL, ONE_TIME = compare_all()
CELLS = [*LONGITUDINAL.cells, *ONE_TIME.cells]


def name(cell: Cell) -> str:
    return "-".join(filter(None, (*cell.row.budget, str(cell.column).replace(" ", "-"))))


def key(cell: Cell) -> Key:
    return (*cell.row.budget, cell.column.k)


every_cell = every("cell", CELLS, ids=name)


# --- the numbers ------------------------------------------------------------------------------


@every_cell
def test_the_printed_number_follows_from_the_papers_calibration(cell: Cell) -> None:
    shown, value = Decimal(cell.printed), Decimal(cell.paper)
    last_place = Decimal(1).scaleb(-places(cell.printed))
    if key(cell) in TRUNCATED:
        assert cell.printed == TRUNCATED[key(cell)]
        assert shown + Decimal("0.5") < value < shown + 1
        assert cell.verdict is Verdict.TRUNCATED
    elif key(cell) in ROUNDED_TWICE:
        assert cell.printed == ROUNDED_TWICE[key(cell)]
        assert Decimal(f"{value:.6f}") == shown + last_place / 2
        assert cell.verdict is Verdict.DOUBLE_ROUNDING
    else:
        assert abs(shown - value) < last_place / 2
        assert cell.verdict is Verdict.EQUAL


def test_all_whole_numbers_are_truncated_so_truncation_is_the_papers_rule_for_them() -> None:
    whole = [cell for cell in CELLS if places(cell.printed) == 0]
    assert len(whole) == 25
    assert all(cell.printed == str(math.floor(cell.paper)) for cell in whole)


# --- the exact calibration beside it ----------------------------------------------------------


@every_cell
def test_both_calibrations_agree_except_for_l_grr_with_more_than_two_values(cell: Cell) -> None:
    if cell.column.protocol == "L-GRR" and cell.column.k != 2:
        assert cell.ratio > 1.9
    else:
        assert cell.ratio == 1


@every("cell", [cell for cell in LONGITUDINAL.cells if cell.column.k is not None], ids=name)
def test_exact_l_grr_is_one_time_grr_at_eps_1(cell: Cell) -> None:
    assert cell.column.k is not None
    assert cell.row.budget.eps_1 is not None
    c = math.exp(float(cell.row.budget.eps_1))
    expected = (c + cell.column.k - 2) / (printed.N * (c - 1) ** 2)
    assert cell.exact == pytest.approx(expected, rel=1e-12)


# --- the misprinted labels --------------------------------------------------------------------


def test_every_budget_has_the_ratio_of_its_block_once_two_labels_are_corrected() -> None:
    mislabelled = []
    for block in printed.LONGITUDINAL.blocks:
        ratio = Decimal(block.heading.split()[2])
        for row in block.rows:
            assert row.budget.eps_1 is not None
            assert Decimal(row.budget.eps_1) == ratio * Decimal(row.budget.eps_inf)
            if row.mislabelled:
                mislabelled.append((ratio, row.label, row.budget))
    assert mislabelled == [
        (Decimal("0.3"), Budget("1.0", "0.60"), Budget("2.0", "0.60")),
        (Decimal("0.3"), Budget("2.0", "1.20"), Budget("4.0", "1.20")),
    ]


@pytest.mark.parametrize("row", printed.LONGITUDINAL.blocks[3].rows[2:], ids=["third", "fourth"])
def test_a_misprinted_label_taken_at_its_word_does_not_give_the_row(row: Row) -> None:
    verdicts = {
        column: classify(text, variances(column, row.label)[0])
        for column, text in zip(printed.LONGITUDINAL.columns, row.cells, strict=True)
    }
    wrong = [column for column, verdict in verdicts.items() if verdict is Verdict.DIFFERS]
    assert [str(column) for column in wrong] == ["L-GRR k=32", "L-GRR k=1024", "L-SOUE", "L-OUE"]


# --- a wrong number would be caught -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "verdict"),
    [
        ("0.001103", 0.00110282, Verdict.EQUAL),
        ("0.001103", 0.0011035001, Verdict.DIFFERS),
        ("0.001102", 0.00110282, Verdict.DIFFERS),  # decimals are never truncated
        ("0.00110", 0.00110282, Verdict.EQUAL),
        ("117", 117.4, Verdict.EQUAL),
        ("118", 117.6, Verdict.EQUAL),
        ("117", 117.6, Verdict.TRUNCATED),
        ("116", 117.6, Verdict.DIFFERS),
        ("118", 117.4, Verdict.DIFFERS),
        ("2.12773", 2.127725123, Verdict.EQUAL),
        ("2.12772", 2.127725123, Verdict.DOUBLE_ROUNDING),
        ("2.12772", 2.127725501, Verdict.DIFFERS),  # six decimals: 2.127726
        ("2.12773", 2.127734999, Verdict.EQUAL),
        ("2.12774", 2.127734999, Verdict.DOUBLE_ROUNDING),  # a tie at six decimals goes to even
        ("2.127725", 2.127725501, Verdict.DIFFERS),  # nothing was rounded before six decimals
    ],
)
def test_classify(text: str, value: float, verdict: Verdict) -> None:
    assert classify(text, value) is verdict


def with_first_cell(table: Table, text: str) -> Table:
    block = table.blocks[0]
    row = replace(block.rows[0], cells=(text, *block.rows[0].cells[1:]))
    return replace(table, blocks=(replace(block, rows=(row, *block.rows[1:])), *table.blocks[1:]))


# --- the command ------------------------------------------------------------------------------


SUMMARY = """
  Longitudinal: 167 of 168 cells have the printed digits (15 truncated), 1 rounded twice, 0 differ
  One-time: 20 of 20 cells have the printed digits, 0 differ
  L-GRR k=32: the paper's calibration makes the variance 1.92 to 130 times the exact one
  L-GRR k=1024: the paper's calibration makes the variance 252 to 126,980 times the exact one
"""


def invoke(*arguments: str, paper: Printed = Printed()) -> Result:  # noqa: B008 - it is frozen
    return CliRunner().invoke(cli.main, ["variance", *arguments], obj=paper)


def test_the_command_runs_from_any_directory_and_ends_with_the_counts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "variance"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(SUMMARY)


def test_text_fits_a_hundred_columns_and_has_one_line_for_each_cell() -> None:
    lines = invoke().output.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line.isascii() and line == line.rstrip() for line in lines)
    for cell in CELLS:
        fields = [*str(cell.column).split(), cell.printed, cell.computed]
        fields += [*cell.verdict.value.split(), f"{cell.exact:.8f}"]
        assert any(line.split()[-len(fields) - 1 : -1] == fields for line in lines), fields
    assert sum(any(f" {verdict.value} " in line for verdict in Verdict) for line in lines) == (
        len(CELLS) + len(Verdict)  # the legend names each verdict
    )


def test_text_names_the_misprinted_labels_and_every_number_that_is_not_rounded() -> None:
    output = invoke().output
    assert "2.0, eps_1 = 0.60: the paper's label is misprinted as eps_inf = 1.0" in output
    assert "4.0, eps_1 = 1.20: the paper's label is misprinted as eps_inf = 2.0" in output
    exceptions = output.partition("not the rounded ones")[2].partition("Summary")[0]
    assert len(exceptions.split("\n\n")[1].splitlines()) == 16
    assert "26706 for   26706.640424  truncated" in exceptions
    assert "2.12772 for       2.127725  double rounding" in exceptions


def test_json_is_one_object_with_every_cell() -> None:
    done = invoke("--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (report["n"], report["reproduced"]) == (10_000, True)
    assert [(table["label"], len(table["cells"])) for table in report["tables"]] == [
        ("tab:analysis_var", 168),
        ("tab:analysis_var_non_long", 20),
    ]
    assert report["tables"][0]["verdicts"] == {
        "equal": 152,
        "truncated": 15,
        "double rounding": 1,
        "differs": 0,
    }
    c = math.exp(1.2)
    exact = (c + 1022) / (10_000 * (c - 1) ** 2)
    [cell] = [
        cell
        for cell in report["tables"][0]["cells"]
        if (cell["eps_inf"], cell["eps_1"], cell["k"]) == (4.0, 1.2, 1024)
    ]
    assert cell == {
        "eps_inf": 4.0,
        "eps_1": 1.2,
        "printed_budget": {"eps_inf": 2.0, "eps_1": 1.2},
        "protocol": "L-GRR",
        "k": 1024,
        "printed": "6",
        "computed": "7",
        "verdict": "truncated",
        "paper": pytest.approx(6.565839952757371, rel=1e-15),
        "exact": pytest.approx(exact, rel=1e-12),
        "ratio": pytest.approx(6.565839952757371 / exact, rel=1e-12),
    }
    assert report["tables"][1]["cells"][0]["eps_1"] is None


@pytest.mark.parametrize("form", [[], ["--json"], ["--markdown"]])
def test_a_number_that_cannot_be_explained_is_exit_status_1(form: list[str]) -> None:
    wrong = with_first_cell(printed.LONGITUDINAL, "0.001104")
    done = invoke(*form, paper=Printed(tables=(wrong, printed.ONE_TIME)))
    assert done.exit_code == 1
    assert "differs" in done.output
    if form == ["--json"]:
        assert json.loads(done.stdout)["reproduced"] is False
    else:
        assert "166 of 168 cells have the printed digits" in done.output
        assert "1 differ\n" in done.output
