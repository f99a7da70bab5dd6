"""Bias, variance and coverage over thousands of simulated campaigns, judged by z-scores.

Campaigns are simulated by sufficient statistics. A row is a campaign: protocol, k, eps_inf, eps_1,
n, distribution, rounds; its seed is printed with every failure. Where simpler formulas are wrong, a
control shows that the same simulation detects it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from protocol_spec import Calibration, as_drawn, calibrate
from protocol_spec.estimation import (
    Array,
    Estimate,
    Weights,
    cdf,
    critical_value,
    difference,
    effective_devices,
    estimate,
    estimate_pooled,
    mean,
    midpoints,
    quantile,
    score_interval,
    smallest_difference,
)
from tests.support.protocol.simulation import (
    Counts,
    Frequencies,
    dominant,
    holders,
    one_round,
    point,
    rounds,
    steep,
    unequal_rounds,
    uniform,
    zipf,
)
from tests.support.protocol.statistics import LIMIT, binomial_z, mean_z

RUNS = 8_000
LOWEST = -3.0  # for coverage that may be above the level

Verdicts = npt.NDArray[np.bool_]
Groups = tuple[tuple[int, int], ...]  # (reports each, devices)


class Row(NamedTuple):
    seed: int
    protocol: str
    k: int
    eps_inf: float
    eps_1: float
    n: int
    distribution: Callable[[int], Frequencies]
    rounds: int

    def __str__(self) -> str:
        return f"{self.protocol}-k{self.k}-{self.distribution.__name__}-T{self.rounds}"

    @property
    def calibration(self) -> Calibration:
        nominal = calibrate(self.protocol, k=self.k, eps_inf=self.eps_inf, eps_1=self.eps_1)
        return as_drawn(nominal)

    @property
    def truth(self) -> Frequencies:
        return self.distribution(self.k)

    def simulate(self) -> tuple[Array, Estimate, Estimate]:
        """The devices' own frequencies in each run; the pooled estimates of all runs, and those of
        as many devices as there are reports."""
        rng = np.random.default_rng(self.seed)
        held = holders(rng, self.n, self.truth, RUNS)
        counts = rounds(rng, self.calibration, held, self.rounds)
        if self.rounds == 1:
            counts = one_round(rng, self.calibration, held)
        naive = estimate(counts, self.n * self.rounds, self.calibration)
        first = estimate_pooled(counts[:1], [self.rounds], [self.n], self.calibration)
        np.testing.assert_allclose(naive.raw[0], first.raw, rtol=1e-9)
        return held / self.n, replace(first, raw=naive.raw), naive

    def check(self, z: float, what: object = "", lowest: float = -LIMIT) -> None:
        assert lowest < z < LIMIT, f"{what}: z = {z:.2f} with seed {self.seed}"


ROWS = [
    Row(seed, *row)
    for seed, row in enumerate(
        (
            ("L-GRR", 2, 1.0, 0.3, 2000, zipf, 1),
            ("L-GRR", 5, 2.0, 0.6, 20_000, uniform, 1),
            ("L-GRR", 5, 4.0, 2.4, 500, point, 1),
            ("L-GRR", 16, 4.0, 2.4, 5000, zipf, 5),
            ("L-OUE", 8, 2.0, 0.6, 2000, zipf, 1),
            ("L-OUE", 8, 4.0, 1.2, 2000, uniform, 10),
            ("L-SUE", 8, 2.0, 0.6, 2000, zipf, 1),
            ("L-SUE", 4, 1.0, 0.5, 3000, uniform, 5),
            ("L-OSUE", 8, 2.0, 0.6, 2000, zipf, 1),
            ("L-OSUE", 32, 4.0, 2.4, 1000, zipf, 1),
            ("L-OSUE", 8, 2.0, 0.6, 5000, uniform, 20),
            ("L-OSUE", 6, 1.0, 0.6, 1000, point, 5),
            ("L-SOUE", 8, 2.0, 0.6, 2000, zipf, 1),
            ("L-SOUE", 3, 4.0, 2.0, 1000, uniform, 3),
        )
    )
]
rows = pytest.mark.parametrize("row", ROWS, ids=str)


def spread(e: Estimate, f: float) -> float:
    """Variance about the fleet's frequency."""
    return e.v0 + f * (e.v1 - e.v0) + e.dilution * f * (1 - f)


def variance_z(errors: Array, expected: float) -> float:
    """How far a mean square is from the variance, its own spread taken from the sample."""
    squares = errors**2
    return mean_z(float(squares.mean()), expected, float(squares.var()), errors.size)


def coverage_z(inside: Verdicts, level: float = 0.95) -> float:
    return binomial_z(int(inside.sum()), inside.size, level)


def covers(ends: tuple[Array, Array], truth: Array) -> Verdicts:
    return np.asarray((ends[0] <= truth) & (truth <= ends[1]))


def covers_all(ends: tuple[Array, Array], truth: Array) -> Verdicts:
    """Runs in which no value is missed."""
    return np.asarray(covers(ends, truth).all(axis=1))


def interior(e: Estimate, f: float) -> bool:
    """Whether no estimate comes near 0 or 1, where clipping makes intervals hold more often."""
    return min(f, 1 - f) > 5 * math.sqrt(spread(e, f))


@rows
def test_estimates_are_unbiased_and_have_the_stated_variance(row: Row) -> None:
    """About the fleet, and about the devices that reported."""
    held, e, _ = row.simulate()
    for value, f in enumerate(row.truth):
        raw = e.raw[:, value]
        row.check(mean_z(float(raw.mean()), f, spread(e, f), RUNS), f"bias of {value}")
        row.check(variance_z(raw - f, spread(e, f)), f"variance of {value}")
        without_sampling = e.v0 + f * (e.v1 - e.v0)
        row.check(
            variance_z(raw - held[:, value], without_sampling), f"privacy variance of {value}"
        )


@rows
def test_intervals_hold_as_often_as_they_say(row: Row) -> None:
    """Never significantly less often; where nothing is clipped, not more often either. For all
    values at once that is exact where bits are independent, as in unary protocols."""
    held, e, _ = row.simulate()
    for target, sampling in ((row.truth[None, :], True), (held, False)):
        for level in (0.8, 0.95):
            inside = covers(e.interval(level, sampling=sampling), target)
            for value, f in enumerate(row.truth):
                z = coverage_z(inside[:, value], level)
                row.check(z if interior(e, f) else min(z, 0.0), (level, value, sampling))
        inside = covers_all(e.interval(simultaneous=True, sampling=sampling), target)
        exact = row.calibration.unary and not sampling and all(interior(e, f) for f in row.truth)
        z = coverage_z(inside)
        row.check(z if exact else min(z, 0.0), ("all at once", sampling))


def test_pointwise_intervals_do_not_hold_for_all_values_at_once() -> None:
    """A control: the same judgement detects intervals that are too narrow."""
    held, e, _ = ROWS[5].simulate()
    assert coverage_z(covers_all(e.interval(sampling=False), held)) < -LIMIT


@pytest.mark.parametrize("m", [5, 20, 100])
def test_rounds_of_one_memo_are_not_independent(m: int) -> None:
    """A control: intervals that assume so hold less often, as often as theory says."""
    row = Row(100 + m, "L-OSUE", 8, 2.0, 0.6, 2000, uniform, m)
    held, right, naive = row.simulate()
    inside = covers(naive.interval(sampling=False), held)[:, 0]
    shares = [e.v0 + (e.v1 - e.v0) / row.k for e in (naive, right)]
    theory = math.erf(critical_value(0.95) * math.sqrt(shares[0] / shares[1] / 2))
    row.check(coverage_z(inside, theory))
    assert coverage_z(inside) < -LIMIT


@pytest.mark.parametrize("weights", ["equal", "reports", "blue"])
@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_devices_with_different_numbers_of_reports(protocol: str, weights: Weights) -> None:
    row, runs = Row(200, protocol, 4, 2.0, 0.6, 1500, zipf, 0), 2000
    c, rng, groups = (
        row.calibration,
        np.random.default_rng(row.seed),
        ((1, 800), (3, 500), (10, 200)),
    )
    tables = [rounds(rng, c, holders(rng, size, row.truth, runs), m) for m, size in groups]
    reports, devices = zip(*groups)
    found = [
        estimate_pooled(table, reports, devices, c, weights=weights)
        for table in np.stack(tables, axis=1)
    ]
    raw, e = np.array([each.raw for each in found]), found[0]
    for value, f in enumerate(row.truth):
        row.check(mean_z(float(raw[:, value].mean()), f, spread(e, f), runs), f"bias of {value}")
        row.check(variance_z(raw[:, value] - f, spread(e, f)), f"variance of {value}")


@pytest.mark.parametrize("fleet", [2000, 2500, 10_000])
def test_a_sample_of_a_finite_fleet(fleet: int) -> None:
    """n devices drawn without replacement: sampling error has the factor (N - n) / (N - 1)."""
    row = Row(300 + fleet, "L-OSUE", 4, 4.0, 2.4, 2000, uniform, 1)
    rng = np.random.default_rng(row.seed)
    members = np.full(4, fleet // 4)
    held = np.asarray(rng.multivariate_hypergeometric(members, row.n, size=RUNS), dtype=np.int64)
    e = estimate(one_round(rng, row.calibration, held), row.n, row.calibration, fleet=fleet)
    row.check(variance_z(e.raw[:, 0] - 0.25, spread(e, 0.25)))
    row.check(coverage_z(covers(e.interval(), row.truth)[:, 0]))


# --- few devices, many values, very unequal participation -----------------------------------------


class Simulated(NamedTuple):
    """Many runs of one campaign: `estimate` has a row of raw estimates for each."""

    seed: int
    truth: Frequencies
    held: Counts
    estimate: Estimate

    def check(self, inside: Verdicts | list[bool], *, exact: bool = False) -> None:
        z = coverage_z(np.asarray(inside))
        good = abs(z) < LIMIT if exact else z > LOWEST
        assert good, f"z = {z:.2f} with seed {self.seed}"

    def each(self) -> list[Estimate]:
        return [replace(self.estimate, raw=raw) for raw in self.estimate.raw]


def drawn(k: int, eps_inf: float, eps_1: float) -> Calibration:
    return as_drawn(calibrate("ALLOMFREE", k=k, eps_inf=eps_inf, eps_1=eps_1))


def simulate(
    seed: int, c: Calibration, groups: Groups, f: Frequencies, runs: int, fleet: int | None = None
) -> Simulated:
    reports, devices = zip(*groups)
    held, counts = unequal_rounds(np.random.default_rng(seed), c, groups, f, runs)
    first = estimate_pooled(counts[0], reports, devices, c, weights="reports", fleet=fleet)
    raw = (counts / sum(m * n for m, n in groups) - c.qs) / c.gap
    np.testing.assert_allclose(raw[0], first.raw, rtol=1e-9, atol=1e-12)
    return Simulated(seed, f, held, replace(first, raw=raw))


def equal(n: int) -> Groups:
    return ((1, n),)


def very_unequal(n: int) -> Groups:
    """One device in fifty reported daily for a year, a quarter weekly, the rest once."""
    few, some = max(n // 50, 1), n // 4
    return ((365, few), (52, some), (1, n - few - some))


CASES = list(
    product(
        (5, 24, 100),
        (50, 200, 1000, 5000),
        (equal, very_unequal),
        (steep, dominant),
        ((2.0, 0.6), (4.0, 2.0)),
    )
)
NAMES = ["-".join(str(getattr(part, "__name__", part)) for part in case) for case in CASES]


@pytest.mark.parametrize(("seed", "case"), list(enumerate(CASES, start=1000)), ids=NAMES)
def test_all_values_at_once(
    seed: int,
    case: tuple[
        int, int, Callable[[int], Groups], Callable[[int], Frequencies], tuple[float, float]
    ],
) -> None:
    k, n, participation, distribution, budget = case
    run = simulate(seed, drawn(k, *budget), participation(n), distribution(k), 1000)
    run.check(covers_all(run.estimate.interval(simultaneous=True), run.truth))


def uncorrected(e: Estimate) -> tuple[Array, Array]:
    """A control: the interval that takes the error to be normal."""
    z = critical_value(0.95, e.raw.shape[-1])
    return score_interval(e.raw, e.v0, e.v1, z=z, dilution=e.dilution)


FEW = ((365, 4), (1, 196))  # five devices in effect


@pytest.mark.parametrize(
    ("k", "groups", "distribution", "uncorrected_share"),
    [
        (24, FEW, dominant, 0.225),
        (24, equal(200), steep, 0.92),
        (100, equal(200), steep, 0.93),
        (24, equal(50), steep, 0.85),
        (100, equal(50), steep, 0.88),
    ],
)
def test_skew_is_corrected_in_small_fleets(
    k: int, groups: Groups, distribution: Callable[[int], Frequencies], uncorrected_share: float
) -> None:
    run = simulate(k + len(groups), drawn(k, 4.0, 2.0), groups, distribution(k), 8000)
    run.check(covers_all(run.estimate.interval(simultaneous=True), run.truth))
    old = covers_all(uncorrected(run.estimate), run.truth)
    assert abs(old.mean() - uncorrected_share) < 0.025
    assert coverage_z(old) < -LIMIT
    if groups == FEW:
        assert effective_devices(*zip(*groups)) < 5.2
        assert run.estimate.n_eff < 5.2


def test_the_share_of_exactly_these_devices_by_unequal_weights() -> None:
    """Half reported once, half twenty times: the whole fleet reported, but not equally."""
    groups, f = ((1, 500), (20, 500)), np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    run = simulate(2, drawn(5, 4.0, 2.0), groups, f, 8000, fleet=1000)
    e, truth = run.estimate, run.held / 1000
    run.check(covers(e.interval(), truth)[:, 0], exact=True)
    old = covers(score_interval(e.raw, e.v0, e.v1, z=critical_value(0.95)), truth)[:, 0]
    assert abs(old.mean() - 0.766) < 0.02, "without any sampling error, as equal weights would have"


@pytest.mark.parametrize("k", [5, 24])
def test_about_the_devices_that_reported(k: int) -> None:
    """`sampling=False`, one round: the truth is their own share, which differs from run to run."""
    c, n, rng = drawn(k, 4.0, 2.0), 300, np.random.default_rng(k)
    held = holders(rng, n, steep(k), 4000)
    run = Simulated(k, steep(k), held, estimate(one_round(rng, c, held), n, c))
    ends = run.estimate.interval(simultaneous=True, sampling=False)
    run.check(covers_all(ends, held / n))


# --- differences and numbers ----------------------------------------------------------------------


def test_two_equal_bars() -> None:
    """Their difference is beyond the half-width of one bar in a third of all rounds."""
    run = simulate(3, drawn(2, 2.0, 0.6), equal(5000), uniform(2), 2000)
    gaps = np.abs(run.estimate.raw[:, 0] - run.estimate.raw[:, 1])
    limits = np.array([smallest_difference(each) for each in run.each()])
    for column in (0, 1):
        run.check(gaps <= limits[:, column], exact=True)
    low, high = run.estimate.interval()
    assert abs((gaps > ((high - low) / 2).max(axis=1)).mean() - 0.32) < 0.05


NUMERIC = [  # bins, share of devices without a number, budget, devices, unequal participation
    (6, 0.0, (2.0, 0.6), 5000, False),
    (6, 0.0, (4.0, 2.0), 200, False),
    (16, 0.0, (2.0, 0.6), 5000, False),
    (16, 0.0, (4.0, 2.0), 1000, True),
    (6, 0.0, (4.0, 1.2), 2000, True),
    (16, 0.0, (4.0, 1.2), 500, False),
    (6, 0.2, (4.0, 2.0), 500, False),
    (12, 0.5, (4.0, 2.0), 2000, False),
    (6, 0.05, (2.0, 0.6), 5000, False),
    (12, 0.8, (4.0, 2.0), 5000, False),
    (6, 0.9, (2.0, 0.6), 2000, False),  # hardly anyone, and much noise: everything is possible
]


@pytest.mark.parametrize(("seed", "case"), list(enumerate(NUMERIC, start=2000)), ids=str)
def test_numbers(seed: int, case: tuple[int, float, tuple[float, float], int, bool]) -> None:
    """Difference, mean, distribution function and median, of the devices that gave a number."""
    bins, missing, budget, n, unequal = case
    hump = np.exp(-((np.arange(bins) - 0.4 * bins) ** 2) / (0.08 * bins * bins)) + 0.05
    among = hump / hump.sum()
    f = np.append(among * (1.0 - missing), missing) if missing else among
    groups = ((1, n // 2), (20, n - n // 2)) if unequal else equal(n)
    run = simulate(seed, drawn(f.size, *budget), groups, f, 1500)
    truth = float(f[2] - f[0])
    found = [difference(e, 2, 0).interval() for e in run.each()]
    run.check([low <= truth <= high for low, high in found], exact=not missing)
    functions = [cdf(e, bins) for e in run.each()]
    reached = np.cumsum(among)
    run.check([bool(covers(each.band(), reached[:-1]).all()) for each in functions])
    middle = midpoints(np.linspace(0.0, 1.0, bins + 1).tolist())
    truth = float(among @ middle)
    found = [mean(e, middle).interval() for e in run.each()]
    certain = all(each.is_certain() for each in functions)
    run.check([low <= truth <= high for low, high in found], exact=certain)
    edges = np.arange(bins + 1.0)
    truth = float(np.interp(0.5, np.concatenate(([0.0], reached)), edges))
    medians = np.array([quantile(e, edges.tolist(), 0.5) for e in run.each()], dtype=np.float64)
    run.check(((medians[:, 2] <= truth) & (truth <= medians[:, 3])).tolist())
