"""Runs on paper: what is written can be read, and two runs are told apart only if they differ."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from collector.results.tables import COLUMNS
from simulation.collected import TRUTH_COLUMNS, Simulated
from simulation.depths.reports import as_reports
from simulation.depths.statistics import as_statistics
from simulation.errors import SimulationError
from simulation.model.behaviour import by_value
from simulation.records import Run, compare, write
from tests.support.protocol.statistics import LIMIT
from tests.support.simulation.campaigns import FUEL, both, fleet


def run_of(made: Simulated) -> Run:
    return Run({"depth": "test"}, list(made.rows()))


def test_the_columns_are_the_collector_s_and_a_few_more() -> None:
    assert (*COLUMNS, "truth", "z") == TRUTH_COLUMNS
    row = next(as_reports(fleet(both())).rows())
    assert tuple(row) == TRUTH_COLUMNS


def test_the_three_formats_say_the_same() -> None:
    table = list(as_reports(fleet(both(), rounds=1)).rows())
    assert json.loads(write(table, "json")) == table
    assert [json.loads(line) for line in write(table, "ndjson").splitlines()] == table
    read = list(csv.DictReader(io.StringIO(write(table, "csv"))))
    assert [float(row["raw"]) for row in read] == [row["raw"] for row in table]
    assert {row["withheld"] for row in read} == {"false"}


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_z_scores_are_standard_scores(dropout: float) -> None:
    """Over many seeds each has mean 0 and variance 1: of a round, and of all rounds pooled."""
    little_noise = both(attributes=FUEL, eps_inf=6.0, eps_1=5.0)  # so that who is heard matters
    made, runs = fleet(little_noise, 500, rounds=3, dropout=dropout), 300
    found = []
    for seed in range(runs):
        counted = as_statistics(made.manifest, made.truth, made.behaviour, rounds=3, seed=seed)
        found.append([row["z"] for row in counted.rows()])
    scores = np.array(found)
    assert scores.shape[1] == 4 * (1 + 3)
    assert np.abs(scores.mean(axis=0)).max() < LIMIT / np.sqrt(runs), f"seeds 0 to {runs}"
    spread = np.abs(scores.var(axis=0) - 1.0).max()
    assert spread < LIMIT * np.sqrt(2.0 / runs), f"seeds 0 to {runs}"


def test_a_withheld_histogram_has_no_score() -> None:
    made = fleet(both(), 8, rounds=1, dropout=1.0)
    rows = list(as_reports(made).rows())
    assert {row["z"] for row in rows} == {None}
    assert {row["withheld"] for row in rows} == {True}


def test_a_run_is_kept_and_read_back(tmp_path: Path) -> None:
    made = run_of(as_reports(fleet(both())))
    made.save(tmp_path / "deep" / "run")
    assert Run.load(tmp_path / "deep" / "run") == made


def test_a_directory_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="does not hold a run"):
        Run.load(tmp_path)


def test_two_runs_of_one_thing_agree() -> None:
    made = fleet(both(), 4_000, dropout=0.1)
    counted = as_statistics(made.manifest, made.truth, made.behaviour, rounds=2, seed=1)
    pairs = compare(run_of(as_reports(made)), run_of(counted))
    assert [(p.attribute, p.round) for p in pairs] == [
        (name, number) for name in ("fuel", "hour") for number in (None, 0, 1)
    ]
    assert all(pair.agree for pair in pairs), "seed 1"


def test_two_runs_that_differ_do_not() -> None:
    campaign = both(attributes=FUEL)
    rates = by_value(campaign, ["wood=0.8"])
    fair = run_of(as_reports(fleet(campaign, 40_000)))
    biased = run_of(as_reports(fleet(campaign, 40_000, dropout_by_value=rates)))
    assert not any(pair.agree for pair in compare(fair, biased))
    assert all(pair.agree for pair in compare(fair, fair))


def test_runs_of_other_questions_cannot_be_compared() -> None:
    left = run_of(as_reports(fleet(both(attributes=FUEL))))
    renamed = both(attributes=FUEL.replace("fuel", "heat"))
    with pytest.raises(SimulationError, match="no histogram in common"):
        compare(left, run_of(as_reports(fleet(renamed))))
