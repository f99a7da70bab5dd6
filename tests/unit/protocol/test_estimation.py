"""Estimates and their errors are exact: checked by summing over everything that can happen."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import LONGITUDINAL, Calibration, as_drawn, calibrate
from protocol_spec.estimation import (
    Array,
    Weights,
    critical_value,
    estimate,
    estimate_pooled,
    project_to_simplex,
    score_interval,
    shift_to_one,
    skew_corrected_interval,
)
from tests.support.protocol.budgets import near
from tests.support.protocol.shared import from_shared, shared

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


@pytest.mark.parametrize("c", CALIBRATIONS, ids=IDS)
def test_one_round_is_the_pool_of_one_report_each(c: Calibration) -> None:
    counts = [40, 35, 25]
    one, pooled = estimate(counts, 100, c), estimate_pooled([counts], [1], [100], c)
    np.testing.assert_allclose(one.raw, pooled.raw, rtol=1e-12)
    assert near(one.v0, pooled.v0)
    assert near(one.v1, pooled.v1)
    assert near(one.dilution, pooled.dilution)


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


@pytest.mark.parametrize("c", CALIBRATIONS, ids=IDS)
def test_the_variances_in_closed_form(c: Calibration) -> None:
    n, total = sum(DEVICES), sum(m * size for m, size in zip(REPORTS, DEVICES))
    (between, within), squares = c.device_noise(False), 1**2 * 50 + 3**2 * 20 + 10**2 * 5
    equal = estimate_pooled(COUNTS, REPORTS, DEVICES, c)
    mean_inverse = (50 / 1 + 20 / 3 + 5 / 10) / n
    assert near(equal.v0, (between + within * mean_inverse) / n)
    counts = estimate_pooled(COUNTS, REPORTS, DEVICES, c, weights="reports")
    assert near(counts.v0, (between * squares + within * total) / total**2)


@pytest.mark.parametrize("c", CALIBRATIONS, ids=IDS)
def test_blue_has_the_least_variance(c: Calibration) -> None:
    variances = {
        weights: estimate_pooled(COUNTS, REPORTS, DEVICES, c, weights=weights).v0
        for weights in ("equal", "reports", "blue")
    }
    assert min(variances, key=variances.__getitem__) == "blue"


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


def test_a_fleet_of_one_has_no_sampling_error() -> None:
    assert estimate([1, 0, 0], 1, CALIBRATIONS[0], fleet=1).dilution == 0.0


@pytest.mark.parametrize("c", CALIBRATIONS, ids=IDS)
def test_standard_errors_are_the_calibrations(c: Calibration) -> None:
    n = 1_000_000
    for f in (0.1, 0.5):
        count = round(n * (c.qs + f * c.gap))
        estimated = estimate([count, 0, 0], n, c)
        held = float(estimated.raw[0])
        privacy, sampling = estimated.privacy_error[0], estimated.sampling_error[0]
        assert near(privacy**2, c.pooled_variance(n, 1, held))
        assert near(sampling**2, held * (1 - held) / n)
        assert near(estimated.standard_error[0] ** 2, c.variance(n, held))


def test_errors_of_impossible_estimates_are_those_of_the_nearest_possible() -> None:
    c = CALIBRATIONS[1]
    estimated = estimate([0, 100, 50], 100, c)
    assert estimated.raw[0] < 0
    assert estimated.raw[1] > 1
    assert near(estimated.privacy_error[0] ** 2, estimated.v0)
    assert near(estimated.privacy_error[1] ** 2, estimated.v1)
    assert list(estimated.sampling_error[:2]) == [0.0, 0.0]


def test_shared_score_intervals() -> None:
    for entry in shared("score_interval"):
        c = from_shared(entry)
        v0, v1 = (c.device_variance(holds, entry["T"]) / entry["n"] for holds in (False, True))
        assert near(v0, entry["V0"])
        assert near(v1, entry["V1"])
        low, high = score_interval([entry["fhat"]], v0, v1, z=entry["z"])
        assert math.isclose(low[0], entry["lo"], rel_tol=1e-12)
        assert math.isclose(high[0], entry["hi"], rel_tol=1e-12)


UNIT = st.floats(0, 1)
VARIANCES = st.floats(1e-9, 10)


@given(UNIT, VARIANCES, VARIANCES, st.floats(0, 1), st.floats(0.1, 5))
def test_the_ends_are_where_the_estimate_becomes_surprising(
    centre: float, v0: float, v1: float, dilution: float, z: float
) -> None:
    low, high = (float(x[0]) for x in score_interval([centre], v0, v1, z=z, dilution=dilution))
    assert 0 <= low <= centre + 1e-12
    assert centre - 1e-12 <= high <= 1
    for end in (low, high):
        variance = v0 + end * (v1 - v0) + dilution * end * (1 - end)
        distance = (centre - end) ** 2 - z**2 * variance
        inside = 0 < end < 1
        # At a clipped end the estimate may still be unsurprising, never more than surprising.
        scale = 1e-9 * (1 + z**2 * (v0 + v1 + dilution))
        assert abs(distance) < scale if inside else distance < scale


@given(st.lists(st.floats(-3, 4), min_size=2, max_size=9), VARIANCES, VARIANCES)
def test_intervals_are_never_empty(raw: list[float], v0: float, v1: float) -> None:
    low, high = score_interval(raw, v0, v1, z=1.96, dilution=0.01)
    clipped = np.clip(raw, 0, 1)
    assert (low <= clipped + 1e-12).all()
    assert (clipped <= high + 1e-12).all()
    assert ((low >= 0) & (high <= 1)).all()


def test_critical_values() -> None:
    assert math.isclose(critical_value(0.95), 1.959963984540054, rel_tol=1e-14)
    assert math.isclose(critical_value(0.99), 2.5758293035489004, rel_tol=1e-14)


@given(st.floats(0.01, 0.999), st.integers(1, 4096))
def test_sidak_holds_for_all_values_at_once(confidence: float, k: int) -> None:
    """k independent intervals of that critical value hold together with the confidence asked."""
    one = math.erf(critical_value(confidence, k) / math.sqrt(2))
    assert math.isclose(k * math.log(one), math.log(confidence), rel_tol=1e-9, abs_tol=1e-12)


def test_options_of_the_interval() -> None:
    estimated = estimate([4000, 3500, 2500], 10_000, CALIBRATIONS[3])
    widths = {
        (confidence, together, sampling): float(np.subtract(*reversed(both))[1])
        for confidence, together, sampling in product((0.9, 0.95), (False, True), (False, True))
        for both in [estimated.interval(confidence, simultaneous=together, sampling=sampling)]
    }
    assert widths[0.95, False, True] > widths[0.9, False, True]
    assert widths[0.95, True, True] > widths[0.95, False, True]
    assert widths[0.95, False, True] > widths[0.95, False, False]
    low, high = estimated.interval()
    expected = skew_corrected_interval(estimated.raw, estimated.moments, z=critical_value(0.95))
    np.testing.assert_array_equal((low, high), expected)


def test_shared_projections() -> None:
    for entry in shared("simplex_projection"):
        np.testing.assert_allclose(project_to_simplex(entry["inp"]), entry["out"], atol=1e-15)


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


@given(VECTORS)
def test_projecting_twice_changes_nothing(raw: list[float]) -> None:
    once = project_to_simplex(raw)
    np.testing.assert_allclose(project_to_simplex(once), once, atol=1e-15)


def test_projection_and_shift_work_along_the_last_axis() -> None:
    table = np.array([[0.5, 0.4, -0.1, 0.3], [-0.2, -0.1, 0.05, 0.1]])
    for function in (project_to_simplex, shift_to_one):
        rows = np.array([function(row) for row in table])
        np.testing.assert_array_equal(function(table), rows)
    np.testing.assert_allclose(shift_to_one(table).sum(axis=1), 1.0)


def test_the_displayed_histogram_is_the_projection_of_the_raw_one() -> None:
    estimated = estimate([0, 100, 50], 100, CALIBRATIONS[1])
    np.testing.assert_array_equal(estimated.projected, project_to_simplex(estimated.raw))
