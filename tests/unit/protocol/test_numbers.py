"""Mean, distribution function and quantiles of binned numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from protocol_spec import ParameterError, as_drawn, calibrate
from protocol_spec.estimation import (
    Estimate,
    binning_bias,
    cdf,
    contrast,
    critical_value,
    estimate,
    mean,
    median,
    midpoints,
    quantile,
)

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


def test_the_band_stays_between_0_and_1() -> None:
    low, high = cdf(estimated(50)).band()
    assert (low >= 0).all()
    assert (high <= 1).all()
    assert (low < high).all()


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


def test_fewer_devices_and_several_quantiles_have_wider_intervals() -> None:
    few = estimated(200)
    alone, together = (quantile(few, EDGES, 0.3, simultaneous=s) for s in (False, True))
    assert alone.low <= 10.0
    assert alone.high >= 20.0
    assert together.low <= alone.low
    assert alone.high <= together.high
    assert median(few, EDGES).high >= median(estimated(), EDGES).high


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
