"""Campaigns through a real collector, runs made of them, and the commands of `allomfree-sim`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from collector.results.facts import read_truth
from collector.results.tables import COLUMNS
from protocol_spec import Outcome
from simulation.campaigns import (
    TRUTH_COLUMNS,
    Simulated,
    as_reports,
    as_statistics,
    into,
    reading,
    retimed,
)
from simulation.cli import main
from simulation.devices import Fleet
from simulation.population import SimulationError, by_value, populate
from simulation.runs import Run, compare
from tests.support.campaigns import manifest_text
from tests.support.harness import ROOT
from tests.support.simulation import FIRST, FUEL, HOURS, NUMERIC, both, campaign, fleet


def test_devices_hold_the_population_s_values() -> None:
    asked = campaign(attributes=FUEL + NUMERIC)
    population = populate(asked, ["zipf"], 50, 1)
    devices = population.holdings(1)
    for index, (attribute, counts) in enumerate(zip(asked.attributes, population.counts)):
        assert np.bincount(devices[:, index], minlength=attribute.k).tolist() == counts.tolist()
        for place in range(attribute.k):
            assert attribute.index_of(reading(attribute, place)) == place


def test_a_retimed_campaign_asks_the_same_questions() -> None:
    soon = retimed(both(), rounds=3, period_seconds=7, lead_seconds=5)
    assert soon.attributes == both().attributes
    assert (soon.rounds.count, soon.rounds.period) == (3, 7)
    assert soon.campaign != both().campaign


# --- through a real collector --------------------------------------------------------------------


@pytest.fixture
def unruly() -> Fleet:
    """Everything that can go wrong, at once."""
    return fleet(
        both(max_values=2), 1_200, rounds=3, batch=250, dropout=0.2, churn=0.1, changes=0.2,
        late=0.1, duplicates=0.2, dishonest=((1, 9, 3),),
    )  # fmt: skip


def test_a_collector_counts_and_publishes_what_counting_at_once_gives(
    unruly: Fleet, tmp_path: Path
) -> None:
    direct, real = as_reports(unruly), into(tmp_path / "data", unruly)
    for ours, theirs in zip(direct.attributes, real.attributes):
        for name in ("n", "counts", "truth", "participation"):
            assert (getattr(ours, name) == getattr(theirs, name)).all(), name
    assert direct.outcomes == real.outcomes
    assert direct.late == real.late > 0
    assert all(outcomes[Outcome.DUPLICATE] > 0 for outcomes in real.outcomes)
    published, computed = (
        {
            (r.attribute, r.round): (r.n, r.devices, r.rounds, r.counts, r.raw, r.low, r.high_all)
            for r in found.results()
        }
        for found in (real, direct)
    )
    assert published == computed
    truth = read_truth(tmp_path / "data", unruly.manifest.campaign)
    assert truth is not None
    assert truth["fuel"] == real.true_frequencies(0).tolist()
    with pytest.raises(SimulationError, match="already holds reports"):
        into(tmp_path / "data", unruly)  # reports that are there may be real


# --- runs ----------------------------------------------------------------------------------------


def run_of(made: Simulated) -> Run:
    return Run({"depth": "test"}, list(made.rows()))


def test_rows_have_the_collector_s_columns_and_no_score_when_withheld() -> None:
    assert (*COLUMNS, "truth", "z") == TRUTH_COLUMNS
    assert tuple(next(as_reports(fleet(both())).rows())) == TRUTH_COLUMNS
    rows = list(as_reports(fleet(both(), 8, rounds=1, dropout=1.0)).rows())
    assert {(row["z"], row["withheld"]) for row in rows} == {(None, True)}


def test_a_run_is_kept_and_read_back(tmp_path: Path) -> None:
    made = run_of(as_reports(fleet(both())))
    made.save(tmp_path / "deep" / "run")
    assert Run.load(tmp_path / "deep" / "run") == made
    with pytest.raises(SimulationError, match="does not hold a run"):
        Run.load(tmp_path)


def test_runs_agree_when_they_are_of_one_thing_and_only_then() -> None:
    made = fleet(both(), 4_000, dropout=0.1)
    counted = as_statistics(made.manifest, made.truth, made.behaviour, rounds=2, seed=1)
    pairs = compare(run_of(as_reports(made)), run_of(counted))
    assert [(p.attribute, p.round) for p in pairs] == [
        (name, number) for name in ("fuel", "hour") for number in (None, 0, 1)
    ]
    assert all(pair.agree for pair in pairs), "seed 1"
    rates = by_value(campaign(), ["wood=0.8"])
    fair = run_of(as_reports(fleet(campaign(), 40_000)))
    biased = run_of(as_reports(fleet(campaign(), 40_000, dropout_by_value=rates)))
    assert not any(pair.agree for pair in compare(fair, biased))
    other = run_of(as_reports(fleet(campaign(attributes=FUEL.replace("fuel", "heat")))))
    with pytest.raises(SimulationError, match="no histogram in common"):
        compare(fair, other)


# --- commands ------------------------------------------------------------------------------------


@pytest.fixture
def toml(tmp_path: Path) -> str:
    path = tmp_path / "campaign.toml"
    path.write_text(manifest_text(first=FIRST, count=5, attributes=FUEL + HOURS))
    return str(path)


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.parametrize("depth", ["statistics", "reports"])
def test_a_run_is_a_summary_and_its_rows_are_the_same_each_time(depth: str, toml: str) -> None:
    words = (depth, toml, "--devices", "2000", "--rounds", "2", "--population", "zipf:2")
    done = call(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("2,000 devices, zipf:2, 2 rounds (seed 1)")
    assert lines[1].startswith(f"{depth}: 4,000 accepted")
    assert any(
        re.fullmatch(r"  wood +(69|70)\.\d % +\d+\.\d % +\d+\.\d … \d+\.\d", line) for line in lines
    )
    assert "  and 8 rarer values" in lines
    rows = call(*words, "--format", "ndjson")
    assert len([json.loads(line) for line in rows.stdout.splitlines()]) == (4 + 20) * 3
    assert rows.stderr.splitlines()[0] == lines[0]
    assert call(*words, "--format", "ndjson").stdout == rows.stdout


def test_every_behaviour_can_be_asked_for(toml: str, tmp_path: Path) -> None:
    words: tuple[str | Path, ...] = (
        "reports", toml, "--devices", "4000", "--population", "fuel=zipf:1.2", "--population",
        "hour=dirichlet:0.5", "--dropout", "0.1", "--dropout-by-value", "gas=0.5", "--churn",
        "0.1", "--changes", "0.1", "--late", "0.1", "--duplicates", "0.1", "--dishonest", "9:h3",
        "--rounds", "2", "--into", tmp_path / "data", "--output", tmp_path / "x.csv",
        "--store", tmp_path / "run", "--batch", "500",
    )  # fmt: skip
    done = call(*words)
    assert done.exit_code == 0, done.stderr
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {"accepted", "late", "duplicate"} == set(facts["outcomes"])
    assert facts["behaviour"]["dropout_by_value"] == {"0": {"1": 0.5}}
    assert (tmp_path / "data" / "collector.db").exists()
    assert (tmp_path / "x.csv").read_text().startswith("campaign,")
    again = call(*words)  # a run that was kept is not overwritten
    assert (again.exit_code, "already holds a run" in again.stderr) == (2, True)


def test_what_cannot_be_done_is_said_before_it_is_tried(toml: str, tmp_path: Path) -> None:
    words = ("reports", toml, "--devices", "900")
    for option, word in (("--output", str(tmp_path / "x.xls")), ("--dishonest", "901:h3")):
        done = call(*words, option, word)
        assert (done.exit_code, done.stderr.startswith(f"error: {option}")) == (2, True)
    assert not list(tmp_path.glob("x.*"))


def test_no_score_is_shown_where_a_collector_keeps_no_counts(tmp_path: Path) -> None:
    once = tmp_path / "once.toml"
    once.write_text(manifest_text(first=FIRST, count=2, reporting="once", attributes=FUEL))
    words = ("reports", once, "--devices", "4000", "--rounds", "2")
    assert "largest |z|" in call(*words).stdout
    done = call(*words, "--into", tmp_path / "data")
    assert done.exit_code == 0, done.stderr
    assert "intervals hold the truth" in done.stdout
    assert "|z|" not in done.stdout


@pytest.mark.slow
def test_a_figure_is_drawn_and_the_same_each_time(toml: str, tmp_path: Path) -> None:
    pictures = []
    for name in ("a.svg", "b.svg", "c.png"):
        call("statistics", toml, "--devices", "9000", "--figure", tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    for word in (b"devices, L-GRR", b"devices, L-SS", b"truth", b"wood"):
        assert word in pictures[0]
    assert pictures[2].startswith(b"\x89PNG")


def test_two_stored_runs_are_compared(toml: str, tmp_path: Path) -> None:
    common = ("--devices", "20000", "--output", tmp_path / "rows")
    call("statistics", toml, *common, "--store", tmp_path / "a")
    call("reports", toml, *common, "--store", tmp_path / "b")
    call("reports", toml, *common, "--store", tmp_path / "c", "--dropout-by-value", "wood=0.9")
    same = call("compare", tmp_path / "a", tmp_path / "b")
    assert (same.exit_code, "The runs agree" in same.stdout) == (0, True)
    other = call("compare", tmp_path / "a", tmp_path / "c", "--json")
    assert (other.exit_code, json.loads(other.stdout)["agree"]) == (1, False)


def outside(*words: str | Path, place: str = "docs/examples/steady.py") -> str:
    """A program that knows the mechanism of the example, from its own process."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "ALLOMFREE_MECHANISMS": place, "PYTHONPATH": str(ROOT / "scripts")},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def test_a_mechanism_outside_of_the_repository_is_simulated_planned_and_measured(
    toml: str, tmp_path: Path
) -> None:
    steady = tmp_path / "steady.toml"
    text = Path(toml).read_text().replace('reporting = "memoized"', 'reporting = "steady"')
    steady.write_text(text)
    simulator = "scripts/simulate_fleet.py"
    words = (steady, "--devices", "900", "--rounds", "3")
    shown = outside(simulator, "reports", *words, "--into", tmp_path / "data")
    assert re.search(r"fuel: 4 values, \d+ devices, (GRR|SS)", shown)
    assert "use reports" in outside(simulator, "statistics", *words)
    read = outside("-m", "collector", "estimate", "--data-dir", tmp_path / "data")
    assert "3 rounds pooled" in read
    assert "Warning" not in read
    assert re.search(r"\bsteady +±", outside("-m", "collector", "plan", toml, "--devices", "900"))
    name = ("--name", "steady", "--devices", "2000", "--runs", "1")
    assert "error, steady / memoized" in outside("scripts/benchmark.py", "mechanism", *name)
    assert "none of memoized, once" in outside("scripts/benchmark.py", "mechanism", "--name", "x")
    nothing = outside(simulator, "--help", place="nowhere.py")
    assert nothing.startswith("error: ALLOMFREE_MECHANISMS: nowhere.py has no mechanism")
    broken = tmp_path / "broken.py"
    same = "from protocol_spec.mechanisms import Memoized as MECHANISM"
    for text, message in (
        ("x =", "invalid syntax (broken.py, line 1)"),
        ("class MECHANISM:\n    reporting = 'x'", "has no attribute 'rules'"),
        (same, "there is another 'memoized'"),
    ):
        broken.write_text(text)
        assert message in outside(simulator, "--help", place=str(broken))


def test_a_manifest_for_a_data_set_is_ready_to_use(tmp_path: Path) -> None:
    (tmp_path / "nursery.toml").write_text(call("manifest", "nursery").stdout)
    done = call("statistics", tmp_path / "nursery.toml", "--population", "nursery")
    assert "12,960 devices, nursery" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.toml",), "cannot be read"),
        (("--population", "moon"), "'moon' is unknown"),
        (("--rounds", "6"), "the manifest has 5 rounds"),
        (("--dropout", "1.5"), "between 0 and 1"),
        (("--figure", "x.pdf"), ".svg or .png"),
        (("--output", "/nowhere/at/all"), "cannot be written"),
        (("--figure", "/nowhere/at/all.svg"), "cannot be written"),
        (("--drift", "zipf"), "--drift says what changing values become"),
        (("--changes", "0.1", "--drift", "moon"), "--drift 'moon' is unknown"),
    ],
)
def test_a_mistake_is_one_clear_line(toml: str, words: tuple[str, ...], message: str) -> None:
    given = [] if words[0].endswith(".toml") else [toml]
    done = call("statistics", *given, *words, "--devices", "1000")
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    for name, command in main.commands.items():
        assert f"allomfree-sim {name}" in text, name
        for option in command.params:
            if isinstance(option, click.Option):
                assert re.search(rf"{option.opts[0]}\b", text), f"{name} {option.opts[0]}"
