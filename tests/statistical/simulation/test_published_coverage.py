"""Intervals of simulated campaigns, as they are published, hold as often as they say.

Every run draws its devices from a large population, so that what an interval is about is that
population. Units of the verdicts are independent: windows of one round for life, or runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from protocol_spec import Manifest, Result
from simulation.campaigns import Simulated, as_statistics
from simulation.population import Behaviour
from tests.support.protocol.statistics import LIMIT, binomial_z, mean_z
from tests.support.simulation import campaign, question

RUNS, WINDOW = 100, 7
CONFIDENCE = 0.95


def shares(k: int) -> np.ndarray:
    """Few values that many hold, and many that nearly nobody does."""
    weights = 1.0 / np.arange(1, k + 1) ** 1.5
    result: np.ndarray = weights / weights.sum()
    return result


def simulated(made: Manifest, devices: int, rounds: int, seed: int, **rates: float) -> Simulated:
    rng = np.random.default_rng(seed)
    held = rng.multinomial(devices, shares(made.attributes[0].k))
    behaviour = Behaviour(**rates)  # type: ignore[arg-type]
    return as_statistics(made, (held,), behaviour, rounds=rounds, seed=seed)


def windows(found: Simulated) -> Iterator[Result]:
    for first in range(0, found.rounds, WINDOW):
        yield found.results_of(0).window(first, first + WINDOW - 1, Counter())


def assert_they_hold(results: list[Result], true: np.ndarray) -> None:
    """All values at once, and one at a time on average."""
    at_once = one_each = 0.0
    squares = 0.0
    for result in results:
        low, high, low_all, high_all = (
            np.array(x) for x in (result.low, result.high, result.low_all, result.high_all)
        )
        at_once += bool(((low_all <= true) & (true <= high_all)).all())
        share = float(((low <= true) & (true <= high)).mean())
        one_each, squares = one_each + share, squares + share**2
    n = len(results)
    mean = one_each / n
    assert binomial_z(round(at_once), n, CONFIDENCE) > -LIMIT, f"{at_once / n} of {n}"
    assert mean_z(mean, CONFIDENCE, squares / n - mean**2, n) > -LIMIT, f"{mean} of {n}"


@pytest.mark.parametrize(("k", "devices"), [(6, 1_200), (24, 4_000)])
def test_windows_of_one_round_for_life(k: int, devices: int) -> None:
    made = campaign("once", attributes=question(k), eps_inf=3.0, count=28)
    results = [
        result
        for seed in range(RUNS)
        for result in windows(simulated(made, devices, 28, seed, dropout=0.1))
    ]
    assert len(results) == 4 * RUNS
    assert_they_hold(results, shares(k))


@pytest.mark.parametrize(("k", "devices"), [(6, 400), (24, 1_500)])
def test_rounds_of_nested_reports_of_several_levels(k: int, devices: int) -> None:
    """Devices that missed rounds are at lower levels; the last round has several."""
    made = campaign("nested", attributes=question(k), eps_inf=3.0)
    results = []
    for seed in range(3 * RUNS):
        found = simulated(made, devices, 4, 1_000 + seed, dropout=0.4)
        assert (found.attributes[0].n_by_channel[3] > 0).sum() == 4
        results.append(found.results_of(0).round(3, Counter()))
    assert_they_hold(results, shares(k))


@pytest.mark.parametrize("reporting", ["memoized", "once", "nested", "hashed"])
def test_distances_from_the_truth_are_standard_scores(reporting: str) -> None:
    """`z` of the pooled row, about the devices of the fleet: no bias, and errors are neither under-
    nor overstated. The first value alone, so that runs are the units."""
    made = campaign(reporting, attributes=question(5), eps_inf=2.0, count=4)
    runs, scores = 250, []
    for seed in range(runs):
        found = simulated(made, 600, 4, 5_000 + seed, dropout=0.2, churn=0.0)
        row = next(row for row in found.rows() if row["round"] is None)
        scores.append(row["z"])
    assert abs(np.mean(scores)) < LIMIT / math.sqrt(runs)
    assert abs(np.mean(np.square(scores)) - 1.0) < LIMIT * math.sqrt(2.0 / runs)


def test_windows_of_values_that_change() -> None:
    """About what the fleet held on average in the window. Sampling error is stated as if the fleet
    were large, so that the intervals hold at least as often."""
    made = campaign("once", attributes=question(6), eps_inf=3.0, count=28)
    held = 0
    for seed in range(RUNS):
        found = simulated(made, 1_200, 28, 9_000 + seed, changes=0.1)
        for number, result in enumerate(windows(found)):
            truth = found.attributes[0].truth[WINDOW * number : WINDOW * (number + 1)]
            true = truth.sum(axis=0) / truth.sum()
            inside = (np.array(result.low_all) <= true) & (true <= np.array(result.high_all))
            held += bool(inside.all())
    assert binomial_z(held, 4 * RUNS, CONFIDENCE) > -LIMIT
