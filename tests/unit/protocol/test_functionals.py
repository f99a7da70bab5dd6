"""Differences and other weighted sums: their error is exact, found by summing over all reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import Calibration, ParameterError, as_drawn, calibrate
from protocol_spec.estimation import (
    Array,
    Estimate,
    contrast,
    covariance,
    critical_value,
    difference,
    estimate,
    estimate_pooled,
    plausible,
    smallest_difference,
)

K = 3
PROTOCOLS = ("L-GRR", "L-OSUE", "L-SUE")
CALIBRATIONS = [as_drawn(calibrate(p, k=K, eps_inf=2.0, eps_1=0.6)) for p in PROTOCOLS]
protocols = pytest.mark.parametrize("c", CALIBRATIONS, ids=PROTOCOLS)

WEIGHTS = (0.5, -1.0, 4.0)
Support = tuple[int, ...]


def responses(c: Calibration, given_: Support, p: float, q: float) -> list[tuple[float, Support]]:
    """Every answer to an answer, with its chance."""
    if not c.unary:
        index = given_.index(1)
        return [
            (p if i == index else (1 - p) / (K - 1), tuple(int(i == j) for j in range(K)))
            for i in range(K)
        ]
    return [
        (math.prod((p if g else q) if bit else 1 - (p if g else q) for g, bit in zip(given_, b)), b)
        for b in product((0, 1), repeat=K)
    ]


def device(c: Calibration, value: int, m: int) -> Iterator[tuple[float, Array]]:
    """Every debiased mean of m reports of a device with that value."""
    true = tuple(int(i == value) for i in range(K))
    for chance, memo in responses(c, true, c.p1, c.q1):
        for reports in product(responses(c, memo, c.p2, c.q2), repeat=m):
            support = np.mean([bits for _, bits in reports], axis=0)
            yield chance * math.prod(p for p, _ in reports), (support - c.qs) / c.gap


def shifted_sum(weights: tuple[float, ...], raw: Array) -> float:
    mean = sum(weights) / K
    return mean + math.fsum((w - mean) * r for w, r in zip(weights, raw))


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("value", range(K))
@protocols
def test_one_device_is_unbiased_and_its_variance_exact(c: Calibration, value: int, m: int) -> None:
    outcomes = [(chance, shifted_sum(WEIGHTS, raw)) for chance, raw in device(c, value, m)]
    mean = math.fsum(p * theta for p, theta in outcomes)
    variance = math.fsum(p * (theta - WEIGHTS[value]) ** 2 for p, theta in outcomes)
    estimated = estimate_pooled(np.zeros((1, K), np.int64), [m], [1], c)
    got = contrast(replace(estimated, raw=np.eye(K)[value]), WEIGHTS)
    assert math.isclose(mean, WEIGHTS[value])
    assert math.isclose(got.privacy_variance, variance, rel_tol=1e-10)
    assert abs(got.sampling_variance) < 1e-12, "one device of a known value"
    assert got.value == pytest.approx(WEIGHTS[value])


@protocols
def test_devices_add_up_with_their_weights_squared(c: Calibration) -> None:
    reports, devices, f = [1, 4, 9], [50, 20, 5], np.array([0.2, 0.3, 0.5])
    whole = estimate_pooled([1, 1, 1], reports, devices, c, weights="reports")
    total = sum(m * n for m, n in zip(reports, devices))
    parts = [estimate_pooled([[1, 1, 1]], [m], [1], c) for m in reports]
    variances = [contrast(replace(part, raw=f), WEIGHTS) for part in parts]
    squares = [n * (m / total) ** 2 for m, n in zip(reports, devices)]
    got = contrast(replace(whole, raw=f), WEIGHTS)
    privacy = math.fsum(s * v.privacy_variance for s, v in zip(squares, variances))
    assert math.isclose(got.privacy_variance, privacy)
    spread = float(f @ np.square(WEIGHTS) - (f @ np.array(WEIGHTS)) ** 2)
    assert math.isclose(got.sampling_variance, sum(squares) * spread)


@protocols
def test_a_bar_by_itself_is_the_shifted_one(c: Calibration) -> None:
    """Its variance is that of the raw bar for L-GRR, and less for unary protocols."""
    e = estimate([400, 350, 250], 1000, c)
    one = contrast(e, [1.0, 0.0, 0.0])
    assert one.value == pytest.approx(e.shifted[0])
    raw = e.moments.without_sampling().variance(plausible(e))[0]
    if c.unary:
        assert one.privacy_variance < raw
    else:
        assert one.privacy_variance == pytest.approx(raw)


@protocols
def test_adding_a_constant_to_the_weights_adds_it_to_the_value(c: Calibration) -> None:
    e = estimate([400, 350, 250], 1000, c)
    one, other = contrast(e, WEIGHTS), contrast(e, [w + 7.0 for w in WEIGHTS])
    assert other.value == pytest.approx(one.value + 7.0)
    assert other.privacy_variance == pytest.approx(one.privacy_variance)
    assert other.sampling_variance == pytest.approx(one.sampling_variance)


@protocols
def test_covariance_is_bilinear(c: Calibration) -> None:
    e = estimate([400, 350, 250], 1000, c)
    a, b = np.array([1.0, 0.0, 2.0]), np.array([0.0, 3.0, 1.0])
    both = contrast(e, a + b)
    for part, name in enumerate(("privacy_variance", "sampling_variance")):
        apart = covariance(e, a, a)[part] + covariance(e, b, b)[part]
        assert getattr(both, name) == pytest.approx(apart + 2 * covariance(e, a, b)[part])
    assert covariance(e, a, b) == pytest.approx(covariance(e, b, a))


@protocols
def test_a_difference(c: Calibration) -> None:
    e = estimate([38_000, 35_000, 36_000], 100_000, c)
    gap, back = difference(e, 0, 2), difference(e, 2, 0)
    assert gap.value == pytest.approx(e.raw[0] - e.raw[2])
    assert back.value == -gap.value
    f, known = plausible(e), e.moments
    privacy = 2 * known.base + known.base_slope * (f[0] + f[2])
    assert gap.privacy_variance == pytest.approx(privacy)
    sampling = known.dilution * (f[0] + f[2] - (f[0] - f[2]) ** 2)
    assert gap.sampling_variance == pytest.approx(sampling)
    assert gap.half_width() == pytest.approx(critical_value(0.95) * math.sqrt(privacy + sampling))
    assert gap.half_width(sampling=False) == pytest.approx(critical_value(0.95) * privacy**0.5)
    low, high = gap.interval(comparisons=3)
    assert high - low == pytest.approx(2 * gap.half_width(comparisons=3))


def test_an_interval_stays_within_what_is_possible() -> None:
    e = estimate([100, 0, 0], 100, CALIBRATIONS[0])
    gap = difference(e, 0, 1)
    assert gap.value > 1
    low, high = gap.interval()
    assert high == 1.0
    assert low == pytest.approx(1.0 - gap.half_width())


def brute_force(e: Estimate, sampling: bool) -> float:
    pairs = combinations(range(e.raw.size), 2)
    return max(difference(e, u, v).half_width(sampling=sampling) for u, v in pairs)


@given(
    st.lists(st.integers(0, 2000), min_size=2, max_size=9),
    st.sampled_from(["L-GRR", "L-OSUE", "L-OUE", "L-SOUE"]),
    st.booleans(),
)
def test_the_smallest_difference_is_that_of_the_worst_pair(
    counts: list[int], protocol: str, sampling: bool
) -> None:
    k = len(counts)
    c = as_drawn(calibrate(protocol, k=k, eps_inf=4.0, eps_1=2.0))
    e = estimate(counts, 2000, c)
    got = smallest_difference(e, sampling=sampling)
    assert got.named == pytest.approx(brute_force(e, sampling))
    ratio = critical_value(0.95, k * (k - 1) // 2) / critical_value(0.95)
    assert got.any_pair == pytest.approx(got.named * ratio)


def test_it_is_wider_than_the_bars_by_the_root_of_two_or_so() -> None:
    """Two equal bars of two values: one is 1 minus the other, so twice as wide."""
    c = as_drawn(calibrate("L-GRR", k=2, eps_inf=2.0, eps_1=0.6))
    e = estimate([2500, 2500], 5000, c)
    bar = critical_value(0.95) * e.standard_error[0]
    assert smallest_difference(e).named == pytest.approx(2 * bar)


def test_all_estimates_below_zero_are_taken_as_equal_bars() -> None:
    c = as_drawn(calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6))
    e = estimate([0, 0, 0, 0], 100, c)
    np.testing.assert_array_equal(plausible(e), 0.25)
    assert math.isfinite(difference(e, 0, 1).half_width())


def test_many_values_do_not_take_the_square_of_their_number() -> None:
    c = as_drawn(calibrate("L-OSUE", k=50_000, eps_inf=2.0, eps_1=0.6))
    e = estimate(np.full(50_000, 300), 1000, c)
    assert smallest_difference(e).named > 0


@pytest.mark.parametrize("weights", [[1.0, 2.0], [[1.0, 2.0, 3.0]], [1.0, 2.0, math.inf], []])
def test_weights_that_do_not_fit(weights: list[float]) -> None:
    with pytest.raises(ParameterError, match="weights"):
        contrast(estimate([4, 3, 2], 10, CALIBRATIONS[0]), weights)


@pytest.mark.parametrize(("u", "v", "field"), [(3, 0, "u"), (0, -1, "v"), (1, 1, "v")])
def test_values_that_are_not_there(u: int, v: int, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        difference(estimate([4, 3, 2], 10, CALIBRATIONS[0]), u, v)
    assert caught.value.field == field


def test_one_result_at_a_time() -> None:
    many = estimate([[4, 3, 2], [1, 2, 3]], 10, CALIBRATIONS[0])
    with pytest.raises(ParameterError, match="one result"):
        contrast(many, [1.0, 0.0, 0.0])
