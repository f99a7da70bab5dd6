"""The commands that simulate: what they print, what they write, and when they fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

import allomfree_sim
from paper import cli
from paper.cli import Printed
from paper.printed import DATA_SETS, HALVES, GainRow, Half
from protocol_spec.programs.cli import install_command
from simulation.population import NAMES
from tests.support.documents import differences
from tests.support.harness import ROOT

NURSERY = tuple(half for half in HALVES if half.data_set == "nursery")
DOCS = ROOT / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def invoke(*arguments: str, halves: Sequence[Half] = HALVES) -> Result:
    return CliRunner().invoke(cli.main, arguments, obj=Printed(halves=halves))


def nursery(*arguments: str) -> Result:
    """With the smallest data set alone, so that a command takes a second."""
    return invoke(*arguments, halves=NURSERY)


# --- gains ------------------------------------------------------------------------------------


def test_text_fits_a_hundred_columns_and_ends_with_the_verdict() -> None:
    done = nursery("gains", "--runs", "100", "--seed", "7")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert max(map(len, lines)) <= 100
    assert all(line.isascii() and line == line.rstrip() for line in lines)
    assert lines[-3].strip() == "2 of 2 half tables agree with the paper's (rms z at most 1.5)"
    for half in NURSERY:
        for row in half.rows:
            [line] = [x for x in lines if x.split()[:2] == [row.eps_inf, row.gains[0]]]
            assert (len(line.split()), line.split()[7]) == (13, row.gains[1])
    assert done.stderr.splitlines() == [
        "1 of 2: nursery, eps_1 = 0.3 eps_inf, 100 runs",
        "2 of 2: nursery, eps_1 = 0.6 eps_inf, 100 runs",
    ]


def test_json_is_one_object_with_every_cell() -> None:
    done = nursery("gains", "--runs", "100", "--seed", "7", "--json")
    report = json.loads(done.stdout)
    assert (report["runs"], report["seed"], report["reproduced"]) == (100, 7, True)
    assert [half["ratio"] for half in report["halves"]] == [0.3, 0.6]
    for half in report["halves"]:
        assert len(half["cells"]) == 16
        squares = [cell["z"] ** 2 for cell in half["cells"]]
        assert half["rms_z"] == pytest.approx((sum(squares) / 16) ** 0.5)
        assert half["relative_error"]["both"] < 1
    assert [mean["printed"] for mean in report["halves"][0]["means"]] == ["23.73", "35.88"]


def test_a_half_table_that_does_not_agree_is_exit_status_1() -> None:
    rows = tuple(GainRow(row.eps_inf, ("90.00", "90.00")) for row in NURSERY[1].rows)
    wrong = replace(NURSERY[1], rows=rows)
    done = invoke("gains", "--runs", "100", "--seed", "7", halves=(NURSERY[0], wrong))
    assert done.exit_code == 1
    assert "1 of 2 half tables agree" in done.stdout


@pytest.mark.slow
def test_every_half_table_agrees_with_the_paper_and_is_improved_upon() -> None:
    """A tenth of the runs of the document, and another seed."""
    done = invoke("gains", "--runs", "100", "--seed", "2022", "--json")
    report = json.loads(done.stdout)
    assert [(half["data_set"], half["ratio"]) for half in report["halves"]] == [
        (name, ratio) for ratio in (0.3, 0.6) for name in NAMES
    ]
    for half in report["halves"]:
        assert half["rms_z"] <= 1.5, half["data_set"]
        assert half["rms_z_text_only"] > 1.5, half["data_set"]
        assert half["relative_error"]["both"] < 1, half["data_set"]
    assert "test split" in report["halves"][3]["note"]
    assert (done.exit_code, report["reproduced"]) == (0, True)


# --- figures ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_figures_are_the_same_each_time_and_name_every_curve_in_text(tmp_path: Path) -> None:
    names = ["paper-variance.svg", "paper-nursery.svg"]
    once, again = tmp_path / "once", tmp_path / "again"
    for directory in (once, again):
        done = nursery("figures", "--runs", "3", "--output", str(directory))
        assert done.exit_code == 0
        assert done.stdout.split() == [str(directory / name) for name in names]
    for name in names:
        assert (once / name).read_bytes() == (again / name).read_bytes()
    nursery("figures", "--runs", "3", "--seed", "2", "--output", str(tmp_path / "other"))
    mine, other = ((d / names[1]).read_text() for d in (once, tmp_path / "other"))
    assert len(differences(mine, other)) > 10  # as many curves, each at another place
    tree = ElementTree.parse(once / "paper-nursery.svg")  # noqa: S314 - written just now
    texts = {text.text for text in tree.iter(f"{SVG}text")}
    assert {"L-OUE", "L-SUE", "L-SOUE", "L-OSUE", "ALLOMFREE (paper)"} < texts
    assert {"ALLOMFREE (exact + projection)", "MSE_avg", "eps_inf"} < texts
    assert {"eps_1 = 0.3 eps_inf", "eps_1 = 0.6 eps_inf"} < texts
    assert "Nursery (n = 12,960, d = 9), mean of 3 runs" in texts


def test_png_on_request(tmp_path: Path) -> None:
    nursery("figures", "--runs", "3", "--format", "png", "--output", str(tmp_path))
    pictures = sorted(tmp_path.iterdir())
    assert [path.name for path in pictures] == ["paper-nursery.png", "paper-variance.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


@pytest.mark.parametrize("command", ["figures", "all"])
def test_a_missing_library_is_named_and_nothing_is_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "paper.figures", raising=False)
    monkeypatch.delattr("paper.figures", raising=False)
    words = ["allomfree-sim", "reproduce-paper", command, "--output", str(tmp_path / "docs")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        allomfree_sim.main()
    assert ended.value.code == (
        "error: allomfree-sim needs matplotlib, which is not installed; nothing was written. "
        f"Run: {install_command('sim')}"
    )
    assert not (tmp_path / "docs").exists()


# --- all --------------------------------------------------------------------------------------


def test_all_writes_the_page_and_its_pictures(tmp_path: Path) -> None:
    done = nursery("all", "--runs", "100", "--seed", "7", "--output", str(tmp_path))
    page = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert done.exit_code == 0
    assert "`allomfree-sim reproduce-paper all --runs 100 --seed 7`" in page
    assert str(tmp_path) not in page
    for name in ("variance", "nursery"):
        assert f"](pictures/paper-{name}.svg)" in page
        assert (tmp_path / "pictures" / f"paper-{name}.svg").exists()
    assert "Longitudinal: 167 of 168 cells have the printed digits" in done.stdout
    assert done.stdout.count("\nwrote ") == 3


@pytest.mark.slow
def test_the_page_in_the_documentation_is_what_the_command_writes(tmp_path: Path) -> None:
    done = invoke("all", "--output", str(tmp_path))
    assert done.exit_code == 0
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.name for path in written} == {"reproduction.md"} | {
        f"paper-{name.replace('_', '-')}.svg" for name in ("variance", *DATA_SETS)
    }
    for path in written:
        kept, made = ((top / path).read_text(encoding="utf-8") for top in (DOCS, tmp_path))
        assert differences(kept, made) == [] if path.suffix == ".svg" else kept == made, path


@pytest.mark.parametrize("runs", ["1", "0", "many"])
def test_a_number_of_runs_without_a_deviation_is_refused(runs: str) -> None:
    assert invoke("gains", "--runs", runs).exit_code == 2
