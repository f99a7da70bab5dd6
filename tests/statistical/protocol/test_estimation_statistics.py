"""Bias, variance and coverage over thousands of simulated campaigns, judged by z-scores.

A row is a campaign: protocol, k, eps_inf, eps_1, n, distribution, rounds. The seed is the row's
number and stands in every failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from protocol_spec import Calibration, as_drawn, calibrate
from protocol_spec.estimation import (
    Array,
    Estimate,
    critical_value,
    estimate,
    estimate_pooled,
)
from tests.support.protocol.simulation import (
    Counts,
    Frequencies,
    holders,
    one_round,
    point,
    rounds,
    uniform,
    zipf,
)
from tests.support.protocol.statistics import LIMIT, binomial_z, mean_z

RUNS = 8_000

Verdicts = npt.NDArray[np.bool_]


class Row(NamedTuple):
    seed: int
    protocol: str
    k: int
    eps_inf: float
    eps_1: float
    n: int
    distribution: Callable[[int], Frequencies]
    rounds: int

    @property
    def calibration(self) -> Calibration:
        nominal = calibrate(self.protocol, k=self.k, eps_inf=self.eps_inf, eps_1=self.eps_1)
        return as_drawn(nominal)

    @property
    def truth(self) -> Frequencies:
        return self.distribution(self.k)

    def simulate(self, runs: int = RUNS) -> tuple[Counts, Counts]:
        """(how many held each value, how many reports supported it) in every run."""
        rng = np.random.default_rng(self.seed)
        held = holders(rng, self.n, self.truth, runs)
        if self.rounds == 1:
            return held, one_round(rng, self.calibration, held)
        return held, rounds(rng, self.calibration, held, self.rounds)

    def estimates(self, counts: Counts) -> Estimate:
        """All runs at once: every row has the same n, so the same errors of estimates."""
        return estimate(counts, self.n * self.rounds, self.calibration)

    def pooled(self, counts: Counts) -> tuple[Array, Estimate]:
        """Raw estimates of all runs, and the description of the first, which holds for all."""
        raw = self.estimates(counts).raw
        first = estimate_pooled(counts[:1], [self.rounds], [self.n], self.calibration)
        np.testing.assert_allclose(raw[0], first.raw, rtol=1e-9)
        return raw, first


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


def described(row: Row) -> str:
    return f"{row.protocol}-k{row.k}-{row.distribution.__name__}-T{row.rounds}"


rows = pytest.mark.parametrize("row", ROWS, ids=described)


@rows
def test_unbiased(row: Row) -> None:
    _, counts = row.simulate()
    raw, described_by = row.pooled(counts)
    for value, f in enumerate(row.truth):
        z = mean_z(float(raw[:, value].mean()), f, spread(described_by, f), RUNS)
        assert abs(z) < LIMIT, f"value {value}: z = {z:.2f} with seed {row.seed}"


def spread(e: Estimate, f: float) -> float:
    """Variance about the fleet's frequency."""
    return e.v0 + f * (e.v1 - e.v0) + e.dilution * f * (1 - f)


@rows
def test_variance_about_the_fleet(row: Row) -> None:
    _, counts = row.simulate()
    raw, described_by = row.pooled(counts)
    for value, f in enumerate(row.truth):
        z = variance_z(raw[:, value] - f, spread(described_by, f))
        assert abs(z) < LIMIT, f"value {value}: z = {z:.2f} with seed {row.seed}"


def variance_z(errors: Array, expected: float) -> float:
    """How far a mean square is from the variance, its own spread taken from the sample."""
    squares = errors**2
    return mean_z(float(squares.mean()), expected, float(squares.var()), errors.size)


def interior(e: Estimate, f: float) -> bool:
    """Whether no estimate comes near 0 or 1, where clipping makes intervals safer than asked."""
    return min(f, 1 - f) > 5 * math.sqrt(spread(e, f))


def coverage_z(inside: Verdicts, level: float) -> float:
    return binomial_z(int(inside.sum()), inside.size, level)


def judged(z: float, exact: bool) -> bool:
    """Never significantly below the level; where nothing is clipped, not above it either."""
    return -LIMIT < z < LIMIT if exact else z > -LIMIT


@pytest.mark.parametrize("level", [0.8, 0.95])
@rows
def test_pointwise_coverage(row: Row, level: float) -> None:
    held, counts = row.simulate()
    raw, e = row.pooled(counts)
    for target, sampling in ((row.truth[None, :], True), (held / row.n, False)):
        inside = covered(raw, e, target, level, together=False, sampling=sampling)
        for value in range(row.k):
            z = coverage_z(inside[:, value], level)
            text = f"value {value}, sampling {sampling}: z = {z:.2f} with seed {row.seed}"
            assert judged(z, interior(e, row.truth[value])), text


def covered(
    raw: Array, e: Estimate, target: Array, level: float, *, together: bool, sampling: bool
) -> Verdicts:
    """Whether the interval of each raw estimate of each run holds its target."""
    every = replace(e, raw=raw)
    low, high = every.interval(level, simultaneous=together, sampling=sampling)
    return np.asarray((low <= target) & (target <= high))


def together(inside: Verdicts) -> Verdicts:
    """Runs in which all values are covered."""
    return np.asarray(inside.all(axis=1))


@rows
def test_simultaneous_coverage(row: Row) -> None:
    held, counts = row.simulate()
    raw, e = row.pooled(counts)
    for target, sampling in ((row.truth[None, :], True), (held / row.n, False)):
        inside = covered(raw, e, target, 0.95, together=True, sampling=sampling)
        # Only the bits of unary protocols are independent, which makes Sidak exact.
        exact = row.calibration.unary and not sampling
        exact = exact and all(interior(e, f) for f in row.truth)
        z = coverage_z(together(inside), 0.95)
        assert judged(z, exact), f"sampling {sampling}: z = {z:.2f} with seed {row.seed}"


@pytest.mark.parametrize("m", [5, 20, 100])
def test_rounds_of_one_memo_are_not_independent(m: int) -> None:
    """A control: intervals that take them to be hold less often, as often as theory says."""
    row = Row(100 + m, "L-OSUE", 8, 2.0, 0.6, 2000, uniform, m)
    held, counts = row.simulate()
    raw, right = row.pooled(counts)
    naive = row.estimates(counts)  # as if n m devices had sent one report each
    inside = covered(raw, naive, held / row.n, 0.95, together=False, sampling=False)[:, 0]
    shares = [e.v0 + (e.v1 - e.v0) / row.k for e in (naive, right)]
    theory = math.erf(critical_value(0.95) * math.sqrt(shares[0] / shares[1] / 2))
    assert abs(coverage_z(inside, theory)) < LIMIT
    assert coverage_z(inside, 0.95) < -LIMIT


@pytest.mark.parametrize("weights", ["equal", "reports", "blue"])
@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_unequal_devices(protocol: str, weights: str) -> None:
    """Groups that sent 1, 3 and 10 reports each, all with the same frequencies."""
    groups, seed, k = ((1, 800), (3, 500), (10, 200)), 200, 4
    c = as_drawn(calibrate(protocol, k=k, eps_inf=2.0, eps_1=0.6))
    rng = np.random.default_rng(seed)
    f, runs = zipf(k), 2000
    tables = [rounds(rng, c, holders(rng, size, f, runs), m) for m, size in groups]
    estimated = list(pooled_runs(np.stack(tables, axis=1), groups, c, weights))
    raw = np.array([e.raw for e in estimated])
    for value in range(k):
        z = mean_z(float(raw[:, value].mean()), f[value], spread(estimated[0], f[value]), runs)
        assert abs(z) < LIMIT, f"value {value}: z = {z:.2f} with seed {seed}"
        z = variance_z(raw[:, value] - f[value], spread(estimated[0], f[value]))
        assert abs(z) < LIMIT, f"value {value}: z = {z:.2f} with seed {seed}"


def pooled_runs(
    tables: Counts, groups: tuple[tuple[int, int], ...], c: Calibration, weights: str
) -> Iterator[Estimate]:
    reports, devices = zip(*groups)
    for table in tables:
        yield estimate_pooled(table, reports, devices, c, weights=weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("fleet", [2000, 2500, 10_000])
def test_a_sample_of_a_finite_fleet(fleet: int) -> None:
    """n devices drawn without replacement: sampling error has the factor (N - n) / (N - 1)."""
    row = Row(300 + fleet, "L-OSUE", 4, 4.0, 2.4, 2000, uniform, 1)
    rng = np.random.default_rng(row.seed)
    members = np.full(4, fleet // 4)
    held = np.asarray(rng.multivariate_hypergeometric(members, row.n, size=RUNS), dtype=np.int64)
    counts = one_round(rng, row.calibration, held)
    e = estimate(counts, row.n, row.calibration, fleet=fleet)
    z = variance_z(e.raw[:, 0] - 0.25, spread(e, 0.25))
    assert abs(z) < LIMIT, f"z = {z:.2f} with seed {row.seed}"
    inside = covered(e.raw, e, row.truth, 0.95, together=False, sampling=True)[:, 0]
    z = coverage_z(inside, 0.95)
    assert abs(z) < LIMIT, f"z = {z:.2f} with seed {row.seed}"
