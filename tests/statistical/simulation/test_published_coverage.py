"""Intervals of simulated campaigns, as they are published, hold as often as they say.

Every run draws its devices from a large population, so that what an interval is about is that
population. Units of the verdicts are independent: windows of one round for life, or runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from collector.records import Campaign, RoundSum, Tally
from collector.results.trends import compare_results, trend_facts
from collector.rounds.results import round_result, window_result
from protocol_spec import Manifest, Mechanism, Result
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


# --- trends and differences -----------------------------------------------------------------------

DAYS = 364


def moved(k: int, by: float) -> np.ndarray:
    """The shares, and how much of the first value's goes to the second."""
    change = np.zeros(k)
    change[:2] = -by, by
    result: np.ndarray = shares(k) + change
    return result


def reports(rng: np.random.Generator, mechanism: Mechanism, held: np.ndarray) -> Tally:
    """One answer of each device, with fresh noise."""
    p1, q1, p2, q2 = map(float, mechanism.channels[0].exact)
    ps, qs, k, n = p1 * p2 + (1 - p1) * q2, q1 * p2 + (1 - q1) * q2, mechanism.k, int(held.sum())
    if mechanism.channels[0].unary:
        return Tally(n, rng.binomial(held, ps) + rng.binomial(n - held, qs))
    table = np.full((k, k), (1 - ps) / (k - 1))
    np.fill_diagonal(table, ps)
    return Tally(n, np.sum([rng.multinomial(h, row) for h, row in zip(held, table)], axis=0))


def assert_as_often(held: int, runs: int, *, exactly: bool = True) -> None:
    z = binomial_z(held, runs, CONFIDENCE)
    assert z > -LIMIT, f"{held} of {runs}"
    assert not exactly or z < LIMIT, f"{held} of {runs}: wider than it needs to be"


@pytest.mark.parametrize(
    ("fit", "course", "k", "n", "wide"),
    [
        ("line", lambda x: x, 6, 200, 14),
        ("line", lambda x: x, 24, 100, 26),
        ("smooth", lambda x: 1 / (1 + np.exp(8 - 16 * x)), 6, 200, 14),
        ("52w", lambda x: 0.5 + 0.5 * np.cos(2 * np.pi * x + 1), 6, 200, 14),
    ],
)
def test_bands_of_fits_over_windows(
    fit: str, course: Callable[[np.ndarray], np.ndarray], k: int, n: int, wide: int
) -> None:
    """The band holds over all the time, the change of the value by itself and among all."""
    made = campaign("once", attributes=question(k), eps_inf=3.0, count=DAYS)
    where, size = Campaign(0, made, made.created, None), 0.1
    days = course((np.arange(DAYS) + 0.5) / DAYS).reshape(-1, wide).mean(axis=1)
    true = shares(k)[0] - size * course(np.linspace(0.0, 1.0, 61))
    change = true[-1] - true[0] if fit != "52w" else size
    rng, band, alone, fits = np.random.default_rng(k + wide), 0, 0, 0
    for _ in range(3 * RUNS):
        results = []
        for i, day in enumerate(days):
            tally = reports(rng, made.mechanisms[0], rng.multinomial(n, moved(k, size * day)))
            rounds = RoundSum(i * wide, (i + 1) * wide - 1, wide, tally)
            results.append(window_result(where, 0, rounds, ([1], [n]), Counter()))
        row = trend_facts(where, 0, results, fit, ["v0"])["trends"][0]
        low, high = (np.array(row["curve"][end]) for end in ("low_all", "high_all"))
        band += bool(((low <= true) & (true <= high)).all())
        part = 30.4375 / DAYS if row["per"] else 1.0  # a month
        alone += bool(row["low"] <= change * part <= row["high"])
        fits += row["fits"]
    assert_as_often(band, 3 * RUNS, exactly=fit == "line")
    assert_as_often(alone, 3 * RUNS, exactly=fit != "52w")
    assert fits >= 3 * RUNS - 3


@pytest.mark.parametrize(("missing", "leaving"), [(0.0, 0.0), (0.2, 0.0), (0.1, 0.1)])
def test_changes_between_rounds_of_the_same_memos(missing: float, leaving: float) -> None:
    """Nothing changes but who reports. Where everybody does, intervals are no wider than the noise
    of the second step asks for; else the fewest devices that can be the same are."""
    made, k, n = campaign("memoized", attributes=question(5), eps_inf=4.0, eps_1=2.0), 5, 500
    where, noise = Campaign(0, made, made.created, None), made.mechanisms[0].channels[0].exact
    p1, p2 = float(noise.p1), float(noise.p2)
    rng, line, pair = np.random.default_rng(int(100 * missing)), 0, 0

    def answer(said: np.ndarray, keep: float) -> np.ndarray:
        other = (said + rng.integers(1, k, said.size)) % k
        result: np.ndarray = np.where(rng.random(said.size) < keep, said, other)
        return result

    for _ in range(2 * RUNS):
        memos, seen, heard = answer(rng.choice(k, n, p=shares(k)), p1), np.zeros(n, bool), 0
        results = []
        for t in range(10):
            here = rng.random(n) >= missing
            counts = np.bincount(answer(memos[here], p2), minlength=k)
            known = heard, int((here & seen).sum())
            tally = Tally(int(here.sum()), counts)
            results.append(round_result(where, t, 0, tally, Counter(), known))
            heard, seen = heard + int((here & ~seen).sum()), seen | here
            new = rng.random(n) < leaving
            seen &= ~new
            memos[new] = answer(rng.choice(k, int(new.sum()), p=shares(k)), p1)
        row = trend_facts(where, 0, results, "line")["trends"][0]
        line += bool(row["low"] <= 0.0 <= row["high"])
        found = compare_results((where, results[9]), (where, results[0]))["differences"][0]
        pair += bool(found["low"] <= 0.0 <= found["high"])
    assert_as_often(line, 2 * RUNS, exactly=not missing)
    assert_as_often(pair, 2 * RUNS, exactly=not missing)


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_differences_of_two_campaigns(reporting: str) -> None:
    made = [
        campaign(reporting, attributes=question(6), eps_inf=4.0, count=3, slug=slug)
        for slug in ("before", "after")
    ]
    rng, alone, together = np.random.default_rng(7), 0, 0
    change = moved(6, 0.1) - shares(6)
    for seed in range(0, 6 * RUNS, 2):
        sides = []
        for i, (manifest, f) in enumerate(zip(made, (shares(6), moved(6, 0.1)))):
            behaviour, held = Behaviour(dropout=0.2), rng.multinomial((150, 600)[i], f)
            found = as_statistics(manifest, (held,), behaviour, rounds=3, seed=seed + i)
            result = found.results_of(0).pooled(Counter())
            assert result is not None
            sides.append((Campaign(i, manifest, manifest.created, None), result))
        rows = compare_results(sides[1], sides[0])["differences"]
        inside = [row["low_all"] <= x <= row["high_all"] for row, x in zip(rows, change)]
        together += all(inside)
        alone += bool(rows[0]["low"] <= change[0] <= rows[0]["high"])
    assert_as_often(together, 3 * RUNS, exactly=False)
    assert_as_often(alone, 3 * RUNS, exactly=False)
