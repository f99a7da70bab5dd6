"""p1, q1, p2, q2 and all that follows from them are right to 1e-12, for every protocol."""

from __future__ import annotations

import decimal
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import (
    LONGITUDINAL,
    AllomfreeError,
    Calibration,
    InfeasibleBudget,
    ParameterError,
    calibrate,
    calibrate_once,
    candidates,
    choose,
    largest_eps_1,
)
from tests.support.harness import every
from tests.support.protocol import reference
from tests.support.protocol.helpers import (
    VARIANTS,
    budgets,
    near,
    relative,
)

TIGHT = 1e-12


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
@settings(max_examples=50)
@given(st.data())
def test_every_number_agrees_with_the_reference(
    variant: tuple[str, str], data: st.DataObject
) -> None:
    budget = data.draw(budgets(variant))
    f = data.draw(st.floats(0, 1))
    n, t = data.draw(st.integers(1, 10**6)), data.draw(st.integers(1, 12))
    calibration, wanted = budget.calibrate(), budget.reference()
    assert relative(calibration.p1, wanted.p1) < TIGHT
    assert relative(calibration.q1, wanted.q1) < TIGHT
    assert relative(calibration.p2, wanted.p2) < TIGHT
    assert relative(calibration.q2, wanted.q2) < TIGHT
    assert relative(calibration.gap, wanted.gap()) < TIGHT
    assert relative(calibration.epsilon_after(t), wanted.epsilon(t)) < TIGHT
    assert relative(calibration.variance(n, f), wanted.variance(n, f)) < TIGHT
    assert relative(calibration.pooled_variance(n, t, f), wanted.pooled_variance(n, t, f)) < TIGHT


# (k, the last with L-GRR) for eps_1: floor(3 e^eps_1 + 2), whatever eps_inf.
CROSSOVER = {0.1: 5, 0.3: 6, 0.5: 6, 0.6: 7, 1: 10, 1.2: 11, 1.5: 15, 2: 24, 2.4: 35, 3: 62, 4: 165}


@pytest.mark.parametrize(("eps_1", "last"), CROSSOVER.items())
def test_allomfree_changes_over_where_the_variances_cross(eps_1: float, last: int) -> None:
    for eps_inf in (eps_1 * 1.01, eps_1 + 2):
        for k, expected in ((2, "L-GRR"), (last, "L-GRR"), (last + 1, "L-OSUE")):
            chosen = calibrate("ALLOMFREE", k=k, eps_inf=eps_inf, eps_1=eps_1)
            assert chosen.protocol == expected, (k, eps_inf)


# eps_inf, eps_1: (k, what one report of the paper's L-GRR truly spends, variance paper / exact)
PAPER_SPENDS = {
    (1, 0.3): ((3, 0.253, 1.44), (16, 0.084, 15.7), (32, 0.046, 54.6), (100, 0.016, 482)),
    (2, 0.6): ((3, 0.557, 1.19), (8, 0.410, 2.53), (32, 0.182, 16.6), (100, 0.071, 124)),
    (2, 1.2): ((4, 1.103, 1.25), (5, 1.061, 1.41), (16, 0.754, 3.96), (100, 0.243, 69.8)),
    (4, 1.2): ((3, 1.188, 1.03), (8, 1.132, 1.19), (16, 1.054, 1.50), (100, 0.623, 7.1)),
    (4, 2.4): ((3, 2.387, 1.02), (5, 2.361, 1.06), (16, 2.232, 1.35), (100, 1.633, 5.6)),
    (0.5, 0.3): ((1024, 0.00196, 31_940),),
}


@pytest.mark.parametrize(("budget", "rows"), PAPER_SPENDS.items())
def test_the_papers_calibration_is_noisier_than_asked_for(
    budget: tuple[float, float], rows: tuple[tuple[int, float, float], ...]
) -> None:
    eps_inf, eps_1 = budget
    for k, spent, factor in rows:
        paper = calibrate("L-GRR", k=k, eps_inf=eps_inf, eps_1=eps_1, method="paper")
        exact = calibrate("L-GRR", k=k, eps_inf=eps_inf, eps_1=eps_1)
        places = 5 if spent < 0.01 else 3
        assert round(paper.single_report_epsilon, places) == spent
        assert near(exact.single_report_epsilon, eps_1)
        assert near(paper.variance(1) / exact.variance(1), factor, rel=0.01)


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_one_report_spends_exactly_eps_1_and_the_memo_eps_inf(protocol: str) -> None:
    c = calibrate(protocol, k=7, eps_inf=3.0, eps_1=0.7)
    assert near(c.single_report_epsilon, 0.7)
    assert near(c.epsilon_after(10**6), 3.0)
    assert abs(c.epsilon_after(0)) < 1e-70


def test_the_papers_method_changes_only_l_grr() -> None:
    for protocol in ("L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "L-SS"):
        exact = calibrate(protocol, k=7, eps_inf=3.0, eps_1=0.7)
        paper = calibrate(protocol, k=7, eps_inf=3.0, eps_1=0.7, method="paper")
        assert exact.exact == paper.exact
    two = [calibrate("L-GRR", k=2, eps_inf=3.0, eps_1=0.7, method=m) for m in ("exact", "paper")]
    assert near(two[0].p2, two[1].p2)


def test_the_callers_decimal_context_changes_nothing() -> None:
    wanted = calibrate("L-SUE", k=4, eps_inf=1.125, eps_1=0.375).epsilon_after(3)
    with decimal.localcontext(decimal.Context(prec=3)):
        got = calibrate("L-SUE", k=5, eps_inf=1.125, eps_1=0.375).epsilon_after(3)
    assert got == wanted


# --- R11: what cannot be calibrated is refused with a ValueError that names the field.


GOOD: dict[str, Any] = {"protocol": "L-OSUE", "k": 4, "eps_inf": 1.0, "eps_1": 0.5}
NOT_AN_EPSILON: tuple[Any, ...] = (
    *(0, 0.0, -0.5, 1e-10, 100.5, 1e308, math.nan, math.inf, -math.inf),
    *(True, "0.5", None, [0.5], 0.5j),
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
    for protocol in ("L-GRR", "L-SUE", "L-OSUE", "L-SS"):
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


@pytest.mark.parametrize("eps_inf", [0.001, 0.5, 2.0, 6.3297, 20.0, 100.0])
@pytest.mark.parametrize("protocol", ["L-OUE", "L-SOUE"])
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


@pytest.mark.parametrize("protocol", ["L-GRR", "L-SUE", "L-OSUE", "L-SS"])
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


# --- what `auto` is: the sizes of sets, and the least variance over all values.


def _sum_over_all(m: reference.Mechanism, rounds: int) -> reference.Real:
    return m.device_variance(True, rounds) + (m.k - 1) * m.device_variance(False, rounds)


@pytest.mark.parametrize("rounds", [1, 2, 20, 365])
@pytest.mark.parametrize(("eps_inf", "eps_1"), [(1.0, 0.3), (2.0, 0.6), (4.0, 1.2), (4.0, 2.0)])
def test_the_least_variance_is_chosen_of_sets_of_every_size_and_l_osue(
    eps_inf: float, eps_1: float, rounds: int
) -> None:
    for k in (2, 5, 6, 12, 19, 20, 41, 100, 130, 300):
        sets, osue = candidates(k=k, eps_inf=eps_inf, eps_1=eps_1)
        chosen = choose(k=k, eps_inf=eps_inf, eps_1=eps_1, rounds=rounds)
        sums = [_sum_over_all(_reference_of(each), rounds) for each in (sets, osue)]
        assert relative(float(chosen.total_variance(rounds)), min(sums)) < TIGHT, k
        assert (chosen is osue) == (sums[1] < sums[0])
        assert sets.size == reference.best_size(k, eps_1, 1, eps_inf)
        assert sets.protocol == ("L-SS" if sets.size > 1 else "L-GRR")


def _reference_of(c: Calibration) -> reference.Mechanism:
    return reference.calibrate(c.protocol, c.k, c.eps_inf, c.eps_1)


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 0.5, 1.0, 2.0, 4.0, 20.0])
@pytest.mark.parametrize("k", [2, 3, 4, 5, 16, 41, 300])
def test_sets_of_the_best_size_are_never_behind_another_or_oue(k: int, epsilon: float) -> None:
    best = calibrate_once("SS", k=k, epsilon=epsilon)
    assert near(best.epsilon_after(1), epsilon)
    oue = calibrate_once("OUE", k=k, epsilon=epsilon).total_variance()
    with decimal.localcontext(prec=80):
        sums = {}
        for size in range(1, k):
            e = decimal.Decimal(epsilon).exp()
            p = size * e / (size * e + k - size)
            q = (size - p) / (k - 1)
            sums[size] = (p * (1 - p) + (k - 1) * q * (1 - q)) / (p - q) ** 2
        assert abs(best.total_variance() / min(sums.values()) - 1) < decimal.Decimal("1e-50")
        assert sums[best.size] == min(sums.values()) <= oue


def test_sets_of_one_value_are_grr() -> None:
    sets = calibrate_once("SS", k=5, epsilon=3.0)
    grr = calibrate_once("GRR", k=5, epsilon=3.0)
    assert (sets.size, sets.exact) == (1, grr.exact)
    with pytest.raises(ParameterError, match="rounds"):
        choose(k=5, eps_inf=2.0, eps_1=0.6, rounds=0)
