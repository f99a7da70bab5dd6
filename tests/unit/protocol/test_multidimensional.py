"""Spl and Smp: the paper's variances for many attributes, and why one per device is best."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import (
    LONGITUDINAL,
    ONE_TIME,
    ParameterError,
    calibrate,
    largest_eps_1,
    smp_variance,
    smp_variance_once,
    spl_variance,
)
from tests.support.protocol.budgets import near


def printed(protocol: str, k: int, n: int, d: int, r: int, epsilon: float) -> float:
    """Eq. var_smp of the paper; var_spl is the case r = d."""
    e = math.exp(epsilon / r)
    root = math.exp(epsilon / 2 / r)
    numerator = {"GRR": e + k - 2, "SUE": root, "OUE": 4 * e}[protocol]
    return d * numerator / (n * r * ((root if protocol == "SUE" else e) - 1) ** 2)


@pytest.mark.parametrize("protocol", ONE_TIME)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize(("d", "r"), [(1, 1), (5, 1), (5, 2), (5, 5), (33, 7)])
def test_the_papers_formulas(protocol: str, epsilon: float, d: int, r: int) -> None:
    for k in (2, 7, 100):
        got = smp_variance_once(protocol, k=k, n=1000, d=d, r=r, epsilon=epsilon)
        assert near(got, printed(protocol, k, 1000, d, r, epsilon), rel=1e-11)


@given(
    protocol=st.sampled_from(ONE_TIME),
    k=st.integers(2, 500),
    d=st.integers(2, 40),
    epsilon=st.floats(0.1, 10),
    data=st.data(),
)
def test_one_attribute_is_best(
    protocol: str, k: int, d: int, epsilon: float, data: st.DataObject
) -> None:
    r = data.draw(st.integers(2, d))
    one, more = (
        smp_variance_once(protocol, k=k, n=100, d=d, r=attributes, epsilon=epsilon)
        for attributes in (1, r)
    )
    assert one < more


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_one_attribute_is_best_over_time_too(protocol: str) -> None:
    eps_1 = 0.9 * largest_eps_1(protocol, eps_inf=0.5)
    variances = [
        smp_variance(protocol, k=6, n=100, d=5, r=r, eps_inf=0.5, eps_1=eps_1) for r in range(1, 6)
    ]
    assert variances == sorted(variances)


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_splitting_is_sampling_all(protocol: str) -> None:
    whole: dict[str, Any] = {"k": 6, "n": 100, "d": 4, "f": 0.2, "eps_inf": 2.0, "eps_1": 0.6}
    split = spl_variance(protocol, **whole)
    sampled = smp_variance(protocol, r=4, **whole)
    assert split == sampled
    quarter = calibrate(protocol, k=6, eps_inf=0.5, eps_1=0.15)
    assert near(split, quarter.variance(100, 0.2))


def test_sampling_leaves_fewer_devices_to_each_attribute() -> None:
    for method in ("exact", "paper"):
        budget: dict[str, Any] = {"k": 9, "eps_inf": 2.0, "eps_1": 0.6, "method": method}
        got = smp_variance("L-GRR", n=700, d=7, f=0.1, **budget)
        fewer = calibrate("L-GRR", **budget)
        assert near(got, fewer.variance(100, 0.1))


@pytest.mark.parametrize(("d", "r", "field"), [(0, 1, "d"), (3, 0, "r"), (3, 4, "r")])
def test_impossible_numbers_of_attributes(d: int, r: int, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        smp_variance("L-OSUE", k=4, n=10, d=d, r=r, eps_inf=1.0, eps_1=0.5)
    assert caught.value.field == field
    with pytest.raises(ParameterError) as caught:
        smp_variance_once("OUE", k=4, n=10, d=d, r=r, epsilon=1.0)
    assert caught.value.field == field
