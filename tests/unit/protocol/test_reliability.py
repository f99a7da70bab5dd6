"""What liars and silent devices can do, and when a result is not what honest devices send."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from protocol_spec import ParameterError, as_drawn, calibrate
from protocol_spec.estimation import (
    Channel,
    Estimate,
    estimate,
    lie_shift,
    plausibility,
    post_stratified,
    share_for_shift,
    unevenness,
)
from protocol_spec.mechanisms import Hashed, Nested, better_once
from tests.support.protocol.simulation import holders, one_round, respond, steep
from tests.support.protocol.statistics import LIMIT, binomial_z

K = 6
MEMOIZED = as_drawn(calibrate("ALLOMFREE", k=K, eps_inf=2.0, eps_1=0.6))
HASHED = Hashed.calibrate(k=K, eps_inf=2.0, eps_1=0.6).as_drawn()
ONCE = as_drawn(better_once(K, 2.0))
UNARY = as_drawn(calibrate("L-OSUE", k=9, eps_inf=2.0, eps_1=0.6))


# --- liars ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channel", "points"), [(MEMOIZED, 7.1), (HASHED, 3.4), (ONCE, 1.8)])
def test_what_one_percent_of_the_devices_can_do(channel: Channel, points: float) -> None:
    shift = lie_shift([channel], 0.01)
    assert round(100 * shift, 1) == points
    assert share_for_shift([channel], shift) == pytest.approx(0.01)
    assert lie_shift([channel], 0.01, weight=3.0) == pytest.approx(3 * shift)


def test_liars_choose_the_level_that_moves_most() -> None:
    levels = Nested.calibrate("GRR", k=K, schedule=[0.6, 1.2, 2.0]).as_drawn().levels
    assert lie_shift(levels, 0.01) == lie_shift(levels[:1], 0.01) > lie_shift(levels[1:], 0.01)


def test_lies_that_nobody_can_tell() -> None:
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(ParameterError, match="share"):
            lie_shift([ONCE], share)
    with pytest.raises(ParameterError, match="error"):
        share_for_shift([ONCE], -1.0)


# --- plausibility ---------------------------------------------------------------------------------


def drawn(channel: Channel, n: int, runs: int, seed: int, liars: int = 0) -> Estimate:
    """Honest devices, and liars that support the last value and nothing else."""
    rng, k = np.random.default_rng(seed), channel.k
    p1, q1, p2, q2 = map(float, channel.exact)
    held = holders(rng, n - liars, steep(k), runs)
    ps, qs = p1 * p2 + (1 - p1) * q2, q1 * p2 + (1 - q1) * q2
    total = held.sum(axis=1, keepdims=True)
    counts = respond(rng, channel.size, held, ps, qs, total)
    counts[:, -1] += liars
    return estimate(counts, n, channel)


@pytest.mark.parametrize("n", [60, 5_000])
@pytest.mark.parametrize(
    "channel", [MEMOIZED, UNARY, ONCE, HASHED], ids=["L-GRR", "L-OSUE", "GRR", "hashed"]
)
def test_honest_campaigns_are_seldom_called_implausible(channel: Channel, n: int) -> None:
    """At 5 % for 20 results of a campaign: never more often than that."""
    runs, results, seed = 400, 20, n
    many = drawn(channel, n, runs * results, seed)
    bad = [not plausibility(replace(many, raw=raw), results, 0.05).ok for raw in many.raw]
    alarms = int(np.reshape(bad, (runs, results)).any(axis=1).sum())
    assert binomial_z(alarms, runs, 0.05) < LIMIT, f"{alarms} of {runs} with seed {seed}"


def test_the_sum_has_the_stated_error() -> None:
    """The control of the test above: |z| > 1.96 in one of twenty."""
    many, runs = drawn(UNARY, 5_000, 2_000, 3), 2_000
    z = np.array([plausibility(replace(many, raw=raw)).sum_z for raw in many.raw], dtype=float)
    assert abs(z.mean()) < LIMIT / math.sqrt(runs)
    assert abs(binomial_z(int((np.abs(z) > 1.96).sum()), runs, 0.05)) < LIMIT


@pytest.mark.parametrize(
    ("channel", "sums"), [(UNARY, True), (MEMOIZED, False)], ids=["L-OSUE", "L-GRR"]
)
def test_a_tenth_of_liars_is_noticed(channel: Channel, sums: bool) -> None:
    """By the sum where it is free, by a bar below zero where it is not."""
    n, runs = 100_000, 50
    many = drawn(channel, n, runs, 7, liars=n // 10)
    found = [plausibility(replace(many, raw=raw), 2 * 365) for raw in many.raw]
    assert all(not each.ok and each.sum_is_off == sums for each in found)
    assert all((each.sum_z is None) != sums for each in found)
    shown = found[0]
    assert shown.total == pytest.approx(float(many.raw[0].sum()))
    assert shown.lowest == int(many.raw[0].argmin())


def test_a_rate_that_cannot_be() -> None:
    with pytest.raises(ParameterError, match="false_alarms"):
        plausibility(estimate([10] * K, 60, ONCE), 1, 0.0)


# --- silence --------------------------------------------------------------------------------------


def test_how_far_frequencies_by_reports_and_by_devices_can_be_apart() -> None:
    """Of every way in which five devices can hold a value, the worst."""
    reports, shares = [1, 1, 2, 5, 5], []
    for held in product((0, 1), repeat=5):
        by_reports = sum(m for m, x in zip(reports, held) if x) / sum(reports)
        shares.append(abs(by_reports - sum(held) / 5))
    assert max(shares) == pytest.approx(unevenness([1, 2, 5], [2, 1, 2]))
    assert unevenness([3], [100]) == unevenness([], []) == 0.0


def test_known_totals_undo_a_group_that_answers_less() -> None:
    """Two groups of equal size, of which the second answers a quarter as often."""
    rng, runs = np.random.default_rng(11), 1_000
    shapes, sizes = (steep(K), steep(K)[::-1]), (2_000, 500)
    true = (shapes[0] + shapes[1]) / 2
    parts = []
    for f, n in zip(shapes, sizes):
        parts.append(estimate(one_round(rng, MEMOIZED, holders(rng, n, f, runs)), n, MEMOIZED))
    whole = [
        post_stratified([replace(p, raw=p.raw[i]) for p in parts], [5_000, 5_000])
        for i in range(runs)
    ]
    raw = np.array([each.raw for each in whole])
    z = (raw.mean(axis=0) - true) / (raw.std(axis=0, ddof=1) / math.sqrt(runs))
    assert (np.abs(z) < LIMIT).all(), f"bias, z = {z}"
    ends = [each.interval() for each in whole]
    for value in range(K):
        holds = sum(low[value] <= true[value] <= high[value] for low, high in ends)
        assert binomial_z(holds, runs, 0.95) > -LIMIT, f"value {value}: {holds / runs}"
    assert whole[0].n_eff == pytest.approx(1 / (0.25 / 2_000 + 0.25 / 500))
    for totals in ([1.0], [-1.0, 2.0], [0.0, 0.0]):
        with pytest.raises(ParameterError, match="totals"):
            post_stratified([whole[0], whole[1]], totals)
