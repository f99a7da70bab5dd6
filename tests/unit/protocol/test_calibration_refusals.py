"""R11: what cannot be calibrated is refused with a ValueError that names the field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import (
    LONGITUDINAL,
    AllomfreeError,
    Calibration,
    InfeasibleBudget,
    ParameterError,
    calibrate,
    calibrate_once,
    choose,
    largest_eps_1,
)
from tests.support.harness import every

GOOD: dict[str, Any] = {"protocol": "L-OSUE", "k": 4, "eps_inf": 1.0, "eps_1": 0.5}
NOT_AN_EPSILON: tuple[Any, ...] = (
    0,
    0.0,
    -0.5,
    1e-10,
    100.5,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    True,
    "0.5",
    None,
    [0.5],
    0.5j,
)
NOT_A_DOMAIN: tuple[Any, ...] = (-1, 0, 1, 65_537, 10**30, 2.0, math.nan, "4", None, True)


def refused(**change: Any) -> ParameterError:
    """The error of a good calibration with one parameter changed, whichever protocol it is."""
    with pytest.raises(ParameterError) as caught:
        calibrate(**{**GOOD, **change})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AllomfreeError)
    return caught.value


@pytest.mark.parametrize("protocol", [*LONGITUDINAL, "ALLOMFREE"])
@every("value", NOT_AN_EPSILON, ids=repr)
def test_an_epsilon_that_is_none(protocol: str, value: Any) -> None:
    for field in ("eps_inf", "eps_1"):
        error = refused(protocol=protocol, **{field: value})
        assert error.field == field
        assert str(error).startswith(f"{field} = {value!r}: ")
        assert error.remedy


@pytest.mark.parametrize("protocol", [*LONGITUDINAL, "ALLOMFREE"])
@pytest.mark.parametrize("eps_1", [1.0, math.nextafter(1.0, 2.0), 1.5, 100])
def test_eps_1_not_below_eps_inf(protocol: str, eps_1: float) -> None:
    error = refused(protocol=protocol, eps_1=eps_1)
    assert error.field == "eps_1"
    assert "eps_inf = 1.0" in str(error)


@pytest.mark.parametrize("protocol", [*LONGITUDINAL, "ALLOMFREE"])
@every("k", NOT_A_DOMAIN, ids=repr)
def test_a_domain_that_is_none(protocol: str, k: Any) -> None:
    error = refused(protocol=protocol, k=k)
    assert (error.field, error.value) == ("k", k)


@pytest.mark.parametrize("protocol", ["GRR", "l-grr", "", "L-ZUE", None])
def test_an_unknown_protocol(protocol: Any) -> None:
    error = refused(protocol=protocol)
    assert error.field == "protocol"
    assert all(name in error.remedy for name in LONGITUDINAL)


@pytest.mark.parametrize("method", ["", "Exact", None])
def test_an_unknown_method(method: Any) -> None:
    assert refused(method=method).field == "method"
    with pytest.raises(ParameterError, match="method"):
        choose(k=4, eps_inf=1.0, eps_1=0.5, method=method)


@every("value", NOT_AN_EPSILON, ids=repr)
def test_one_time_protocols_refuse_the_same(value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        calibrate_once("GRR", k=4, epsilon=value)
    assert caught.value.field == "epsilon"
    with pytest.raises(ParameterError, match="protocol"):
        calibrate_once("L-GRR", k=4, epsilon=1.0)
    with pytest.raises(ParameterError, match="eps_inf"):
        largest_eps_1("L-OUE", eps_inf=value)


def test_the_smallest_and_largest_that_are_accepted() -> None:
    for protocol in ("L-GRR", "L-SUE", "L-OSUE"):
        for k in (2, 65_536):
            calibrate(protocol, k=k, eps_inf=100, eps_1=1e-9)
            calibrate(protocol, k=k, eps_inf=math.nextafter(1e-9, 1.0), eps_1=1e-9)


@given(
    protocol=st.sampled_from(["L-GRR", "L-OUE"]),
    k=st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    eps_inf=st.one_of(st.none(), st.booleans(), st.integers(-200, 200), st.floats(), st.text()),
    eps_1=st.one_of(st.none(), st.booleans(), st.integers(-200, 200), st.floats(), st.text()),
)
def test_anything_is_calibrated_or_refused_by_name(
    protocol: str, k: Any, eps_inf: Any, eps_1: Any
) -> None:
    try:
        outcome: Any = calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1)
    except ParameterError as error:
        outcome = error
    if isinstance(outcome, Calibration):
        assert 0 <= outcome.q2 < outcome.p2 <= 1
    else:
        assert outcome.field in ("k", "eps_inf", "eps_1")


# The table of limits, to its four printed digits.
LIMITS = {
    "L-OUE": (0.0678, 0.3594, 0.7634, 1.6600, 2.6191, 3.6037, 5.5958, 7.5947),
    "L-SOUE": (0.0667, 0.3329, 0.6636, 1.3106, 1.9299, 2.5191, 3.6228, 4.6663),
}
ALSO = (0.001, 0.37, 6.3297, 20.0, 100.0)


@pytest.mark.parametrize("protocol", LIMITS)
def test_the_limits_of_optimised_second_steps(protocol: str) -> None:
    for eps_inf, printed in zip((0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0), LIMITS[protocol]):
        assert round(largest_eps_1(protocol, eps_inf=eps_inf), 4) == printed


@pytest.mark.parametrize("eps_inf", [0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, *ALSO])
@pytest.mark.parametrize("protocol", LIMITS)
def test_the_limit_is_accepted_and_all_above_refused(protocol: str, eps_inf: float) -> None:
    limit = largest_eps_1(protocol, eps_inf=eps_inf)
    reached = calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=limit)
    assert reached.q2 < 1e-15
    assert math.isclose(reached.single_report_epsilon, limit, rel_tol=1e-15)
    for above in (math.nextafter(limit, math.inf), (limit + eps_inf) / 2):
        with pytest.raises(InfeasibleBudget) as caught:
            calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=above)
        assert caught.value.field == "eps_1"
        assert caught.value.largest == limit
        assert repr(limit) in str(caught.value)
        assert protocol in str(caught.value)
        calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=caught.value.largest)


def test_sixty_per_cent_is_not_always_feasible() -> None:
    calibrate("L-SOUE", k=5, eps_inf=6.3, eps_1=0.6 * 6.3)
    with pytest.raises(InfeasibleBudget):
        calibrate("L-SOUE", k=5, eps_inf=6.4, eps_1=0.6 * 6.4)


@pytest.mark.parametrize("protocol", ["L-GRR", "L-SUE", "L-OSUE"])
def test_the_others_reach_everything_below_eps_inf(protocol: str) -> None:
    for eps_inf in (0.001, 1.0, 20.0):
        limit = largest_eps_1(protocol, eps_inf=eps_inf)
        assert limit == math.nextafter(eps_inf, 0.0)
        calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=limit)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda c: c.variance(0), "n"),
        (lambda c: c.variance(5, -0.1), "f"),
        (lambda c: c.variance(5, 1.1), "f"),
        (lambda c: c.variance(5, math.nan), "f"),
        (lambda c: c.pooled_variance(0, 1), "n"),
        (lambda c: c.pooled_variance(1, 0), "rounds"),
        (lambda c: c.device_variance(True, 0), "rounds"),
        (lambda c: c.epsilon_after(-1), "reports"),
    ],
)
def test_questions_that_make_no_sense(call: Any, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        call(calibrate(**GOOD))
    assert caught.value.field == field
