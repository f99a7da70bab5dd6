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

from protocol_spec import (
    NOT_KNOWN,
    RESULT_QUANTILES,
    Attribute,
    Calibration,
    ParameterError,
    as_drawn,
    calibrate,
)
from protocol_spec.attributes import bin_labels
from protocol_spec.estimation import (
    Array,
    Estimate,
    binning_bias,
    cdf,
    contrast,
    covariance,
    critical_value,
    difference,
    estimate,
    estimate_pooled,
    mean,
    median,
    midpoints,
    numbers_of,
    plausible,
    quantile,
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
    assert got.pair == pytest.approx(brute_force(e, sampling))
    ratio = critical_value(0.95, k * (k - 1) // 2) / critical_value(0.95)
    assert got.tallest == pytest.approx(got.pair * ratio)


def test_all_estimates_below_zero_are_taken_as_equal_bars() -> None:
    c = as_drawn(calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6))
    e = estimate([0, 0, 0, 0], 100, c)
    np.testing.assert_array_equal(plausible(e), 0.25)
    assert math.isfinite(difference(e, 0, 1).half_width())


def test_many_values_do_not_take_the_square_of_their_number() -> None:
    c = as_drawn(calibrate("L-OSUE", k=50_000, eps_inf=2.0, eps_1=0.6))
    e = estimate(np.full(50_000, 300), 1000, c)
    assert smallest_difference(e).pair > 0


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


# --- Mean, distribution function and quantiles of binned numbers.


EDGES = [0.0, 10.0, 20.0, 40.0, 80.0]
F = np.array([0.1, 0.4, 0.3, 0.2])
INF = math.inf


def estimated(n: int = 100_000, protocol: str = "L-GRR") -> Estimate:
    c = as_drawn(calibrate(protocol, k=4, eps_inf=4.0, eps_1=2.0))
    return replace(estimate([n // 4] * 4, n, c), raw=F)


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_the_distribution_is_a_weighted_sum_at_every_edge(protocol: str) -> None:
    e = replace(estimated(500, protocol), raw=np.array([0.15, 0.35, -0.1, 0.7]))
    got = cdf(e)
    for j in range(3):
        wanted = contrast(e, [1.0 if bin_ <= j else 0.0 for bin_ in range(4)])
        assert got.values[j] == pytest.approx(wanted.value)
        assert got.privacy_variance[j] == pytest.approx(wanted.privacy_variance)
        assert got.sampling_variance[j] == pytest.approx(wanted.sampling_variance)


def test_the_band() -> None:
    got = cdf(estimated(2000))
    np.testing.assert_allclose(got.values, [0.1, 0.5, 0.8])
    error = np.sqrt(got.privacy_variance + got.sampling_variance)
    low, high = got.band()
    np.testing.assert_allclose(high - low, 2 * critical_value(0.95, 3) * error)
    low, high = got.band(0.9, simultaneous=False, sampling=False)
    np.testing.assert_allclose(high - low, 2 * critical_value(0.9) * got.privacy_variance**0.5)


def test_the_mean() -> None:
    middle = midpoints(EDGES)
    np.testing.assert_array_equal(middle, [5.0, 15.0, 30.0, 60.0])
    got = mean(estimated(), middle)
    assert got.value == pytest.approx(F @ middle)
    assert (got.smallest, got.largest) == (5.0, 60.0)
    assert binning_bias(EDGES) == 20.0


@pytest.mark.parametrize("edges", [[-INF, 1.0, 2.0], [0.0, 1.0, INF], [0.0, 1.0, 1.0], [1.0]])
def test_a_bin_without_an_end_has_no_middle(edges: list[float]) -> None:
    for function in (midpoints, binning_bias):
        with pytest.raises(ParameterError, match="edges"):
            function(edges)


@pytest.mark.parametrize(
    ("tau", "value", "low", "high"),
    [
        (0.05, 5.0, 0.0, 10.0),
        (0.3, 15.0, 10.0, 20.0),
        (0.65, 30.0, 20.0, 40.0),
        (0.9, 60.0, 40.0, 80.0),
    ],
)
def test_a_quantile_lies_in_its_bin_when_there_is_hardly_any_noise(
    tau: float, value: float, low: float, high: float
) -> None:
    got = quantile(estimated(10**9), EDGES, tau)
    assert got.value == pytest.approx(value)
    assert (got.tau, got.low, got.high) == (tau, low, high)


def test_a_quantile_on_an_edge_has_the_bins_on_both_sides() -> None:
    got = median(estimated(), EDGES)
    assert got.value == pytest.approx(20.0)
    assert (got.low, got.high) == (10.0, 40.0)


def test_outer_bins_without_an_end() -> None:
    """The interval says that it has no end; in such a bin there is no point either."""
    open_ended = [-INF, 10.0, 20.0, 40.0, INF]
    e = estimated(10**9)
    assert quantile(e, open_ended, 0.05).value is None
    assert quantile(e, open_ended, 0.05).low == -INF
    assert quantile(e, open_ended, 0.9).high == INF
    assert quantile(e, open_ended, 0.3).value == pytest.approx(15.0)


def test_a_far_too_noisy_distribution_still_has_an_interval() -> None:
    """Limits that cross, because the estimate falls where it should rise."""
    e = replace(estimated(10**6), raw=np.array([0.9, -0.8, 0.1, 0.8]))
    got = median(e, EDGES)
    assert got.low < got.high
    assert got.value is not None
    assert got.low <= got.value <= got.high


@pytest.mark.parametrize("tau", [0.0, 1.0, -0.1, math.nan])
def test_a_quantile_is_of_a_share(tau: float) -> None:
    with pytest.raises(ParameterError, match="tau"):
        quantile(estimated(), EDGES, tau)


@pytest.mark.parametrize("edges", [EDGES[:-2], [*EDGES, 100.0], EDGES[::-1]])
def test_edges_fit_the_bins(edges: list[float]) -> None:
    with pytest.raises(ParameterError, match="edges"):
        quantile(estimated(), edges, 0.5)


# --- Numbers of the devices that gave one, where the last value of a histogram is none.


EDGES_of_test_partial_numbers = (0.0, 10.0, 20.0, 40.0, 80.0)
F_of_test_partial_numbers = np.array(
    [0.08, 0.32, 0.24, 0.16, 0.2]
)  # four bins, and a fifth of devices without a number
AMONG = F_of_test_partial_numbers[:4] / F_of_test_partial_numbers[:4].sum()
protocols_of_test_partial_numbers = pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])


def estimated_of_test_partial_numbers(
    n: int = 100_000, protocol: str = "L-GRR", raw: object = F_of_test_partial_numbers
) -> Estimate:
    c = as_drawn(calibrate(protocol, k=5, eps_inf=4.0, eps_1=2.0))
    return replace(estimate([n // 5] * 5, n, c), raw=np.asarray(raw))


def attribute(*edges: float, low: float | None = None, high: float | None = None) -> Attribute:
    labels = bin_labels(edges, "")
    if not math.isinf(edges[0]) or not math.isinf(edges[-1]):
        labels = (*labels, NOT_KNOWN)
    return Attribute("x", "?", labels, edges, low=low, high=high)


@protocols_of_test_partial_numbers
def test_its_error_is_that_of_the_weighted_sum_it_is(protocol: str) -> None:
    """To first order a ratio is a weighted sum, with weights (c - ratio) / share."""
    e, middle = (
        estimated_of_test_partial_numbers(5000, protocol),
        midpoints(EDGES_of_test_partial_numbers),
    )
    got = mean(e, middle)
    weights = np.append((middle - got.value) / F_of_test_partial_numbers[:4].sum(), 0.0)
    as_sum = contrast(e, weights)
    assert got.privacy_variance == pytest.approx(as_sum.privacy_variance)
    assert got.sampling_variance == pytest.approx(as_sum.sampling_variance)


@protocols_of_test_partial_numbers
def test_the_ends_are_where_the_sum_could_be_nothing(protocol: str) -> None:
    """Fieller: the sum with weights c - r is z standard errors from 0 at both ends."""
    e, middle = (
        estimated_of_test_partial_numbers(1500, protocol),
        midpoints(EDGES_of_test_partial_numbers),
    )
    for end in mean(e, middle).interval(0.9):
        at = contrast(e, np.append(middle - end, 0.0))
        assert abs(at.value) == pytest.approx(critical_value(0.9) * at.standard_error())


@protocols_of_test_partial_numbers
def test_a_distribution_among_those_who_gave_a_number(protocol: str) -> None:
    e = estimated_of_test_partial_numbers(5000, protocol, [0.15, 0.35, -0.1, 0.4, 0.25])
    got = cdf(e, 4)
    inside = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    share = contrast(e, inside)
    assert got.ratio.share == pytest.approx(share.value)
    assert got.ratio.privacy.below == pytest.approx(share.privacy_variance)
    assert got.ratio.sampling.below == pytest.approx(share.sampling_variance)
    for j in range(3):
        below = (np.arange(5) <= j).astype(float)
        assert got.ratio.sums[j] == pytest.approx(contrast(e, below).value)
        parts = covariance(e, below, inside)
        assert got.ratio.privacy.both[j] == pytest.approx(parts.privacy)
        assert got.ratio.sampling.both[j] == pytest.approx(parts.sampling)
        one = covariance(e, below, below)
        assert got.ratio.privacy.above[j] == pytest.approx(one.privacy)
        assert got.ratio.sampling.above[j] == pytest.approx(one.sampling)


def test_the_band_stays_between_0_and_1_and_holds_the_estimate() -> None:
    for n in (60, 1000, 10**6):
        got = cdf(estimated_of_test_partial_numbers(n), 4)
        low, high = got.band()
        assert ((low >= 0.0) & (low <= got.values) & (got.values <= high) & (high <= 1.0)).all()
    np.testing.assert_allclose(
        cdf(estimated_of_test_partial_numbers(), 4).values, np.cumsum(AMONG)[:-1]
    )


def test_quantiles_among_those_who_gave_a_number() -> None:
    e = estimated_of_test_partial_numbers(10**9)
    got = median(e, EDGES_of_test_partial_numbers)
    assert got.value == pytest.approx(20.0)
    assert (got.low, got.high) == (10.0, 40.0)
    assert quantile(e, EDGES_of_test_partial_numbers, 0.3).value == pytest.approx(15.0)
    assert quantile(e, (-INF, *EDGES_of_test_partial_numbers[1:]), 0.05).value is None


@pytest.mark.parametrize("share", [0.0, -0.3, 0.001])
def test_where_hardly_anyone_gave_a_number_everything_is_possible(share: float) -> None:
    e = estimated_of_test_partial_numbers(300, raw=[share, 0.0, 0.0, 0.0, 1.0 - share])
    got = mean(e, midpoints(EDGES_of_test_partial_numbers))
    assert got.interval() == (5.0, 60.0)
    low, high = cdf(e, 4).band()
    assert (low == 0.0).all()
    assert (high == 1.0).all()
    assert numbers_of(e, attribute(*EDGES_of_test_partial_numbers)) is None


@pytest.mark.parametrize("bins", [3, 6, 0])
def test_bins_are_as_many_as_values_or_one_less(bins: int) -> None:
    with pytest.raises(ParameterError, match="edges"):
        cdf(estimated_of_test_partial_numbers(), bins)
    with pytest.raises(ParameterError, match="edges"):
        mean(estimated_of_test_partial_numbers(), [1.0] * bins)


# --- what a result says --------------------------------------------------------------------------


def test_numbers_with_finite_ends() -> None:
    e, found = (
        estimated_of_test_partial_numbers(2000),
        numbers_of(
            estimated_of_test_partial_numbers(2000), attribute(*EDGES_of_test_partial_numbers)
        ),
    )
    assert found is not None
    middle = mean(e, midpoints(EDGES_of_test_partial_numbers))
    assert (found.mean, found.mean_bias) == (
        middle.value,
        binning_bias(EDGES_of_test_partial_numbers),
    )
    assert (found.mean_low, found.mean_high) == middle.interval()
    low, high = cdf(e, 4).band()
    assert (found.cdf_low, found.cdf_high) == (tuple(low), tuple(high))
    assert [row.tau for row in found.quantiles] == list(RESULT_QUANTILES)
    for row in found.quantiles:
        wanted = quantile(e, EDGES_of_test_partial_numbers, row.tau)
        assert (row.value, row.low, row.high) == (wanted.value, wanted.low, wanted.high)


def test_numbers_without_ends() -> None:
    """All five values are bins; a mean only where the author said how far they reach."""
    open_ended = (-INF, 10.0, 20.0, 40.0, 80.0, INF)
    e = estimated_of_test_partial_numbers(10**9)
    without = numbers_of(e, attribute(*open_ended))
    assert without is not None
    assert (without.mean, without.mean_low, without.mean_high, without.mean_bias) == (None,) * 4
    assert len(without.cdf) == 4
    assert (without.quantiles[0].low, without.quantiles[-1].high) == (10.0, None)
    half = numbers_of(e, attribute(*open_ended, low=0.0))
    assert half == without
    stated = numbers_of(e, attribute(*open_ended, low=0.0, high=100.0))
    assert stated is not None
    assert stated.mean == pytest.approx(
        float(F_of_test_partial_numbers @ [5.0, 15.0, 30.0, 60.0, 90.0])
    )
    assert stated.mean_bias == 20.0
    assert (stated.cdf, stated.quantiles) == (without.cdf, without.quantiles)
