"""The paper's accuracy gains: the authors' experiment, the gains with their noise, the verdict on a
half table, and the commands that print, draw and write them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from statistics import geometric_mean, mean
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

import allomfree_sim
from paper import cli
from paper.cli import Printed
from paper.gains import (
    ARMS,
    HALVES,
    Errors,
    Half,
    Measured,
    average_errors,
    clip_and_renormalise,
    compare,
    estimates,
    experiments,
    group_sizes,
    mean_squared_errors,
    measure,
    reproduced,
)
from protocol_spec.programs.cli import install_command
from simulation.population import NAMES, Dataset, Marginal, load
from tests.support.documents import differences
from tests.support.harness import ROOT

SEED = 20_220_102
HALF = HALVES[0]
NURSERY = tuple(half for half in HALVES if half.data_set == "nursery")
DOCS = ROOT / "docs"
REFERENCES = {"L-SUE", "L-OUE", "L-SUE unprocessed", "L-OUE unprocessed"}
SVG = "{http://www.w3.org/2000/svg}"


def budgets(**errors: list[float]) -> list[Errors]:
    """At every budget each arm has errors 1, 3 in two runs, references 3, 1, except those given."""
    names = {"L_SUE": "L-SUE", "L_OUE": "L-OUE", "projected": "exact + projection"}
    given = {names.get(name, name): np.array(values) for name, values in errors.items()}
    usual = {name: [3.0, 1.0] if name in REFERENCES else [1.0, 3.0] for name in ARMS}
    every = {name: np.array(errors) for name, errors in usual.items()} | given
    return [every] * len(HALF.budgets)


def with_gains(half: Half, text: str) -> Half:
    return replace(half, printed=dict.fromkeys(half.printed, (text, text)))


# --- what was printed ----------------------------------------------------------------------------


def test_the_printed_tables_are_complete_and_their_means_are_those_of_the_columns() -> None:
    """Each of nine numbers was rounded to two decimals on its own."""
    assert [(half.data_set, half.ratio) for half in HALVES] == [
        (name, ratio) for ratio in ("0.3", "0.6") for name in NAMES
    ]
    for half in HALVES:
        assert half.budgets == ["0.5", "1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]
        for column in (0, 1):
            shown = mean(Decimal(half.printed[name][column]) for name in half.budgets)
            assert abs(shown - Decimal(half.printed["mean"][column])) <= Decimal("0.01"), half


# --- the authors' experiment: exact on small cases, and right in the mean ------------------------

TINY = Dataset(
    "tiny", "Tiny", "", 7,
    (Marginal("a", ("x", "y", "z"), (4, 3, 0)), Marginal("b", ("p", "q"), (5, 2))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([0.5, 0.25, 0.25], [0.5, 0.25, 0.25]),
        ([0.75, -0.5, 0.75], [0.5, 0.0, 0.5]),
        ([1.5, 0.5, -1.0], [0.75, 0.25, 0.0]),
        ([0.125, 0.125, 0.0], [0.5, 0.5, 0.0]),
        ([-0.5, -0.25, 0.0], [0.0, 0.0, 0.0]),  # nothing positive: all 0, as in the authors' code
    ],
)
def test_clip_and_renormalise(raw: list[float], expected: list[float]) -> None:
    assert clip_and_renormalise(np.array([raw, raw])).tolist() == [expected, expected]


def test_groups_are_as_equal_as_can_be() -> None:
    assert [group_sizes(6, 3), group_sizes(11, 4)] == [[2, 2, 2], [3, 3, 3, 2]]


def test_without_noise_the_error_is_that_of_the_groups() -> None:
    """With given groups and reports of the truth MSE_avg can be computed by hand."""
    held = [np.array([[2, 2, 0], [4, 0, 0]]), np.array([[1, 2], [3, 0]])]
    errors = average_errors(
        TINY, held, lambda group: dict.fromkeys(ARMS, group / group.sum(-1)[:, None])
    )
    first = ((1 / 2 - 4 / 7) ** 2 + (1 / 2 - 3 / 7) ** 2) / 3 + (2 * (1 / 3 - 5 / 7) ** 2) / 2
    second = ((1 - 4 / 7) ** 2 + (3 / 7) ** 2) / 3 + (2 * (1 - 5 / 7) ** 2) / 2
    for name in ARMS:
        assert errors[name] == pytest.approx([first / 2, second / 2], rel=1e-12)


@pytest.mark.parametrize("protocol", ["L-SUE", "L-OUE", "ALLOMFREE"])
@pytest.mark.parametrize(("eps_inf", "eps_1"), [(0.5, 0.15), (2.0, 1.2), (4.0, 2.4)])
def test_the_mean_error_is_the_theoretical_variance(
    protocol: str, eps_inf: float, eps_1: float
) -> None:
    """The unprocessed estimates' MSE_avg: privacy noise and drawing without replacement."""
    data, runs = load("adult"), 400
    errors = mean_squared_errors(np.random.default_rng(SEED), data, eps_inf, eps_1, runs)
    measured, expected = errors[f"{protocol} unprocessed"], 0.0
    d = len(data.attributes)
    for attribute, size in zip(data.attributes, group_sizes(data.n, d), strict=True):
        c = ARMS[protocol].calibrate(attribute.k, eps_inf, eps_1)
        f = np.array(attribute.counts) / data.n
        noise = f * c.device_variance(True) + (1 - f) * c.device_variance(False)
        drawing = f * (1 - f) * (data.n - size) / (data.n - 1)
        expected += float((noise + drawing).mean()) / size / d
    z = (measured.mean() - expected) / (measured.std(ddof=1) / runs**0.5)
    assert abs(z) < 4, f"z = {z:.2f} with seed {SEED}"


def test_arms_with_the_same_probabilities_share_one_draw() -> None:
    found = estimates(np.random.default_rng(SEED), np.array([[50, 30, 20] * 10]), 1.0, 0.3)
    assert found["exact"] is found["exact + projection"]
    assert found["ALLOMFREE"] is found["L-OSUE"]  # k = 30: neither calibration takes L-GRR
    assert found["exact"] is found["L-OSUE"]
    assert found["L-SUE"] is not found["L-OUE"]


def test_the_same_seed_gives_the_same_errors_and_another_seed_others() -> None:
    once, again, other = (
        [x["exact"].tolist() for x in experiments(HALF, runs=3, seed=seed)]
        for seed in (SEED, SEED, SEED + 1)
    )
    assert once == again != other


# --- gains, their noise and the verdict ----------------------------------------------------------


def test_a_gain_and_its_deviation_by_hand() -> None:
    """Means 3 and 4, ratio 3/4; 2 - 3/4 * 6 and 4 - 3/4 * 2 are -2.5 and 2.5. z counts the noise of
    both experiments."""
    measured = measure(budgets(ALLOMFREE=[2.0, 4.0], L_SUE=[6.0, 2.0])[0], "ALLOMFREE", "L-SUE")
    assert measured.gain == pytest.approx(25)
    assert measured.sd == pytest.approx(100 * math.sqrt(12.5) / 4 / 10)
    assert measured.runs == 2
    assert Measured(10.0, 2.0, runs=100).z("14.00") == pytest.approx(4 / (2 * math.sqrt(2)))
    assert Measured(10.0, 2.0, runs=10**12).z("6.00") == pytest.approx(-2)


def test_the_deviation_is_that_of_experiments_of_100_runs() -> None:
    blocks = 40
    rng = np.random.default_rng(SEED)
    whole = mean_squared_errors(rng, load("nursery"), 2.0, 1.2, 100 * blocks)
    parts = [{arm: runs[i::blocks] for arm, runs in whole.items()} for i in range(blocks)]
    seen = np.std([measure(part, "ALLOMFREE", "L-OUE").gain for part in parts], ddof=1)
    z = (seen / measure(whole, "ALLOMFREE", "L-OUE").sd - 1) * math.sqrt(2 * (blocks - 1))
    assert abs(z) < 4, f"z = {z:.2f} with seed {SEED}"


def test_the_mean_of_a_column_has_the_noise_of_a_mean() -> None:
    comparison = compare(HALF, budgets(ALLOMFREE=[1.0, 2.0]))
    cell, mean = comparison.cells[1], comparison.means[1]
    assert (mean.printed, mean.over) == ("35.88", "L-OUE")
    assert mean.ours == pytest.approx(25)
    assert mean.sd == pytest.approx(cell.sd / math.sqrt(8))


def test_improvements_are_relative_to_the_papers_allomfree_on_a_geometric_mean() -> None:
    """ALLOMFREE's mean error is 2; exact halves it, the projection halves it again."""
    some = budgets(exact=[0.5, 1.5], projected=[0.25, 0.75])
    comparison = compare(HALF, some)
    assert (comparison.exact, comparison.both) == pytest.approx((0.5, 0.25))
    assert (comparison.cells[0].exact, comparison.cells[0].both) == pytest.approx((50, 75))
    mixed = [*budgets(projected=[0.125, 0.375])[:1], *budgets()[1:]]
    assert compare(HALF, mixed).both == pytest.approx(geometric_mean([0.125] + 7 * [1.0]))


def test_agreement_is_judged_by_the_root_mean_square_of_z() -> None:
    """Every cell at the same distance: that distance is the root mean square."""
    runs = budgets(ALLOMFREE=[1.0, 2.0], projected=[0.5, 1.5])
    cell = compare(HALF, runs).cells[0]
    for distance, agrees in [(1.4, True), (-1.4, True), (1.6, False)]:
        text = str(cell.ours + distance * cell.sd * math.sqrt(1 + 100 / 2))
        comparison = compare(with_gains(HALF, text), runs)
        assert comparison.rms_z == pytest.approx(abs(distance))
        assert (comparison.agrees, reproduced([comparison])) == (agrees, agrees)
    worse = budgets(ALLOMFREE=[1.0, 2.0], projected=[1.0, 2.0])
    same = compare(with_gains(HALF, "25"), worse)
    assert (same.agrees, same.improved, reproduced([same])) == (True, False, False)


# --- the commands --------------------------------------------------------------------------------


def invoke(*arguments: str, halves: Sequence[Half] = NURSERY) -> Result:
    """With the smallest data set alone, so that a command takes a second, unless more is asked."""
    return CliRunner().invoke(cli.main, arguments, obj=Printed(halves=halves))


def test_gains_are_printed_with_every_number_and_the_verdict() -> None:
    done = invoke("gains", "--runs", "100", "--seed", "7")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert "- 2 of 2 half tables agree with the paper's (rms z at most 1.5)" in lines
    for half in NURSERY:
        for eps_inf, (over_sue, over_oue) in half.printed.items():
            [line] = [x.split() for x in lines if x.split()[1:4] == [eps_inf, "|", over_sue]]
            assert line[6] == over_oue
    assert done.stderr.splitlines() == [
        "1 of 2: nursery, eps_1 = 0.3 eps_inf, 100 runs",
        "2 of 2: nursery, eps_1 = 0.6 eps_inf, 100 runs",
    ]
    report = json.loads(invoke("gains", "--runs", "100", "--seed", "7", "--json").stdout)
    assert (report["runs"], report["seed"], report["reproduced"]) == (100, 7, True)
    for half in report["halves"]:
        assert half["rms_z"] == pytest.approx(mean(c["z"] ** 2 for c in half["cells"]) ** 0.5)
    assert [each["printed"] for each in report["halves"][0]["means"]] == ["23.73", "35.88"]


def test_a_half_table_that_does_not_agree_is_exit_status_1() -> None:
    halves = (NURSERY[0], with_gains(NURSERY[1], "90.00"))
    done = invoke("gains", "--runs", "100", "--seed", "7", halves=halves)
    assert done.exit_code == 1
    assert "1 of 2 half tables agree" in done.stdout


@pytest.mark.slow
def test_every_half_table_agrees_with_the_paper_and_is_improved_upon() -> None:
    """With a fifth of the document's runs, and another seed."""
    done = invoke("gains", "--runs", "100", "--seed", "2022", "--json", halves=HALVES)
    report = json.loads(done.stdout)
    assert len(report["halves"]) == 8
    for half in report["halves"]:
        assert half["rms_z"] <= 1.5, half["data_set"]
        assert half["rms_z_text_only"] > 1.5, half["data_set"]
        assert half["relative_error"]["both"] < 1, half["data_set"]
    assert (done.exit_code, report["reproduced"]) == (0, True)


@pytest.mark.slow
def test_figures_are_the_same_each_time_and_name_every_curve_in_text(tmp_path: Path) -> None:
    names = ["paper-variance.svg", "paper-nursery.svg"]
    once, again = tmp_path / "once", tmp_path / "again"
    for directory in (once, again):
        done = invoke("figures", "--runs", "3", "--output", str(directory))
        assert done.exit_code == 0
        assert done.stdout.split() == [str(directory / name) for name in names]
    for name in names:
        assert (once / name).read_bytes() == (again / name).read_bytes()
    tree = ElementTree.parse(once / "paper-nursery.svg")  # noqa: S314 - written just now
    texts = {text.text for text in tree.iter(f"{SVG}text")}
    assert {"L-OUE", "L-SUE", "L-SOUE", "L-OSUE", "ALLOMFREE (paper)"} < texts
    assert {"ALLOMFREE (exact + projection)", "MSE_avg", "eps_inf"} < texts
    assert {"eps_1 = 0.3 eps_inf", "eps_1 = 0.6 eps_inf"} < texts
    assert "Nursery (n = 12,960, d = 9), mean of 3 runs" in texts


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


@pytest.mark.slow
def test_the_page_in_the_documentation_is_what_the_command_writes(tmp_path: Path) -> None:
    done = invoke("all", "--output", str(tmp_path), halves=HALVES)
    assert done.exit_code == 0
    assert done.stdout.count("\nwrote ") == 6
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.name for path in written} == {"reproduction.md"} | {
        f"paper-{name.replace('_', '-')}.svg" for name in ("variance", *NAMES)
    }
    for path in written:
        kept, made = ((top / path).read_text(encoding="utf-8") for top in (DOCS, tmp_path))
        assert differences(kept, made) == [] if path.suffix == ".svg" else kept == made, path
        assert str(tmp_path) not in made


def test_a_checkouts_own_page_is_not_written_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = (DOCS / "reproduction.md").stat().st_mtime_ns
    done = invoke("all", "--runs", "2", halves=NURSERY)
    assert "wrote reproduction/reproduction.md" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["reproduction"]
    assert (DOCS / "reproduction.md").stat().st_mtime_ns == before


def test_a_number_of_runs_without_a_deviation_is_refused() -> None:
    assert invoke("gains", "--runs", "1").exit_code == 2
