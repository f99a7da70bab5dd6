"""Skew-corrected intervals end where an estimate becomes surprising, and never come out empty."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import as_drawn, calibrate
from protocol_spec.estimation import (
    Estimate,
    Moments,
    critical_value,
    estimate,
    estimate_pooled,
    score_interval,
    skew_corrected_interval,
)
from tests.support.protocol.budgets import VARIANTS, budgets


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
def test_the_ends_are_where_the_estimate_becomes_surprising(
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


def test_small_fleets_are_asymmetric_where_the_law_is() -> None:
    """A rare value's estimate is skewed upwards: it needs more room below than above."""
    c = as_drawn(calibrate("L-GRR", k=24, eps_inf=4.0, eps_1=2.0))
    e = estimate([20, *([6] * 23)], 158, c)
    plain = score_interval(e.raw, e.v0, e.v1, z=critical_value(0.95, 24), dilution=e.dilution)
    low, high = e.interval(simultaneous=True)
    assert low[0] < plain[0][0]
    assert high[0] < plain[1][0]


def test_a_thousand_values_are_quick() -> None:
    """A tenth of a second is far above what it takes, and far below what people notice."""
    c = as_drawn(calibrate("ALLOMFREE", k=1000, eps_inf=2.0, eps_1=0.6))
    counts = np.random.default_rng(1).binomial(5000, c.qs, size=1000)
    taken = []
    for _ in range(5):
        start = time.process_time()
        estimated = estimate(counts, 5000, c)
        estimated.interval()
        estimated.interval(simultaneous=True)
        taken.append(time.process_time() - start)
    assert min(taken) < 0.1


@pytest.mark.parametrize("comparisons", [1, 5, 1024, 10**6])
def test_critical_values_keep_their_digits_far_out(comparisons: int) -> None:
    """erfc(z / sqrt 2) is 1 - 0.95^(1/comparisons)."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        level = 1 - mpmath.mpf(0.95) ** (mpmath.mpf(1) / comparisons)
        wanted = mpmath.sqrt(2) * mpmath.erfinv(1 - level)
    assert abs(critical_value(0.95, comparisons) / float(wanted) - 1) < 1e-14
