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
    cdf,
    contrast,
    critical_value,
    difference,
    estimate,
    estimate_pooled,
    margins,
    mean,
    midpoints,
    numbers_of,
    project_pair,
    project_to_simplex,
    quantile,
    relation,
    shift_to_one,
    smallest_difference,
    true_mean,
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


def together(e: Estimate) -> float:
    """What two frequencies are at least, if they are the estimates or differ as those do."""
    u, v = e.raw[[0, 2]].tolist()
    return float(min(max(max(u, 0.0) + max(v, 0.0), abs(u - v)), 1.0))


def surprise(e: Estimate, gap: float, x: float, z: float) -> float:
    """How much further the difference of values 0 and 2 is from x than chance allows."""
    both, known = max(together(e), abs(x)), e.moments
    variance = 2 * known.base + known.base_slope * both + known.dilution * (both - x * x)
    return abs(gap - x) - z * math.sqrt(variance)


@pytest.mark.parametrize("n", [60, 100_000])
@protocols
def test_a_difference(c: Calibration, n: int) -> None:
    """Its ends are where the estimate becomes surprising."""
    e = estimate([n * 38 // 100, n * 35 // 100, n * 36 // 100], n, c)
    gap, back = difference(e, 0, 2), difference(e, 2, 0)
    assert gap.value == pytest.approx(e.raw[0] - e.raw[2])
    assert back.value == -gap.value
    known, both = e.moments, together(e)
    privacy = 2 * known.base + known.base_slope * both
    assert gap.privacy_variance == pytest.approx(privacy)
    assert gap.sampling_variance == pytest.approx(known.dilution * max(both - gap.value**2, 0.0))
    for comparisons in (1, 3):
        low, high = gap.interval(comparisons=comparisons)
        assert back.interval(comparisons=comparisons) == (-high, -low)
        for end in (low, high):
            excess = surprise(e, gap.value, end, critical_value(0.95, comparisons))
            assert abs(excess) < 1e-9 or (abs(end) == 1.0 and excess < 0.0)


def test_an_interval_stays_within_what_is_possible() -> None:
    gap = difference(estimate([100, 0, 0], 100, CALIBRATIONS[0]), 0, 1)
    assert gap.value > 1
    low, high = gap.interval()
    assert (low < 1.0, high) == (True, 1.0)


@given(
    st.lists(st.integers(0, 2000), min_size=2, max_size=9),
    st.sampled_from(["L-GRR", "L-OSUE", "L-OUE", "L-SOUE"]),
)
def test_values_further_apart_than_the_smallest_difference_differ(
    counts: list[int], protocol: str
) -> None:
    """And of the two largest, those that are nearer do not."""
    k = len(counts)
    c = as_drawn(calibrate(protocol, k=k, eps_inf=4.0, eps_1=2.0))
    e = estimate(counts, 2000, c)
    got = smallest_difference(e)
    ratio = critical_value(0.95, k * (k - 1) // 2) / critical_value(0.95)
    assert got.tallest == pytest.approx(got.pair * ratio)
    order = np.argsort(e.raw, kind="stable")
    for u, v in combinations(order[::-1].tolist(), 2):
        gap = difference(e, u, v)
        shown = gap.interval()[0] > 1e-12
        if min(gap.value, 1.0) > got.pair + 1e-9:
            assert shown
        if {u, v} == set(order[-2:].tolist()) and gap.value < got.pair - 1e-9:
            assert not shown


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


@pytest.mark.parametrize("missing", [0.0, 0.25])
@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_the_band_ends_where_a_share_becomes_surprising(protocol: str, missing: float) -> None:
    """The error of a share r is that of the sum with weights 1 - r, -r and, for no number, 0."""
    shape = np.append(F * (1.0 - missing), missing) if missing else F
    c = as_drawn(calibrate(protocol, k=shape.size, eps_inf=4.0, eps_1=2.0))
    e = replace(estimate(np.zeros(shape.size, np.int64), 5000, c), raw=shape)
    straight = {"third0": 0.0, "third_slope": 0.0, "coupled": 0.0, "third_dilution": 0.0}
    e = replace(e, moments=replace(e.moments, **straight))
    got, z = cdf(e, 4), critical_value(0.95, 3)
    np.testing.assert_allclose(got.values, [0.1, 0.5, 0.8])
    for j, ends in enumerate(zip(*got.band())):
        for r in ends:
            below, inside = np.arange(shape.size) <= j, np.arange(shape.size) < 4
            held = np.where(below, r * F[: j + 1].sum() ** -1 * shape, shape)
            held = np.where(inside & ~below, (1 - r) * F[j + 1 :].sum() ** -1 * shape, held)
            at = contrast(replace(e, raw=held), below - r * inside)
            assert at.value == pytest.approx(0.0, abs=1e-12)
            wanted = (1.0 - missing) * (got.values[j] - r)
            assert abs(wanted) == pytest.approx(z * at.standard_error, rel=1e-6)


def test_a_skewed_share_has_a_skewed_interval() -> None:
    e = replace(estimated(60), raw=np.array([0.05, 0.05, 0.0, 0.9]))
    (low, _, _), (high, _, _) = cdf(e).band(simultaneous=False)
    assert high - 0.05 > 0.05 - low > 0.0 or low == 0.0


def test_the_mean() -> None:
    middle = midpoints(EDGES)
    np.testing.assert_array_equal(middle, [5.0, 15.0, 30.0, 60.0])
    got = mean(estimated(), middle)
    assert got.value == pytest.approx(F @ middle)
    assert (got.smallest, got.largest) == (5.0, 60.0)


def test_the_true_mean_is_within_the_bins_weighed_by_their_bars() -> None:
    """With hardly any noise, from the mean of lower ends to that of upper ends; bins of one width
    add half of it on each side."""
    low, high = true_mean(estimated(10**12), EDGES)
    assert low == pytest.approx(F @ EDGES[:-1], rel=1e-3)
    assert high == pytest.approx(F @ EDGES[1:], rel=1e-3)
    even = [0.0, 10.0, 20.0, 30.0, 40.0]
    inner = mean(estimated(2000), midpoints(even)).interval()
    assert true_mean(estimated(2000), even) == pytest.approx((inner[0] - 5.0, inner[1] + 5.0))


@pytest.mark.parametrize("edges", [[-INF, 1.0, 2.0], [0.0, 1.0, INF], [0.0, 1.0, 1.0], [1.0]])
def test_a_bin_without_an_end_has_no_middle(edges: list[float]) -> None:
    with pytest.raises(ParameterError, match="edges"):
        midpoints(edges)
    with pytest.raises(ParameterError, match="edges"):
        true_mean(estimated(), edges)


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
    got = quantile(estimated(), EDGES, 0.5)
    assert got.value == pytest.approx(20.0)
    assert (got.low, got.high) == (10.0, 40.0)


def test_outer_bins_without_an_end() -> None:
    """The interval says that it has no end; in such a bin there is no point either."""
    open_ended = [-INF, 10.0, 20.0, 40.0, INF]
    e = estimated(10**9)
    assert quantile(e, open_ended, 0.05).value is None
    assert quantile(e, open_ended, 0.05).low is None
    assert quantile(e, open_ended, 0.9).high is None
    assert quantile(e, open_ended, 0.3).value == pytest.approx(15.0)


def test_a_quantile_is_not_beyond_an_edge_that_is_not_excluded() -> None:
    """The estimate falls where it should rise: below the second edge lie 0.1, but 0.9 below the
    first, so that nothing is known."""
    e = replace(estimated(10**6), raw=np.array([0.9, -0.8, 0.1, 0.8]))
    got = quantile(e, EDGES, 0.5)
    assert (got.low, got.high) == (0.0, 80.0)
    assert got.value is not None


@pytest.mark.parametrize("tau", [0.0, 1.0, -0.1, math.nan])
def test_a_quantile_is_of_a_share(tau: float) -> None:
    with pytest.raises(ParameterError, match="tau"):
        quantile(estimated(), EDGES, tau)


@pytest.mark.parametrize("edges", [EDGES[:-2], [*EDGES, 100.0], EDGES[::-1]])
def test_edges_fit_the_bins(edges: list[float]) -> None:
    with pytest.raises(ParameterError, match="edges"):
        quantile(estimated(), edges, 0.5)


# --- Numbers of the devices that gave one, where the last value of a histogram is none.


PARTIAL_EDGES = (0.0, 10.0, 20.0, 40.0, 80.0)
PARTIAL = np.array(
    [0.08, 0.32, 0.24, 0.16, 0.2]
)  # four bins, and a fifth of devices without a number
AMONG = PARTIAL[:4] / PARTIAL[:4].sum()
both = pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])


def partial(n: int = 100_000, protocol: str = "L-GRR", raw: object = PARTIAL) -> Estimate:
    c = as_drawn(calibrate(protocol, k=5, eps_inf=4.0, eps_1=2.0))
    return replace(estimate([n // 5] * 5, n, c), raw=np.asarray(raw))


def attribute(*edges: float, low: float | None = None, high: float | None = None) -> Attribute:
    labels = bin_labels(edges, "")
    if not math.isinf(edges[0]) or not math.isinf(edges[-1]):
        labels = (*labels, NOT_KNOWN)
    return Attribute("x", "?", labels, edges, low=low, high=high)


@both
def test_its_error_is_that_of_the_weighted_sum_it_is(protocol: str) -> None:
    """To first order a ratio is a weighted sum, with weights (c - ratio) / share."""
    e, middle = (
        partial(5000, protocol),
        midpoints(PARTIAL_EDGES),
    )
    got = mean(e, middle)
    weights = np.append((middle - got.value) / PARTIAL[:4].sum(), 0.0)
    as_sum = contrast(e, weights)
    assert got.privacy_variance == pytest.approx(as_sum.privacy_variance)
    assert got.sampling_variance == pytest.approx(as_sum.sampling_variance)


@both
def test_the_ends_are_where_the_sum_could_be_nothing(protocol: str) -> None:
    """Fieller: the sum with weights c - r is z standard errors from 0 at both ends."""
    e, middle = (
        partial(1500, protocol),
        midpoints(PARTIAL_EDGES),
    )
    for end in mean(e, middle).interval(0.9):
        at = contrast(e, np.append(middle - end, 0.0))
        assert abs(at.value) == pytest.approx(critical_value(0.9) * at.standard_error)


def test_the_band_stays_between_0_and_1_and_holds_the_estimate() -> None:
    for n in (60, 1000, 10**6):
        got = cdf(partial(n), 4)
        low, high = got.band()
        assert ((low >= 0.0) & (low <= got.values) & (got.values <= high) & (high <= 1.0)).all()
    np.testing.assert_allclose(cdf(partial(), 4).values, np.cumsum(AMONG)[:-1])


def test_quantiles_among_those_who_gave_a_number() -> None:
    e = partial(10**9)
    got = quantile(e, PARTIAL_EDGES, 0.5)
    assert got.value == pytest.approx(20.0)
    assert (got.low, got.high) == (10.0, 40.0)
    assert quantile(e, PARTIAL_EDGES, 0.3).value == pytest.approx(15.0)
    assert quantile(e, (-INF, *PARTIAL_EDGES[1:]), 0.05).value is None


@pytest.mark.parametrize("share", [0.0, -0.3, 0.001])
def test_where_hardly_anyone_gave_a_number_everything_is_possible(share: float) -> None:
    e = partial(300, raw=[share, 0.0, 0.0, 0.0, 1.0 - share])
    got = mean(e, midpoints(PARTIAL_EDGES))
    assert got.interval() == (5.0, 60.0)
    low, high = cdf(e, 4).band()
    assert (low == 0.0).all()
    assert (high == 1.0).all()
    assert numbers_of(e, attribute(*PARTIAL_EDGES)) is None


@pytest.mark.parametrize("bins", [3, 6, 0])
def test_bins_are_as_many_as_values_or_one_less(bins: int) -> None:
    with pytest.raises(ParameterError, match="edges"):
        cdf(partial(), bins)
    with pytest.raises(ParameterError, match="edges"):
        mean(partial(), [1.0] * bins)


# --- what a result says --------------------------------------------------------------------------


def test_numbers_with_finite_ends() -> None:
    e, found = (
        partial(2000),
        numbers_of(partial(2000), attribute(*PARTIAL_EDGES)),
    )
    assert found is not None
    middle = mean(e, midpoints(PARTIAL_EDGES))
    low, high = true_mean(e, PARTIAL_EDGES)
    assert found.mean == middle.value
    assert (found.mean_low, found.mean_high) == middle.interval()
    assert found.mean_bias is not None
    inner = middle.interval()
    assert found.mean_bias == max(inner[0] - low, high - inner[1])
    assert 7.0 < found.mean_bias < 15.0, "far from half of the widest bin, 20"
    lows, highs = cdf(e, 4).band()
    assert (found.cdf_low, found.cdf_high) == (tuple(lows), tuple(highs))
    assert [row.tau for row in found.quantiles] == list(RESULT_QUANTILES)
    for row in found.quantiles:
        wanted = quantile(e, PARTIAL_EDGES, row.tau)
        assert (row.value, row.low, row.high) == (wanted.value, wanted.low, wanted.high)


def test_numbers_without_ends() -> None:
    """All five values are bins; a mean only where the author said how far they reach."""
    open_ended = (-INF, 10.0, 20.0, 40.0, 80.0, INF)
    e = partial(10**9)
    without = numbers_of(e, attribute(*open_ended))
    assert without is not None
    assert (without.mean, without.mean_low, without.mean_high, without.mean_bias) == (None,) * 4
    assert len(without.cdf) == 4
    assert (without.quantiles[0].low, without.quantiles[-1].high) == (10.0, None)
    half = numbers_of(e, attribute(*open_ended, low=0.0))
    assert half == without
    stated = numbers_of(e, attribute(*open_ended, low=0.0, high=100.0))
    assert stated is not None
    assert stated.mean == pytest.approx(float(PARTIAL @ [5.0, 15.0, 30.0, 60.0, 90.0]))
    assert stated.mean_bias == pytest.approx(PARTIAL @ [5, 5, 10, 20, 10], 1e-3)
    assert (stated.cdf, stated.quantiles) == (without.cdf, without.quantiles)


# --- pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_the_error_of_a_margin_is_that_of_a_sum_of_cells(protocol: str) -> None:
    """The same as of a weighted sum, whose error is exact; so are differences of margins."""
    c = as_drawn(calibrate(protocol, k=6, eps_inf=2.0, eps_1=0.6))
    counts = [9_000, 3_000, 4_000, 3_500, 2_500, 4_000]
    made = estimate_pooled(counts, [1, 3], [5_000, 9_000], c, weights="reports")
    made = replace(made, raw=made.projected)  # where all three say the same of f
    for axis, margin in zip((1, 0), margins(made, (2, 3))):
        for i, share in enumerate(margin.raw):
            weights = np.zeros((2, 3))
            weights[(i, slice(None)) if axis else (slice(None), i)] = 1.0
            found = contrast(made, weights.ravel())
            assert found.value == pytest.approx(share)
            variance = float(margin.moments.variance(np.asarray(share)))
            assert variance == pytest.approx(found.standard_error**2, rel=1e-9)
    rows = contrast(margins(made, (2, 3))[0], [1.0, -1.0])
    cells = contrast(made, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    assert rows.standard_error == pytest.approx(cells.standard_error, rel=1e-9)


@pytest.mark.parametrize("shape", [(2, 3), (4, 4), (2, 40)])
def test_the_table_is_the_nearest_one_with_the_nearest_margins(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(7)
    raw = rng.normal(1.0 / np.prod(shape), 0.1, shape)
    table = project_pair(raw.ravel(), shape).reshape(shape)
    assert (table >= 0.0).all()
    shifted = shift_to_one(raw.ravel()).reshape(shape)
    for axis in (0, 1):
        wanted = project_to_simplex(shifted.sum(axis=axis))
        assert table.sum(axis=axis) == pytest.approx(wanted, abs=1e-9)
    for _ in range(200):  # no other table with these margins is nearer
        (a, b), (c, d) = (rng.choice(n, 2, replace=False) for n in shape)
        moved, by = table.copy(), min(table[a, d], table[b, c], rng.random() / 10)
        moved[[a, b], [c, d]] += by
        moved[[a, b], [d, c]] -= by
        assert np.linalg.norm(moved - raw) >= np.linalg.norm(table - raw) - 1e-9


def test_a_relation_is_between_two_questions_with_at_least_two_values() -> None:
    made = estimate([40, 10, 10, 40], 100, as_drawn(calibrate("L-GRR", k=4, eps_inf=4, eps_1=3)))
    assert relation(made, (2, 2)) == relation(made, (2, 2))
    assert relation(made, (2, 2)).shown
    for shape in ((1, 4), (2, 3)):
        with pytest.raises(ParameterError, match="two questions"):
            relation(made, shape)
