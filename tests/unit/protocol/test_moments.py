"""Variance and skewness of an estimate are exact: checked by summing over all that can happen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest

from protocol_spec import Calibration, ParameterError, as_drawn, calibrate, calibrate_once
from protocol_spec.estimation import (
    Channel,
    Estimate,
    Weights,
    effective_devices,
    estimate,
    estimate_levels,
    estimate_pooled,
    estimate_window,
)
from protocol_spec.mechanisms import Hashed, Nested

K = 3
CHANNELS: list[Channel] = [
    *(as_drawn(calibrate(p, k=K, eps_inf=2.0, eps_1=0.6)) for p in ("L-GRR", "L-OSUE", "L-OUE")),
    Hashed.calibrate(k=K, eps_inf=2.0, eps_1=0.6),
    calibrate_once("GRR", k=K, epsilon=1.5),
]
channels = pytest.mark.parametrize("c", CHANNELS, ids=["L-GRR", "L-OSUE", "L-OUE", "hashed", "GRR"])

REPORTS, DEVICES = (1, 2, 3), (2, 1, 1)  # four devices: two sent one report, one two, one three
PER_DEVICE = (1, 1, 2, 3)

Law = list[tuple[float, float]]  # (chance, value)


def answers(c: Channel, holds: bool, m: int) -> Law:
    """A device's debiased mean of m reports about one value."""
    p1, q1, p2, q2 = map(float, c.exact)
    kept, gap = p1 if holds else q1, (p1 - q1) * (p2 - q2)
    qs = q1 * p2 + (1 - q1) * q2
    return [
        (
            math.comb(m, s)
            * (kept * p2**s * (1 - p2) ** (m - s) + (1 - kept) * q2**s * (1 - q2) ** (m - s)),
            (s / m - qs) / gap,
        )
        for s in range(m + 1)
    ]


def weights_of(weights: Weights) -> list[float]:
    each = [1.0] * 4 if weights == "equal" else [float(m) for m in PER_DEVICE]
    return [w / sum(each) for w in each]


def law(c: Channel, held: tuple[int, ...], w: list[float]) -> Law:
    """Of the estimate, given who holds the value."""
    parts = [answers(c, bool(x), m) for x, m in zip(held, PER_DEVICE)]
    return [
        (math.prod(p for p, _ in outcome), math.fsum(a * z for a, (_, z) in zip(w, outcome)))
        for outcome in product(*parts)
    ]


def cumulants(parts: list[tuple[float, Law]]) -> tuple[float, float, float]:
    """Mean, variance and third cumulant of a mixture."""
    flat = [(chance * p, z) for chance, part in parts for p, z in part]
    mean = math.fsum(p * z for p, z in flat)
    variance, third = (math.fsum(p * (z - mean) ** i for p, z in flat) for i in (2, 3))
    return mean, variance, third


def large_fleet(f: float) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Who holds the value, of devices drawn from a large fleet."""
    for held in product((0, 1), repeat=4):
        yield math.prod(f if x else 1 - f for x in held), held


def finite_fleet(n: int, holders: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Who holds the value, of the first four of n shuffled devices."""
    for chosen in combinations(range(n), holders):
        yield 1 / math.comb(n, holders), tuple(int(i in chosen) for i in range(4))


def pooled(c: Channel, weights: Weights, fleet: int | None = None) -> Estimate:
    return estimate_pooled(
        np.zeros((3, K), np.int64), REPORTS, DEVICES, c, weights=weights, fleet=fleet
    )


def check(estimated: Estimate, f: float, wanted: tuple[float, float, float]) -> None:
    mean, variance, third = wanted
    moments, at = estimated.moments, np.array([f])
    assert math.isclose(mean, f, abs_tol=1e-12)
    assert math.isclose(moments.variance(at)[0], variance, rel_tol=1e-10)
    scale = variance**1.5
    assert math.isclose(moments.skewness(at)[0], third / scale, rel_tol=1e-9, abs_tol=1e-11)


@pytest.mark.parametrize("weights", ["equal", "reports"])
@pytest.mark.parametrize("f", [0.0, 0.3, 1.0])
@channels
def test_of_devices_from_a_large_fleet(c: Channel, f: float, weights: Weights) -> None:
    w = weights_of(weights)
    parts = [(chance, law(c, held, w)) for chance, held in large_fleet(f)]
    check(pooled(c, weights), f, cumulants(parts))


@pytest.mark.parametrize("weights", ["equal", "reports"])
@pytest.mark.parametrize(("fleet", "holders"), [(4, 1), (4, 2), (5, 2), (7, 3), (7, 0)])
@channels
def test_of_devices_from_a_finite_fleet(
    c: Channel, fleet: int, holders: int, weights: Weights
) -> None:
    """Also when all of it reported: unequal weights leave sampling error, equal ones none."""
    w = weights_of(weights)
    parts = [(chance, law(c, held, w)) for chance, held in finite_fleet(fleet, holders)]
    estimated = pooled(c, weights, fleet)
    check(estimated, holders / fleet, cumulants(parts))
    if fleet == 4:
        assert (estimated.dilution < 1e-30) == (weights == "equal")


@channels
def test_without_sampling_it_is_what_is_left_when_the_holders_are_known(c: Channel) -> None:
    f, w = 0.3, weights_of("reports")
    known = [(chance, cumulants([(1.0, law(c, held, w))])) for chance, held in large_fleet(f)]
    variance, third = (math.fsum(p * each[i] for p, each in known) for i in (1, 2))
    moments = pooled(c, "reports").moments.without_sampling()
    at = np.array([f])
    assert math.isclose(moments.variance(at)[0], variance, rel_tol=1e-10)
    assert math.isclose(moments.skewness(at)[0], third / variance**1.5, rel_tol=1e-9)


def test_one_round_is_binomial() -> None:
    c = as_drawn(calibrate("L-OSUE", k=K, eps_inf=2.0, eps_1=0.6))
    f, n = np.array([0.0, 0.2, 1.0]), 40
    moments = estimate([1, 2, 3], n, c).moments
    gamma = c.qs + f * c.gap
    np.testing.assert_allclose(moments.variance(f), gamma * (1 - gamma) / n / c.gap**2, rtol=1e-12)
    skewness = (1 - 2 * gamma) / np.sqrt(n * gamma * (1 - gamma))
    np.testing.assert_allclose(moments.skewness(f), skewness, rtol=1e-9, atol=1e-14)


def test_effective_devices() -> None:
    """Four devices that reported daily for a year outweigh 196 that reported once."""
    assert math.isclose(effective_devices([365, 1], [4, 196]), 1656**2 / (4 * 365**2 + 196))
    assert effective_devices([7], [200]) == 200.0
    assert effective_devices([], []) == 0.0
    c = as_drawn(calibrate("L-GRR", k=5, eps_inf=2.0, eps_1=0.6))
    pool = estimate_pooled([9] * 5, [365, 1], [4, 196], c, weights="reports")
    assert math.isclose(pool.n_eff, effective_devices([365, 1], [4, 196]))
    assert math.isclose(pool.n_eff, 1 / pool.dilution)
    whole = estimate_pooled([9] * 5, [365, 1], [4, 196], c, weights="reports", fleet=200)
    assert math.isclose(whole.n_eff, pool.n_eff), "a finite fleet is not more devices"


@pytest.mark.parametrize(("reports", "devices"), [([0], [1]), ([1, 2], [3]), ([1], [-1])])
def test_participation_that_cannot_be(reports: list[int], devices: list[int]) -> None:
    with pytest.raises(ParameterError, match="reports"):
        effective_devices(reports, devices)


def test_a_window_is_one_round_of_all_its_answers() -> None:
    c = calibrate_once("GRR", k=K, epsilon=2.0)
    window = estimate_window([[10, 5, 5], [20, 8, 2]], [20, 30], c)
    whole = estimate([30, 13, 7], 50, c)
    np.testing.assert_array_equal(window.raw, whole.raw)
    assert window.moments == whole.moments


def test_a_device_may_be_in_two_rounds_of_a_window() -> None:
    c, table = calibrate_once("GRR", k=K, epsilon=2.0), [[10, 5, 5], [20, 8, 2]]
    window = estimate_window(table, [20, 30], c, each=3)
    assert window.dilution == 2 / 50, "there are only two rounds to be in"
    assert window.n_eff == 25
    assert window.v0 == estimate([30, 13, 7], 50, c).v0


@pytest.mark.parametrize("protocol", ["GRR", "OUE"])
def test_levels_weigh_by_their_precision(protocol: str) -> None:
    levels = Nested.calibrate(protocol, k=K, schedule=[0.5, 1.0, 2.0]).as_drawn().levels
    n = [30, 0, 20]
    got = estimate_levels([[12, 9, 9], [0, 0, 0], [15, 3, 2]], n, levels)
    first, last = (estimate(row, 30 if i == 0 else 20, levels[i]) for i, row in _rows())
    total = 1 / first.v0 + 1 / last.v0
    share = 1 / first.v0 / total
    np.testing.assert_allclose(got.raw, share * first.raw + (1 - share) * last.raw)
    assert math.isclose(got.v0, 1 / total)
    assert math.isclose(got.v1, share**2 * first.v1 + (1 - share) ** 2 * last.v1)
    assert math.isclose(got.dilution, share**2 / 30 + (1 - share) ** 2 / 20)
    third = share**3 * first.moments.third0 + (1 - share) ** 3 * last.moments.third0
    assert math.isclose(got.moments.third0, third)


def _rows() -> list[tuple[int, list[int]]]:
    return [(0, [12, 9, 9]), (2, [15, 3, 2])]


def test_one_level_is_one_round() -> None:
    c: Calibration = calibrate_once("OUE", k=K, epsilon=2.0)
    levels, alone = estimate_levels([[5, 4, 3]], [9], [c]), estimate([5, 4, 3], 9, c)
    np.testing.assert_array_equal(levels.raw, alone.raw)
    assert levels.moments == alone.moments


@pytest.mark.parametrize(("counts", "n"), [([[1, 1, 1]], [2, 3]), ([[0, 0, 0]], [0])])
def test_levels_that_cannot_be(counts: list[list[int]], n: list[int]) -> None:
    c = calibrate_once("OUE", k=K, epsilon=2.0)
    with pytest.raises(ParameterError, match="n ="):
        estimate_levels(counts, n, [c])


@pytest.mark.parametrize(("n", "each", "field"), [([5], 1, "n"), ([5, 5], 0, "each")])
def test_windows_that_cannot_be(n: list[int], each: int, field: str) -> None:
    c = calibrate_once("OUE", k=K, epsilon=2.0)
    with pytest.raises(ParameterError) as caught:
        estimate_window([[1, 1, 1], [1, 1, 1]], n, c, each=each)
    assert caught.value.field == field
