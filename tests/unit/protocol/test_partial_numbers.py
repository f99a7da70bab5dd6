"""Numbers of the devices that gave one, where the last value of a histogram is none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from protocol_spec import (
    NOT_KNOWN,
    RESULT_QUANTILES,
    Attribute,
    ParameterError,
    as_drawn,
    calibrate,
)
from protocol_spec.attributes import bin_labels
from protocol_spec.estimation import (
    Estimate,
    PartialMean,
    binning_bias,
    cdf,
    contrast,
    covariance,
    critical_value,
    estimate,
    half_widths,
    mean,
    median,
    midpoints,
    numbers_of,
    quantile,
    smallest_difference,
)

INF = math.inf
EDGES = (0.0, 10.0, 20.0, 40.0, 80.0)
F = np.array([0.08, 0.32, 0.24, 0.16, 0.2])  # four bins, and a fifth of devices without a number
AMONG = F[:4] / F[:4].sum()
protocols = pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])


def estimated(n: int = 100_000, protocol: str = "L-GRR", raw: object = F) -> Estimate:
    c = as_drawn(calibrate(protocol, k=5, eps_inf=4.0, eps_1=2.0))
    return replace(estimate([n // 5] * 5, n, c), raw=np.asarray(raw))


def attribute(*edges: float, low: float | None = None, high: float | None = None) -> Attribute:
    labels = bin_labels(edges, "")
    if not math.isinf(edges[0]) or not math.isinf(edges[-1]):
        labels = (*labels, NOT_KNOWN)
    return Attribute("x", "?", labels, edges, low=low, high=high)


@protocols
def test_a_mean_among_those_who_gave_a_number(protocol: str) -> None:
    middle = midpoints(EDGES)
    got = mean(estimated(protocol=protocol), middle)
    assert isinstance(got, PartialMean)
    assert got.value == pytest.approx(float(AMONG @ middle))
    low, high = got.interval()
    assert got.smallest < low < got.value < high < got.largest
    half = got.half_width()
    assert (high - low) / 2 == pytest.approx(half, rel=1e-3), "with many devices, as to first order"


@protocols
def test_its_error_is_that_of_the_weighted_sum_it_is(protocol: str) -> None:
    """To first order a ratio is a weighted sum, with weights (c - ratio) / share."""
    e, middle = estimated(5000, protocol), midpoints(EDGES)
    got = mean(e, middle)
    weights = np.append((middle - got.value) / F[:4].sum(), 0.0)
    as_sum = contrast(e, weights)
    assert got.privacy_variance == pytest.approx(as_sum.privacy_variance)
    assert got.sampling_variance == pytest.approx(as_sum.sampling_variance)


@pytest.mark.parametrize("shift", [0.0, 1000.0, -3.5])
def test_a_mean_moves_with_its_scale(shift: float) -> None:
    e, middle = estimated(3000), midpoints(EDGES)
    plain, moved = mean(e, middle), mean(e, middle * 2.0 + shift)
    assert moved.value == pytest.approx(2.0 * plain.value + shift)
    ends = [2.0 * end + shift for end in plain.interval()]
    assert moved.interval() == pytest.approx(ends)


@protocols
def test_the_ends_are_where_the_sum_could_be_nothing(protocol: str) -> None:
    """Fieller: the sum with weights c - r is z standard errors from 0 at both ends."""
    e, middle = estimated(1500, protocol), midpoints(EDGES)
    for end in mean(e, middle).interval(0.9):
        at = contrast(e, np.append(middle - end, 0.0))
        assert abs(at.value) == pytest.approx(critical_value(0.9) * at.standard_error())


@protocols
def test_a_distribution_among_those_who_gave_a_number(protocol: str) -> None:
    e = estimated(5000, protocol, [0.15, 0.35, -0.1, 0.4, 0.25])
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
        got = cdf(estimated(n), 4)
        low, high = got.band()
        assert ((low >= 0.0) & (low <= got.values) & (got.values <= high) & (high <= 1.0)).all()
    np.testing.assert_allclose(cdf(estimated(), 4).values, np.cumsum(AMONG)[:-1])


def test_without_the_devices_that_gave_none_it_is_the_same() -> None:
    """A share of exactly 1 below the line is no line at all."""
    e = replace(estimated(), raw=np.append(AMONG, 0.0))
    known = cdf(e, 4)
    assert known.ratio.share == pytest.approx(1.0)
    np.testing.assert_allclose(known.values, cdf(e).values[:3])


def test_quantiles_among_those_who_gave_a_number() -> None:
    e = estimated(10**9)
    got = median(e, EDGES)
    assert got.value == pytest.approx(20.0)
    assert (got.low, got.high) == (10.0, 40.0)
    assert quantile(e, EDGES, 0.3).value == pytest.approx(15.0)
    assert quantile(e, (-INF, *EDGES[1:]), 0.05).value is None


@pytest.mark.parametrize("share", [0.0, -0.3, 0.001])
def test_where_hardly_anyone_gave_a_number_everything_is_possible(share: float) -> None:
    e = estimated(300, raw=[share, 0.0, 0.0, 0.0, 1.0 - share])
    got = mean(e, midpoints(EDGES))
    assert got.interval() == (5.0, 60.0)
    low, high = cdf(e, 4).band()
    assert (low == 0.0).all()
    assert (high == 1.0).all()
    assert numbers_of(e, attribute(*EDGES)) is None


@pytest.mark.parametrize("bins", [3, 6, 0])
def test_bins_are_as_many_as_values_or_one_less(bins: int) -> None:
    with pytest.raises(ParameterError, match="edges"):
        cdf(estimated(), bins)
    with pytest.raises(ParameterError, match="edges"):
        mean(estimated(), [1.0] * bins)


# --- what a result says --------------------------------------------------------------------------


def test_half_widths_are_those_of_the_worst_pair() -> None:
    e = estimated(1000)
    assert tuple(half_widths(e)) == tuple(smallest_difference(e))


def test_named_values_have_no_numbers() -> None:
    assert numbers_of(estimated(), Attribute("x", "?", tuple("abcde"))) is None


def test_numbers_with_finite_ends() -> None:
    e, found = estimated(2000), numbers_of(estimated(2000), attribute(*EDGES))
    assert found is not None
    middle = mean(e, midpoints(EDGES))
    assert (found.mean, found.mean_bias) == (middle.value, binning_bias(EDGES))
    assert (found.mean_low, found.mean_high) == middle.interval()
    low, high = cdf(e, 4).band()
    assert (found.cdf_low, found.cdf_high) == (tuple(low), tuple(high))
    assert [row.tau for row in found.quantiles] == list(RESULT_QUANTILES)
    for row in found.quantiles:
        wanted = quantile(e, EDGES, row.tau)
        assert (row.value, row.low, row.high) == (wanted.value, wanted.low, wanted.high)


def test_numbers_without_ends() -> None:
    """All five values are bins; a mean only where the author said how far they reach."""
    open_ended = (-INF, 10.0, 20.0, 40.0, 80.0, INF)
    e = estimated(10**9)
    without = numbers_of(e, attribute(*open_ended))
    assert without is not None
    assert (without.mean, without.mean_low, without.mean_high, without.mean_bias) == (None,) * 4
    assert len(without.cdf) == 4
    assert (without.quantiles[0].low, without.quantiles[-1].high) == (10.0, None)
    half = numbers_of(e, attribute(*open_ended, low=0.0))
    assert half == without
    stated = numbers_of(e, attribute(*open_ended, low=0.0, high=100.0))
    assert stated is not None
    assert stated.mean == pytest.approx(float(F @ [5.0, 15.0, 30.0, 60.0, 90.0]))
    assert stated.mean_bias == 20.0
    assert (stated.cdf, stated.quantiles) == (without.cdf, without.quantiles)
