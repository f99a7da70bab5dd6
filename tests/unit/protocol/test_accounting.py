"""The ledger adds up, never shows less than was spent, and says it in odds people understand."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import (
    LONGITUDINAL,
    ParameterError,
    calibrate,
    largest_shift,
    lifetime_odds,
    report_odds,
    spending,
)
from tests.support.protocol.helpers import VARIANTS, Budget, budgets
from tests.support.protocol.reference import Mechanism, Real, mp
from tests.support.protocol.reference import calibrate as _reference

GRR = calibrate("L-GRR", k=5, eps_inf=2.0, eps_1=0.2)


def test_nothing_drawn_is_nothing_spent() -> None:
    spent = spending(GRR, [])
    assert (spent.memos, spent.reports, spent.exact, spent.charged) == (0, 0, 0.0, 0.0)


@pytest.mark.parametrize("reports", [1, 5, 10])
def test_one_memo_costs_eps_t_and_is_charged_eps_inf(reports: int) -> None:
    spent = spending(GRR, [reports])
    assert (spent.memos, spent.reports) == (1, reports)
    assert spent.exact == GRR.epsilon_after(reports)
    assert spent.charged == 2.0


def test_a_memo_is_charged_in_full_before_its_first_report() -> None:
    spent = spending(GRR, [0])
    assert spent.charged == 2.0
    assert abs(spent.exact) < 1e-70


def test_each_value_is_charged_for_itself() -> None:
    spent = spending(GRR, [1, 0, 7])
    assert (spent.memos, spent.reports) == (3, 8)
    assert math.isclose(spent.exact, 0.2 + GRR.epsilon_after(7))
    assert spent.charged == 6.0


def test_a_negative_number_of_reports_is_refused() -> None:
    with pytest.raises(ParameterError, match="reports"):
        spending(GRR, [3, -1])


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
@settings(max_examples=50)
@given(st.data())
def test_what_is_charged_is_never_below_what_is_spent(
    variant: tuple[str, str], data: st.DataObject
) -> None:
    """Also after so many reports that eps_t has rounded to eps_inf."""
    calibration = data.draw(budgets(variant)).calibrate()
    counts = data.draw(st.lists(st.integers(1, 10**9), max_size=6))
    spent = spending(calibration, counts)
    assert spent.exact <= spent.charged == len(counts) * calibration.eps_inf


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_odds_are_the_chances(protocol: str) -> None:
    calibration = calibrate(protocol, k=5, eps_inf=2.0, eps_1=0.6)
    one, life = report_odds(calibration), lifetime_odds(calibration)
    assert (one.if_true, one.if_false) == (calibration.ps, calibration.qs)
    assert (life.if_true, life.if_false) == (calibration.p1, calibration.q1)


@pytest.mark.parametrize(("epsilon", "factor"), [(0.0, "1"), (math.log(3), "3"), (2.0, "7.39")])
def test_the_largest_shift_in_words(epsilon: float, factor: str) -> None:
    assert f"at most {factor}" in largest_shift(epsilon)


def test_a_shift_that_bounds_nothing_is_called_so() -> None:
    assert largest_shift(20.0) == "without a useful bound"


# --- R05: eps_t is the largest log-ratio over every sequence of t reports, found by enumeration.


BUDGETS = ((0.5, 0.15), (2.0, 0.6), (2.0, 1.2), (4.0, 0.4))
Answer = int


@cache
def memo_chances(m: Mechanism, value: int) -> dict[Answer, Real]:
    """Chance of every memo: one value for sets, a k-bit number for UE."""
    if not m.unary:
        return {1 << memo: m.p1 if memo == value else m.q1 for memo in range(m.k)}
    return {memo: _bits(memo, 1 << value, m.k, m.p1, m.q1) for memo in range(1 << m.k)}


@cache
def report_chances(m: Mechanism, memo: Answer) -> dict[Answer, Real]:
    """Chance of every report drawn from a memo."""
    if not m.unary:
        having, lacking = math.comb(m.k - 1, m.size - 1), math.comb(m.k - 1, m.size)
        return {
            answer: m.p2 / having if answer & memo else (1 - m.p2) / lacking
            for answer in range(1 << m.k)
            if answer.bit_count() == m.size
        }
    return {answer: _bits(answer, memo, m.k, m.p2, m.q2) for answer in range(1 << m.k)}


def _bits(answer: int, truth: int, k: int, p: Real, q: Real) -> Real:
    chance = mp.mpf(1)
    for i in range(k):
        one = p if truth >> i & 1 else q
        chance *= one if answer >> i & 1 else 1 - one
    return chance


def largest_log_ratio(m: Mechanism, sequences: list[tuple[Answer, ...]]) -> Real:
    """The sums of `sequence_chance`, whose products are the same whatever the value."""
    values = [memo_chances(m, value) for value in range(m.k)]
    reports = {memo: report_chances(m, memo) for memo in values[0]}
    worst = mp.mpf(0)
    for sequence in sequences:
        given = {memo: mp.fprod(map(row.get, sequence)) for memo, row in reports.items()}
        chances = [
            mp.fsum(chance * given[memo] for memo, chance in memos.items()) for memos in values
        ]
        worst = max(worst, max(chances) / min(chances))
    return mp.log(worst)


def enumerated(m: Mechanism, t: int) -> Real:
    """Over every multiset of t answers: reports of one memo are exchangeable."""
    answers = report_chances(m, 1)
    return largest_log_ratio(m, list(combinations_with_replacement(answers, t)))


def check(budget: Budget, t: int, wanted: Real) -> None:
    got = budget.calibrate().epsilon_after(t)
    assert abs(got - wanted) <= 1e-12 * wanted, (budget, t)


@pytest.mark.parametrize(("eps_inf", "eps_1"), BUDGETS)
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("method", ["exact", "paper"])
def test_generalised_response(method: str, k: int, eps_inf: float, eps_1: float) -> None:
    budget = Budget("L-GRR", method, k, eps_inf, eps_1)
    for t in (1, 2, 3, 4):
        check(budget, t, enumerated(budget.reference(), t))


@pytest.mark.parametrize(("eps_inf", "eps_1"), [*BUDGETS, (1.0, 0.05)])
@pytest.mark.parametrize("k", [2, 4, 5, 6, 7])
def test_sets_by_enumeration(k: int, eps_inf: float, eps_1: float) -> None:
    """Every multiset of up to four sets; sizes are 1 to 3."""
    budget = Budget("L-SS", "exact", k, eps_inf, eps_1)
    for t in (1, 2, 3, 4)[: 4 if k < 6 else 3]:
        check(budget, t, enumerated(budget.reference(), t))


@pytest.mark.parametrize("k", [41, 300])
def test_of_many_sets_the_second_value_may_be_in_some(k: int) -> None:
    """Where sets are large, the worst case is not that it is in none of them."""
    c, m = calibrate("L-SS", k=k, eps_inf=6.0, eps_1=0.5), _reference("L-SS", k, 6.0, 0.5)
    told = [m._told(40, w) for w in range(40)]
    assert max(told) > told[0]
    assert math.isclose(c.epsilon_after(40), mp.log(max(told)), rel_tol=1e-12)


UNARY = ("L-OUE", "L-SUE", "L-OSUE", "L-SOUE")


@pytest.mark.parametrize(("eps_inf", "eps_1"), BUDGETS)
@pytest.mark.parametrize("protocol", UNARY)
def test_unary_by_plain_enumeration(protocol: str, eps_inf: float, eps_1: float) -> None:
    """Every sequence of whole k-bit reports, nothing assumed but that order does not matter."""
    for k, t in ((2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (4, 1)):
        budget = Budget(protocol, "exact", k, eps_inf, eps_1)
        check(budget, t, enumerated(budget.reference(), t))


@pytest.mark.parametrize(("eps_inf", "eps_1"), BUDGETS)
@pytest.mark.parametrize("protocol", UNARY)
def test_unary_by_enumeration_of_all_ordered_sequences(
    protocol: str, eps_inf: float, eps_1: float
) -> None:
    """The rest of k <= 4, t <= 4, up to 65 536 sequences; float64 is good for 1e-12 here."""
    for k, t in ((3, 3), (3, 4), (4, 2), (4, 3), (4, 4)):
        budget = Budget(protocol, "exact", k, eps_inf, eps_1)
        check(budget, t, all_sequences(budget.reference(), t))


def all_sequences(m: Mechanism, t: int) -> float:
    answers = range(1 << m.k)
    memo = np.array([[float(memo_chances(m, v)[b]) for b in answers] for v in range(m.k)])
    report = np.array([[float(report_chances(m, b)[y]) for y in answers] for b in answers])
    joint = memo  # [value, memo, report 1, ..., report t]
    for _ in range(t):
        joint = joint[..., None] * report[(slice(None), *(None,) * (joint.ndim - 2))]
    chances = joint.sum(axis=1)
    return float(np.log((chances.max(axis=0) / chances.min(axis=0)).max()))


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
@settings(max_examples=50)
@given(st.data())
def test_it_rises_with_every_report_and_never_above_eps_inf(
    variant: tuple[str, str], data: st.DataObject
) -> None:
    budget = data.draw(budgets(variant))
    calibration = budget.calibrate()
    epsilons = [calibration.epsilon_after(t) for t in (1, 2, 3, 5, 10, 100, 10_000)]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] <= budget.eps_inf
    # The paper's L-GRR spends less than eps_1; at the limit of L-OUE the float64 may round up.
    assert epsilons[0] <= budget.eps_1


def test_t_times_eps_1_is_no_bound() -> None:
    assert calibrate("L-GRR", k=32, eps_inf=2, eps_1=0.2).epsilon_after(5) > 5 * 0.2
    assert calibrate("L-OUE", k=8, eps_inf=4, eps_1=0.4).epsilon_after(5) > 5 * 0.4
    for protocol in ("L-OSUE", "L-SUE"):
        assert calibrate(protocol, k=8, eps_inf=2, eps_1=0.2).epsilon_after(5) < 5 * 0.2


@pytest.mark.parametrize("protocol", UNARY)
def test_the_domains_size_does_not_matter_to_unary_protocols(protocol: str) -> None:
    small, large = (calibrate(protocol, k=k, eps_inf=2, eps_1=0.6) for k in (2, 4096))
    assert small.epsilon_after(7) == large.epsilon_after(7)
