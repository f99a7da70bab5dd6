"""Estimates and their errors are exact: checked by summing over everything that can happen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import (
    LONGITUDINAL,
    Calibration,
    ParameterError,
    as_drawn,
    calibrate,
    calibrate_once,
)
from protocol_spec.estimation import (
    Array,
    Channel,
    Estimate,
    Moments,
    Weights,
    critical_value,
    effective_devices,
    estimate,
    estimate_levels,
    estimate_pooled,
    estimate_window,
    project_to_simplex,
    score_interval,
    shift_to_one,
    skew_corrected_interval,
)
from protocol_spec.mechanisms import Hashed, Nested
from tests.support.protocol.helpers import VARIANTS, budgets, near

K = 3
CALIBRATIONS = [
    as_drawn(calibrate(protocol, k=K, eps_inf=2.0, eps_1=0.6)) for protocol in LONGITUDINAL
]
IDS = LONGITUDINAL


def single_reports(c: Calibration, value: int) -> list[tuple[float, list[int]]]:
    """Every report that a device holding the value can send: its chance, and its support."""
    if not c.unary:
        return [(c.ps if v == value else c.qs, [int(u == v) for u in range(K)]) for v in range(K)]
    ones = [c.ps if v == value else c.qs for v in range(K)]
    return [
        (math.prod(p if bit else 1 - p for p, bit in zip(ones, bits)), list(bits))
        for bits in product((0, 1), repeat=K)
    ]


@pytest.mark.parametrize("value", range(K))
@pytest.mark.parametrize("c", CALIBRATIONS, ids=IDS)
def test_one_report_is_unbiased_and_its_variance_exact(c: Calibration, value: int) -> None:
    truth = np.eye(K)[value]
    outcomes = [(chance, estimate(support, 1, c)) for chance, support in single_reports(c, value)]
    mean = sum(chance * e.raw for chance, e in outcomes)
    square = sum(chance * (e.raw - truth) ** 2 for chance, e in outcomes)
    _, first = outcomes[0]
    np.testing.assert_allclose(mean, truth, atol=1e-13)
    np.testing.assert_allclose(square, np.where(truth, first.v1, first.v0), rtol=1e-12)


@pytest.mark.parametrize("c", [c for c in CALIBRATIONS if c.unary], ids=lambda c: c.protocol)
def test_shifting_multiplies_the_total_error_by_one_minus_one_over_k(c: Calibration) -> None:
    truth = np.eye(K)[1]
    raw = shifted = 0.0
    for chance, support in single_reports(c, 1):
        estimated = estimate(support, 1, c)
        raw += chance * float(((estimated.raw - truth) ** 2).sum())
        shifted += chance * float(((estimated.shifted - truth) ** 2).sum())
        assert math.isclose(estimated.shifted.sum(), 1.0)
    assert near(shifted, raw * (1 - 1 / K))


def test_generalised_response_sums_to_one_by_itself() -> None:
    grr = estimate([50, 30, 20], 100, CALIBRATIONS[0])
    assert math.isclose(grr.raw.sum(), 1.0)
    assert grr.shifted is grr.raw


def supports(c: Calibration, holds: bool, m: int) -> list[float]:
    """Chance that s = 0..m of a device's m reports support a value."""
    kept = c.p1 if holds else c.q1
    return [
        math.comb(m, s)
        * (kept * c.p2**s * (1 - c.p2) ** (m - s) + (1 - kept) * c.q2**s * (1 - c.q2) ** (m - s))
        for s in range(m + 1)
    ]


@pytest.mark.parametrize("weights", ["equal", "reports", "blue"])
@pytest.mark.parametrize("m", [1, 2, 7])
@pytest.mark.parametrize("c", CALIBRATIONS, ids=IDS)
def test_pooled_reports_are_unbiased_and_their_variance_exact(
    c: Calibration, m: int, weights: Weights
) -> None:
    for holds in (False, True):
        outcomes = [
            (chance, estimate_pooled([[s, 0, 0]], [m], [1], c, weights=weights))
            for s, chance in enumerate(supports(c, holds, m))
        ]
        mean = sum(chance * e.raw[0] for chance, e in outcomes)
        square = sum(chance * (e.raw[0] - holds) ** 2 for chance, e in outcomes)
        _, first = outcomes[0]
        assert math.isclose(mean, holds, abs_tol=1e-12)
        assert near(square, first.v1 if holds else first.v0, rel=1e-11)


# Three groups of devices: (reports each, devices, counts of the group's reports).
REPORTS, DEVICES = (1, 3, 10), (50, 20, 5)
COUNTS = ((20, 25, 30), (30, 25, 28), (22, 30, 21))


def by_hand(c: Calibration, device_weight: list[float]) -> tuple[Array, float, float, float]:
    """Sum over devices of weight times debiased mean; variances likewise."""
    total = math.fsum(w * size for w, size in zip(device_weight, DEVICES))
    w = [each / total for each in device_weight]
    raw = sum(
        weight * (np.array(counts) / m - size * c.qs) / c.gap
        for weight, m, size, counts in zip(w, REPORTS, DEVICES, COUNTS)
    )
    variances = [
        math.fsum(
            weight**2 * size * c.device_variance(holds, m)
            for weight, m, size in zip(w, REPORTS, DEVICES)
        )
        for holds in (False, True)
    ]
    dilution = math.fsum(weight**2 * size for weight, size in zip(w, DEVICES))
    return np.asarray(raw), variances[0], variances[1], dilution


def device_weights(c: Calibration, weights: str) -> list[float]:
    if weights == "blue":
        return [1 / c.device_variance(False, m) for m in REPORTS]
    return [float(m) if weights == "reports" else 1.0 for m in REPORTS]


@pytest.mark.parametrize("weights", ["equal", "reports", "blue"])
@pytest.mark.parametrize("c", CALIBRATIONS, ids=IDS)
def test_weights_of_unequal_devices(c: Calibration, weights: Weights) -> None:
    got = estimate_pooled(COUNTS, REPORTS, DEVICES, c, weights=weights)
    raw, v0, v1, dilution = by_hand(c, device_weights(c, weights))
    np.testing.assert_allclose(got.raw, raw, rtol=1e-11)
    assert near(got.v0, v0)
    assert near(got.v1, v1)
    assert near(got.dilution, dilution)


def test_totals_are_enough_for_weights_by_reports() -> None:
    totals = np.sum(COUNTS, axis=0)
    for c in CALIBRATIONS:
        rows = estimate_pooled(COUNTS, REPORTS, DEVICES, c, weights="reports")
        total = estimate_pooled(totals, REPORTS, DEVICES, c, weights="reports")
        np.testing.assert_array_equal(rows.raw, total.raw)


@pytest.mark.parametrize(
    ("fleet", "factor"), [(None, 1.0), (100, 0.0), (101, 0.01), (199, 0.5), (10**9, 1.0)]
)
def test_sampling_error_vanishes_when_the_whole_fleet_reported(
    fleet: int | None, factor: float
) -> None:
    c = CALIBRATIONS[1]
    one = estimate([40, 35, 25], 100, c, fleet=fleet)
    pooled = estimate_pooled([[80, 70, 50]], [2], [100], c, fleet=fleet)
    assert math.isclose(one.dilution, factor / 100, rel_tol=1e-6)
    assert math.isclose(pooled.dilution, factor / 100, rel_tol=1e-6)


def test_errors_of_impossible_estimates_are_those_of_the_nearest_possible() -> None:
    c = CALIBRATIONS[1]
    estimated = estimate([0, 100, 50], 100, c)
    assert estimated.raw[0] < 0
    assert estimated.raw[1] > 1
    assert near(estimated.privacy_error[0] ** 2, estimated.v0)
    assert near(estimated.privacy_error[1] ** 2, estimated.v1)
    assert list(estimated.sampling_error[:2]) == [0.0, 0.0]


def test_critical_values() -> None:
    assert math.isclose(critical_value(0.95), 1.959963984540054, rel_tol=1e-14)
    assert math.isclose(critical_value(0.99), 2.5758293035489004, rel_tol=1e-14)


@given(st.floats(0.01, 0.999), st.integers(1, 4096))
def test_sidak_holds_for_all_values_at_once(confidence: float, k: int) -> None:
    """k independent intervals of that critical value hold together with the confidence asked."""
    one = math.erf(critical_value(confidence, k) / math.sqrt(2))
    assert math.isclose(k * math.log(one), math.log(confidence), rel_tol=1e-9, abs_tol=1e-12)


VECTORS = st.lists(st.floats(-5, 5), min_size=2, max_size=12)


@given(VECTORS)
def test_the_projection_is_the_nearest_histogram(raw: list[float]) -> None:
    """The optimality conditions: one shift for all that stay positive, no more for the others."""
    projected = project_to_simplex(raw)
    assert math.isclose(projected.sum(), 1.0, abs_tol=1e-12)
    assert (projected >= 0).all()
    moved = np.asarray(raw) - projected
    stay = projected > 0
    assert np.ptp(moved[stay]) < 1e-12
    assert (moved[~stay] <= moved[stay].max() + 1e-12).all()


def test_projection_and_shift_work_along_the_last_axis() -> None:
    table = np.array([[0.5, 0.4, -0.1, 0.3], [-0.2, -0.1, 0.05, 0.1]])
    for function in (project_to_simplex, shift_to_one):
        rows = np.array([function(row) for row in table])
        np.testing.assert_array_equal(function(table), rows)
    np.testing.assert_allclose(shift_to_one(table).sum(axis=1), 1.0)


# --- Counts that cannot be are refused by name; none is quietly turned into a histogram.


C = calibrate("L-OSUE", k=3, eps_inf=2.0, eps_1=0.6)


@pytest.mark.parametrize(
    ("counts", "n", "fleet", "field"),
    [
        ([1, 2], 5, None, "counts"),
        ([1, 2, 3, 4], 5, None, "counts"),
        (3, 5, None, "counts"),
        ([1, 2, -1], 5, None, "counts"),
        ([1.0, 2.0, 3.0], 5, None, "counts"),
        ([1, 2, math.nan], 5, None, "counts"),
        (["1", "2", "3"], 5, None, "counts"),
        ([True, False, True], 5, None, "counts"),
        ([1, 2, 6], 5, None, "counts"),
        ([0, 0, 0], 0, None, "n"),
        ([0, 0, 0], -1, None, "n"),
        ([1, 2, 3], 5, 4, "fleet"),
    ],
)
def test_one_round(counts: Any, n: int, fleet: int | None, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        estimate(counts, n, C, fleet=fleet)
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reports": [0, 2]}, "reports"),
        ({"reports": [1]}, "reports"),
        ({"reports": [[1, 2]], "devices": [[1, 2]]}, "reports"),
        ({"devices": [-1, 2]}, "reports"),
        ({"devices": [0, 0]}, "reports"),
        ({"counts": [[1, 2, 3]]}, "counts"),
        ({"counts": [[1, 2], [3, 4]]}, "counts"),
        ({"counts": [[1, 2, 3], [1, 2, -3]]}, "counts"),
        ({"weights": "best"}, "weights"),
        ({"fleet": 14}, "fleet"),
    ],
)
def test_pooled(change: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {
        "counts": [[1, 2, 3], [4, 5, 6]],
        "reports": [1, 2],
        "devices": [5, 10],
    }
    estimate_pooled(**good, calibration=C)
    with pytest.raises(ParameterError) as caught:
        estimate_pooled(**{**good, **change}, calibration=C)
    assert caught.value.field == field


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95, math.nan])
def test_confidence(confidence: float) -> None:
    with pytest.raises(ParameterError, match="confidence"):
        critical_value(confidence)
    with pytest.raises(ParameterError, match="confidence"):
        estimate([1, 2, 3], 5, C).interval(confidence)


# --- Skew-corrected intervals end where an estimate becomes surprising, and never come out empty.


def surprise(centre: float, f: float, moments: Moments, z: float) -> float:
    """How much further the estimate is from f than chance allows; negative if it is not."""
    at = np.array([f])
    side = 1.0 if centre >= f else -1.0
    skew = side * (z * z - 1.0) * float(moments.skewness(at)[0]) / 6.0
    reach = max(z + skew, 0.6 * z) * float(np.sqrt(moments.variance(at)[0]))
    return abs(centre - f) - reach


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    budget = draw(budgets(draw(st.sampled_from(VARIANTS))))
    calibration = as_drawn(budget._replace(k=3).calibrate())
    reports = draw(st.lists(st.integers(1, 400), min_size=1, max_size=3))
    devices = [draw(st.integers(1, 5000)) for _ in reports]
    total = sum(m * n for m, n in zip(reports, devices))
    counts = [draw(st.integers(0, total)) for _ in range(3)]
    return estimate_pooled(counts, reports, devices, calibration, weights="reports")


@settings(max_examples=150)
@given(estimates(), st.sampled_from([0.5, 0.95, 0.999]), st.booleans(), st.booleans())
def test_the_ends_are_where_the_estimate_becomes_surprising_of_test_intervals(
    estimated: Estimate, confidence: float, simultaneous: bool, sampling: bool
) -> None:
    z = critical_value(confidence, 3 if simultaneous else 1)
    moments = estimated.moments if sampling else estimated.moments.without_sampling()
    centres = np.clip(estimated.raw, 0.0, 1.0)
    ends = estimated.interval(confidence, simultaneous=simultaneous, sampling=sampling)
    for centre, low, high in zip(centres, *ends):
        assert 0.0 <= low <= centre <= high <= 1.0
        for end in (low, high):
            excess = surprise(centre, end, moments, z)
            assert excess < 1e-9
            if 0.0 < end < 1.0:
                assert end == centre or excess > -1e-9


@settings(max_examples=50)
@given(estimates())
def test_nothing_beyond_the_ends_is_unsurprising(estimated: Estimate) -> None:
    """On the grid that is searched."""
    z, centres = critical_value(0.95), np.clip(estimated.raw, 0.0, 1.0)
    for centre, low, high in zip(centres, *estimated.interval()):
        for f in np.linspace(0.0, 1.0, 401):
            if not low - 1e-12 <= f <= high + 1e-12:
                assert surprise(centre, f, estimated.moments, z) > -1e-12


def test_without_skewness_it_is_the_score_interval() -> None:
    c = as_drawn(calibrate("L-OSUE", k=3, eps_inf=2.0, eps_1=0.6))
    e = estimate([500, 450, 400], 1000, c)
    straight = {"third0": 0.0, "third_slope": 0.0, "coupled": 0.0, "third_dilution": 0.0}
    moments = Moments(**{name: getattr(e.moments, name) for name in Moments.__slots__} | straight)
    got = skew_corrected_interval(e.raw, moments, z=1.96)
    wanted = score_interval(e.raw, e.v0, e.v1, z=1.96, dilution=e.dilution)
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


def test_equal_estimates_have_equal_intervals_in_any_shape() -> None:
    c = as_drawn(calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6))
    table = np.array([[40, 50, 50, 60], [60, 40, 0, 40]])
    low, high = estimate(table, 100, c).interval(simultaneous=True)
    assert low.shape == high.shape == (2, 4)
    for row, counts in enumerate(table):
        alone = estimate(counts, 100, c).interval(simultaneous=True)
        np.testing.assert_allclose((low[row], high[row]), alone, rtol=1e-12)
    assert low[0, 1] == low[0, 2]


@settings(max_examples=50)
@given(estimates(), st.sampled_from([0.5, 0.95, 0.999]))
def test_both_intervals_at_once_are_those_one_by_one(
    estimated: Estimate, confidence: float
) -> None:
    one_by_one = [estimated.interval(confidence, simultaneous=s) for s in (False, True)]
    np.testing.assert_array_equal(estimated.both_intervals(confidence), one_by_one)


@pytest.mark.parametrize("comparisons", [1, 5, 1024, 10**6])
def test_critical_values_keep_their_digits_far_out(comparisons: int) -> None:
    """erfc(z / sqrt 2) is 1 - 0.95^(1/comparisons)."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        level = 1 - mpmath.mpf(0.95) ** (mpmath.mpf(1) / comparisons)
        wanted = mpmath.sqrt(2) * mpmath.erfinv(1 - level)
    assert abs(critical_value(0.95, comparisons) / float(wanted) - 1) < 1e-14


# --- Variance and skewness of an estimate are exact: checked by summing over all that can happen.


CHANNELS: list[Channel] = [
    *(as_drawn(calibrate(p, k=K, eps_inf=2.0, eps_1=0.6)) for p in ("L-GRR", "L-OSUE", "L-OUE")),
    Hashed.calibrate(k=K, eps_inf=2.0, eps_1=0.6),
    calibrate_once("GRR", k=K, epsilon=1.5),
]
channels = pytest.mark.parametrize("c", CHANNELS, ids=["L-GRR", "L-OSUE", "L-OUE", "hashed", "GRR"])

REPORTS_of_test_moments, DEVICES_of_test_moments = (
    (1, 2, 3),
    (2, 1, 1),
)  # four devices: two sent one report, one two, one three
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
        np.zeros((3, K), np.int64),
        REPORTS_of_test_moments,
        DEVICES_of_test_moments,
        c,
        weights=weights,
        fleet=fleet,
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
def test_levels_weigh_by_their_devices(protocol: str) -> None:
    levels = Nested.calibrate(protocol, k=K, schedule=[0.5, 1.0, 2.0]).as_drawn().levels
    n = [30, 0, 20]
    got = estimate_levels([[12, 9, 9], [0, 0, 0], [15, 3, 2]], n, levels)
    first, last = (estimate(row, 30 if i == 0 else 20, levels[i]) for i, row in _rows())
    share = 0.6
    np.testing.assert_allclose(got.raw, share * first.raw + (1 - share) * last.raw)
    assert math.isclose(got.v0, share**2 * first.v0 + (1 - share) ** 2 * last.v0)
    assert math.isclose(got.v1, share**2 * first.v1 + (1 - share) ** 2 * last.v1)
    assert math.isclose(got.dilution, share**2 / 30 + (1 - share) ** 2 / 20)
    assert got.n_eff == 50.0
    third = share**3 * first.moments.third0 + (1 - share) ** 3 * last.moments.third0
    assert math.isclose(got.moments.third0, third)


def _rows() -> list[tuple[int, list[int]]]:
    return [(0, [12, 9, 9]), (2, [15, 3, 2])]


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
