"""The paper's variance tables: every printed number follows from the closed forms."""

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

from paper import cli
from paper.cli import Printed
from paper.variance import VARIANCES, Budget, Cell, N, Verdict, classify, compare, places, variances
from tests.support.harness import ROOT

# The whole numbers that were truncated rather than rounded, by eps_inf, eps_1 and k.
Key = tuple[str, str | None, int | None]
TRUNCATED: dict[Key, str] = {
    ("0.5", "0.30", 1024): "26706", ("1.0", "0.60", 1024): "3153", ("0.5", "0.25", 1024): "60218",
    ("1.0", "0.50", 1024): "7198", ("1.0", "0.40", 1024): "16443", ("2.0", "0.80", 1024): "673",
    ("0.5", "0.15", 32): "10", ("1.0", "0.30", 1024): "40412", ("2.0", "0.60", 1024): "1737",
    ("4.0", "1.20", 1024): "6", ("0.5", "0.10", 32): "30", ("0.5", "0.10", 1024): "972656",
    ("1.0", "0.10", 32): "20", ("1.0", "0.10", 1024): "620584", ("2.0", "0.20", 1024): "29356",
}  # fmt: skip
ROUNDED_TWICE: dict[Key, str] = {("4.0", "1.60", 1024): "2.12772"}
CELLS = compare()


def key(cell: Cell) -> Key:
    return (*cell.printed.budget, cell.printed.k)


def test_every_printed_number_follows_from_the_papers_calibration() -> None:
    """Also without `classify`: the number is within half of its last place, or explained."""
    for cell in CELLS:
        text = cell.printed.text
        shown, value, last_place = (
            Decimal(text),
            Decimal(cell.paper),
            Decimal(1).scaleb(-places(text)),
        )
        if key(cell) in TRUNCATED:
            assert (text, cell.verdict) == (TRUNCATED[key(cell)], Verdict.TRUNCATED)
            assert shown + Decimal("0.5") < value < shown + 1
        elif key(cell) in ROUNDED_TWICE:
            assert (text, cell.verdict) == (ROUNDED_TWICE[key(cell)], Verdict.DOUBLE_ROUNDING)
            assert Decimal(f"{value:.6f}") == shown + last_place / 2
        else:
            assert abs(shown - value) < last_place / 2, cell
            assert cell.verdict is Verdict.EQUAL, cell
    whole = [cell for cell in CELLS if places(cell.printed.text) == 0]
    assert len(whole) == 25
    assert all(cell.printed.text == str(math.floor(cell.paper)) for cell in whole)


def test_the_exact_calibration_differs_for_l_grr_with_more_than_two_values_alone() -> None:
    """There it has the variance of one-time GRR at eps_1."""
    for cell in CELLS:
        k, budget = cell.printed.k, cell.printed.budget
        improved = cell.printed.protocol == "L-GRR" and k != 2
        assert cell.ratio > 1.9 if improved else cell.ratio == 1, cell
        if k is not None and budget.eps_1 is not None:
            c = math.exp(float(budget.eps_1))
            expected = (c + k - 2) / (N * (c - 1) ** 2)
            assert cell.exact == pytest.approx(expected, rel=1e-12)


def test_two_labels_are_misprints_and_do_not_give_their_rows() -> None:
    wrong = {cell.printed.label: cell.printed.budget for cell in CELLS}
    wrong = {label: budget for label, budget in wrong.items() if label != budget}
    assert wrong == {
        Budget("1.0", "0.60"): Budget("2.0", "0.60"),
        Budget("2.0", "1.20"): Budget("4.0", "1.20"),
    }
    for label, budget in wrong.items():
        row = [p for p in VARIANCES if (p.label, p.budget) == (label, budget)]
        verdicts = {p.column: classify(p.text, variances(p.protocol, p.k, label)[0]) for p in row}
        unexplained = [column for column, v in verdicts.items() if v is Verdict.DIFFERS]
        assert unexplained == ["L-GRR k=32", "L-GRR k=1024", "L-SOUE", "L-OUE"]


@pytest.mark.parametrize(
    ("text", "value", "verdict"),
    [
        ("0.001103", 0.00110282, Verdict.EQUAL),
        ("0.001103", 0.0011035001, Verdict.DIFFERS),
        ("0.001102", 0.00110282, Verdict.DIFFERS),  # decimals are never truncated
        ("0.00110", 0.00110282, Verdict.EQUAL),
        ("118", 117.6, Verdict.EQUAL),
        ("117", 117.6, Verdict.TRUNCATED),
        ("116", 117.6, Verdict.DIFFERS),
        ("118", 117.4, Verdict.DIFFERS),
        ("2.12772", 2.127725123, Verdict.DOUBLE_ROUNDING),
        ("2.12772", 2.127725501, Verdict.DIFFERS),  # six decimals: 2.127726
        ("2.12774", 2.127734999, Verdict.DOUBLE_ROUNDING),  # a tie at six decimals goes to even
        ("2.127725", 2.127725501, Verdict.DIFFERS),  # nothing was rounded before six decimals
    ],
)
def test_classify(text: str, value: float, verdict: Verdict) -> None:
    assert classify(text, value) is verdict


# --- the command ------------------------------------------------------------------------------

SUMMARY = """
- Longitudinal: 167 of 168 cells have the printed digits (15 truncated), 1 rounded twice, 0 differ
- One-time: 20 of 20 cells have the printed digits, 0 differ
- L-GRR k=32: the paper's calibration makes the variance 1.92 to 130 times the exact one
- L-GRR k=1024: the paper's calibration makes the variance 252 to 126,980 times the exact one
"""


def invoke(*arguments: str, paper: Printed = Printed()) -> Result:  # noqa: B008 - it is frozen
    return CliRunner().invoke(cli.main, ["variance", *arguments], obj=paper)


def test_the_command_prints_every_number_and_ends_with_the_counts(tmp_path: Path) -> None:
    """From any directory."""
    command = [sys.executable, str(ROOT / "scripts/reproduce_paper.py"), "variance"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(SUMMARY)
    words = done.stdout.split()
    assert all(words.count(cell.printed.text) >= 1 for cell in CELLS)
    assert "| 2.0 (printed 1.0) |  0.60 |" in done.stdout
    assert "|   26706 |  26706.640424 |       truncated |" in done.stdout
    assert "| 2.12772 |      2.127725 | double rounding |" in done.stdout


def test_json_is_one_object_with_every_cell() -> None:
    report = json.loads(invoke("--json").stdout)
    assert (report["n"], report["reproduced"], len(report["cells"])) == (10_000, True, 168 + 20)
    c = math.exp(1.2)
    exact = (c + 1022) / (10_000 * (c - 1) ** 2)
    wanted = ("Longitudinal", "4.0", "1.20", 1024)
    [cell] = [
        cell
        for cell in report["cells"]
        if (cell["table"], cell["eps_inf"], cell["eps_1"], cell["k"]) == wanted
    ]
    assert (cell["printed_budget"], cell["protocol"]) == (["2.0", "1.20"], "L-GRR")
    assert (cell["printed"], cell["computed"], cell["verdict"]) == ("6", "7", "truncated")
    assert cell["paper"] == pytest.approx(6.565839952757371, rel=1e-15)
    assert cell["exact"] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_number_that_cannot_be_explained_is_exit_status_1(form: list[str]) -> None:
    wrong = (replace(VARIANCES[0], text="0.001104"), *VARIANCES[1:])
    done = invoke(*form, paper=Printed(variances=wrong))
    assert done.exit_code == 1
    assert "differs" in done.output
    if form == ["--json"]:
        assert json.loads(done.stdout)["reproduced"] is False
    else:
        assert "166 of 168 cells have the printed digits" in done.output
