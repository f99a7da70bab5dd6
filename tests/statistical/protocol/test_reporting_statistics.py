"""The other mechanisms, from what devices send to frequencies: bias, variance, coverage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pytest

from protocol_spec import as_drawn, thresholds
from protocol_spec.estimation import (
    Array,
    Estimate,
    estimate,
    estimate_levels,
    estimate_pooled,
    estimate_window,
)
from protocol_spec.mechanisms import Hashed, Nested, Once, code
from tests.support.protocol.simulation import (
    Counts,
    Frequencies,
    holders,
    one_round,
    respond,
    steep,
    uniform,
    zipf,
)
from tests.support.protocol.statistics import LIMIT, binomial_z, mean_z

Bits = npt.NDArray[np.uint8]
DIGEST = bytes(range(32))


def check(e: Estimate, truth: Frequencies, seed: int) -> None:
    """Runs are rows of raw: mean, variance about the fleet, and all intervals at once."""
    runs = e.raw.shape[0]
    variance = e.moments.variance(truth)
    for value, f in enumerate(truth):
        errors = e.raw[:, value] - f
        z = mean_z(float(errors.mean()), 0.0, float(variance[value]), runs)
        assert abs(z) < LIMIT, f"bias of value {value}: z = {z:.2f} with seed {seed}"
        squares = errors**2
        z = mean_z(float(squares.mean()), float(variance[value]), float(squares.var()), runs)
        assert abs(z) < LIMIT, f"variance of value {value}: z = {z:.2f} with seed {seed}"
    low, high = e.interval(simultaneous=True)
    inside = ((low <= truth) & (truth <= high)).all(axis=1)
    z = binomial_z(int(inside.sum()), runs, 0.95)
    assert z > -3.0, f"coverage {inside.mean():.3f}: z = {z:.2f} with seed {seed}"


# --- one round for life -------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "epsilon"), [(5, 2.0), (16, 1.0)])
def test_a_window_of_rounds_while_values_change(k: int, epsilon: float) -> None:
    """4000 devices, 40 rounds: about 100 answer each. The window's truth is that of its answers."""
    once, seed, runs = Once.calibrate(k=k, epsilon=epsilon, rounds=40), k, 2000
    c, rng = as_drawn(once.calibration), np.random.default_rng(seed)
    answers = rng.multinomial(4000, [1 / 40] * 40)[:7]
    days = [(1 - r / 7) * zipf(k) + r / 7 * uniform(k) for r in range(7)]
    counts = np.array([one_round(rng, c, holders(rng, n, f, runs)) for n, f in zip(answers, days)])
    first = estimate_window(counts[:, 0], answers, c)
    together = estimate(counts.sum(axis=0), int(answers.sum()), c)
    np.testing.assert_array_equal(first.raw, together.raw[0])
    check(together, np.average(days, axis=0, weights=answers), seed)


# --- two cells ------------------------------------------------------------------------------------


def codes(devices: int, k: int, run: int) -> Bits:
    """The real code of every device of a run, one row of bits each."""
    packed = b"".join(code(DIGEST, f"{run}-{i}", k) for i in range(devices))
    table = np.frombuffer(packed, dtype=np.uint8).reshape(devices, -1)
    return np.unpackbits(table, axis=1)[:, :k]


def hashed_runs(
    hashed: Hashed, devices: int, m: int, f: Frequencies, runs: int, seed: int
) -> Iterator[Counts]:
    """Support of m reports of devices with static values, each run with other devices."""
    rng = np.random.default_rng(seed)
    p1, p2 = (np.uint64(keep + (2**64 - keep) // 2) for keep, _ in thresholds(hashed.cell))
    for run in range(runs):
        table = codes(devices, hashed.k, run)
        cell = table[np.arange(devices), rng.choice(hashed.k, devices, p=f)]
        memo = np.where(_words(rng, devices) < p1, cell, 1 - cell)
        counts = np.zeros(hashed.k, dtype=np.int64)
        for _ in range(m):
            sent = np.where(_words(rng, devices) < p2, memo, 1 - memo)
            counts += (table == sent[:, None]).sum(axis=0)
        yield counts


def _words(rng: np.random.Generator, n: int) -> npt.NDArray[np.uint64]:
    return rng.integers(0, 1 << 64, n, dtype=np.uint64)


@pytest.mark.parametrize("m", [1, 5])
def test_two_cells_with_the_codes_of_real_names(m: int) -> None:
    hashed, devices, seed = Hashed.calibrate(k=12, eps_inf=4.0, eps_1=2.0), 200, 10 + m
    counts = list(hashed_runs(hashed, devices, m, steep(12), 400, seed))
    drawn = hashed.as_drawn()
    e = [estimate_pooled(row, [m], [devices], drawn, weights="reports") for row in counts]
    check(replace(e[0], raw=np.array([each.raw for each in e])), steep(12), seed)


def test_codes_are_fair_coins() -> None:
    table = np.concatenate([codes(200, 16, run) for run in range(20)])
    for value in range(16):
        assert abs(binomial_z(int(table[:, value].sum()), len(table), 0.5)) < LIMIT
        same = int((table[:, value] == table[:, value - 1]).sum())
        assert abs(binomial_z(same, len(table), 0.5)) < LIMIT


# --- nested --------------------------------------------------------------------------------------

SCHEDULE = (0.6, 1.1, 1.6, 2.0)


@pytest.mark.parametrize(("protocol", "k"), [("GRR", 5), ("OUE", 16)])
def test_a_round_with_devices_at_every_level(protocol: str, k: int) -> None:
    levels = Nested.calibrate(protocol, k=k, schedule=SCHEDULE).as_drawn().levels
    seed, runs, n = k, 2000, [400, 100, 0, 300]
    rng = np.random.default_rng(seed)
    counts = np.stack(
        [one_round(rng, c, holders(rng, size, zipf(k), runs)) for c, size in zip(levels, n)], axis=1
    )
    e = [estimate_levels(table, n, levels) for table in counts]
    check(replace(e[0], raw=np.array([each.raw for each in e])), zipf(k), seed)


@pytest.mark.parametrize(("protocol", "k"), [("GRR", 5), ("OUE", 8)])
def test_an_earlier_report_adds_nothing_to_a_later_one(protocol: str, k: int) -> None:
    """Cov(earlier, later) = Var(later): the best weight of the earlier round is 0."""
    nested = Nested.calibrate(protocol, k=k, schedule=SCHEDULE)
    seed, runs, n = 50 + k, 4000, 1000
    rng = np.random.default_rng(seed)
    held = holders(rng, n, uniform(k), runs)
    total, steps = np.full((runs, 1), n), nested.steps(Decimal)
    raw: list[Array] = []
    above = held
    for level in range(len(SCHEDULE), 0, -1):
        size, (p, q) = nested.levels[level - 1].size, map(float, steps[level - 1])
        if size:  # of one value: kept, or any value
            p, q = p + (1 - p) / k, (1 - p) / k
        above = respond(rng, size, above, p, q, total)
        raw.insert(0, estimate(above, n, nested.levels[level - 1]).raw - held / n)
    for earlier in range(len(SCHEDULE) - 1):
        for later in range(earlier + 1, len(SCHEDULE)):
            product = raw[later][:, 0] * (raw[earlier][:, 0] - raw[later][:, 0])
            z = mean_z(float(product.mean()), 0.0, float(product.var()), runs)
            assert abs(z) < LIMIT, f"levels {earlier}, {later}: z = {z:.2f} with seed {seed}"
