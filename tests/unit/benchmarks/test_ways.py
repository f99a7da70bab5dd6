"""Errors of the ways of reporting: what is compared is what devices would send."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import changing_ways, static_ways
from benchmarks.accuracy import Budget
from benchmarks.changing_ways import DESIGNS
from benchmarks.peer_environment import Peers, peers
from benchmarks.peers import Bench
from benchmarks.ways import Effort, beside_allomfree, nested_over_memoized
from benchmarks.ways_figure import Drawn, draw
from protocol_spec import as_drawn
from protocol_spec.reporting import better_once
from tests.support import benchmark_fakes as fakes
from tests.support.protocol.statistics import LIMIT

BUDGET = Budget(2.0, 0.6)
LITTLE = Effort(peer_campaigns=2, our_runs=20, seeds=(1,), data_sets=("nursery",))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Peers]:
    with peers(fakes.interpreter(tmp_path)) as started:
        yield started


@pytest.mark.parametrize("way", sorted(static_ways.WAYS))
def test_estimates_are_unbiased_and_as_exact_as_stated(way: str) -> None:
    """One round, one value that a known share holds: the mean and the variance over many runs."""
    runs, held = 3_000, np.array([700, 200, 100])
    rng = np.random.default_rng(7)
    raw = static_ways.WAYS[way](rng, 3, np.tile(held, (runs, 1)), BUDGET, 3)[:, 0]
    assert abs(raw.mean() - 0.7) / (raw.std() / math.sqrt(runs)) < LIMIT
    if way == "once":
        channel = as_drawn(better_once(3, BUDGET.eps_inf))
        expected = channel.pooled_variance(1, 1, 0.7) / 1000
        assert abs(raw.var() / expected - 1.0) < LIMIT * math.sqrt(2.0 / runs)


def test_the_table_of_nested_over_memoized_is_judged_at_five_rounds() -> None:
    rows = nested_over_memoized(LITTLE)
    assert len(rows) == 2 * len(static_ways.BUDGETS)
    judged = [row for row in rows if row.limit is not None]
    assert len(judged) == len(static_ways.BUDGETS)
    for row, wanted in zip(judged, static_ways.EXPECTED[5].values()):
        assert row.limit == pytest.approx(1.15 * wanted[0])
        assert row.at_least == pytest.approx(0.85 * wanted[0])


def test_ways_stand_beside_the_peer(driver: Peers, tmp_path: Path) -> None:
    drawn = Drawn()
    rows = beside_allomfree(Bench(driver, tmp_path, 0, 1), LITTLE, drawn)
    assert len(rows) == len(static_ways.BUDGETS) * (len(static_ways.WAYS) + 1)
    assert all(row.value and row.value > 1.0 for row in rows)  # this peer reports the truth
    draw(drawn, tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text()
    assert "nested, 5 rounds" in text
    draw(drawn, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_a_changing_campaign_asks_with_the_bound_it_states(design: changing_ways.Design) -> None:
    asked = changing_ways.manifest(design, BUDGET)
    assert asked.lifetime_epsilon == design.bound(BUDGET)
    assert asked.rounds.count == changing_ways.DAYS
    assert asked.attributes[0].k == changing_ways.K


def test_the_peer_sees_the_values_that_the_devices_held() -> None:
    once = next(design for design in DESIGNS if design.reporting == "once")
    truths = changing_ways.campaign(once, BUDGET, 1).attributes[0].truth
    days = dict(changing_ways.days_of(once, BUDGET, 1, every=91))
    assert list(days) == [45, 136, 227, 318]
    for day, values in days.items():
        assert np.bincount(values, minlength=changing_ways.K).tolist() == truths[day].tolist()


def test_where_nothing_changes_nested_errs_least_of_those_that_report_every_day() -> None:
    found = changing_ways.staying(BUDGET, runs=50)
    for way in ("memoized", "hashed", "once"):
        assert found[way, 1] > found[way, 7] > found[way, 28]
    assert found["nested", 1] > found["nested", 7]  # by then it has told all
    assert found["nested", 7] < found["memoized", 7] < found["hashed", 7]


def test_windows_of_answers_hold_their_truth() -> None:
    once = next(design for design in DESIGNS if design.reporting == "once")
    found = changing_ways.measure(once, Budget(4.0, 2.0), (1,))
    assert found.error[1] > found.error[7] > found.error[28]
    windows = 52 * changing_ways.K  # values of one window are correlated: six times fewer
    assert found.held[7] > 0.95 - LIMIT * math.sqrt(0.95 * 0.05 * changing_ways.K / windows)
