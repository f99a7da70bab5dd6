"""R05: eps_t is the largest log-ratio over every sequence of t reports, found by enumeration."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations_with_replacement, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import LONGITUDINAL, calibrate
from tests.support.protocol.budgets import VARIANTS, Budget, budgets
from tests.support.protocol.reference import Mechanism, Real, mp

BUDGETS = ((0.5, 0.15), (2.0, 0.6), (2.0, 1.2), (4.0, 0.4))
Answer = int


@cache
def memo_chances(m: Mechanism, value: int) -> dict[Answer, Real]:
    """Chance of every memo: an index for GRR, a k-bit number for UE."""
    if not m.unary:
        return {memo: m.p1 if memo == value else m.q1 for memo in range(m.k)}
    return {memo: _bits(memo, 1 << value, m.k, m.p1, m.q1) for memo in range(1 << m.k)}


@cache
def report_chances(m: Mechanism, memo: Answer) -> dict[Answer, Real]:
    """Chance of every report drawn from a memo."""
    if not m.unary:
        return {answer: m.p2 if answer == memo else m.q2 for answer in range(m.k)}
    return {answer: _bits(answer, memo, m.k, m.p2, m.q2) for answer in range(1 << m.k)}


def _bits(answer: int, truth: int, k: int, p: Real, q: Real) -> Real:
    chance = mp.mpf(1)
    for i in range(k):
        one = p if truth >> i & 1 else q
        chance *= one if answer >> i & 1 else 1 - one
    return chance


def sequence_chance(m: Mechanism, value: int, sequence: tuple[Answer, ...]) -> Real:
    """The memo is unknown: a sum over all of them of the product over the reports."""
    return mp.fsum(
        chance * mp.fprod(report_chances(m, memo)[answer] for answer in sequence)
        for memo, chance in memo_chances(m, value).items()
    )


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
    answers = range(1 << m.k if m.unary else m.k)
    return largest_log_ratio(m, list(combinations_with_replacement(answers, t)))


def by_position(m: Mechanism, t: int) -> Real:
    """For UE: values v and v' differ in two positions, and positions are independent."""
    one, zero = ({s: m.supports(holds, t)[sum(s)] for s in _columns(t)} for holds in (True, False))
    ratios = [one[s] / zero[s] for s in _columns(t)]
    return mp.log(max(ratios)) - mp.log(min(ratios))


def _columns(t: int) -> list[tuple[int, ...]]:
    return list(product((0, 1), repeat=t))


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


UNARY = ("L-OUE", "L-SUE", "L-OSUE", "L-SOUE")


@pytest.mark.parametrize(("eps_inf", "eps_1"), BUDGETS)
@pytest.mark.parametrize("protocol", UNARY)
def test_unary_by_plain_enumeration(protocol: str, eps_inf: float, eps_1: float) -> None:
    """Every sequence of whole k-bit reports, nothing assumed but that order does not matter."""
    for k, t in ((2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (4, 1)):
        budget = Budget(protocol, "exact", k, eps_inf, eps_1)
        wanted = enumerated(budget.reference(), t)
        check(budget, t, wanted)
        assert abs(by_position(budget.reference(), t) - wanted) < 1e-60


@pytest.mark.parametrize(("eps_inf", "eps_1"), BUDGETS)
@pytest.mark.parametrize("protocol", UNARY)
def test_unary_by_position(protocol: str, eps_inf: float, eps_1: float) -> None:
    """k = 3 and 4 up to t = 4, with the independence that the plain enumeration confirmed."""
    for k in (3, 4):
        budget = Budget(protocol, "exact", k, eps_inf, eps_1)
        for t in (1, 2, 3, 4):
            check(budget, t, by_position(budget.reference(), t))


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


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_order_does_not_matter(protocol: str) -> None:
    m = Budget(protocol, "exact", 3, 2.0, 0.6).reference()
    for sequence in ((0, 1, 2), (2, 2, 1)):
        chances = [sequence_chance(m, 0, order) for order in permutations(sequence)]
        assert max(chances) - min(chances) < 1e-70


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


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_the_limit_is_eps_inf(variant: tuple[str, str]) -> None:
    for eps_inf, eps_1 in BUDGETS:
        calibration = Budget(*variant, 4, eps_inf, eps_1).calibrate()
        epsilons = [calibration.epsilon_after(t) for t in range(1, 200)]
        assert all(low < high or math.isclose(high, eps_inf) for low, high in pairwise(epsilons))
        assert math.isclose(calibration.epsilon_after(10**9), eps_inf, rel_tol=1e-15)


# protocol, k, eps_inf, eps_1, {t: exact eps_t}: the printed table, which t x eps_1 understates.
TABLE = (
    ("L-OSUE", 8, 2, 0.2, {2: 0.397, 5: 0.943, 10: 1.584}),
    ("L-GRR", 2, 2, 0.2, {2: 0.397, 5: 0.943, 10: 1.584}),
    ("L-GRR", 5, 2, 0.2, {2: 0.411, 5: 1.038, 10: 1.727}),
    ("L-GRR", 32, 2, 0.2, {2: 0.525, 5: 1.654, 10: 1.994}),
    ("L-GRR", 32, 2, 0.6, {2: 1.480, 5: 1.997, 10: 2.000}),
    ("L-OUE", 8, 4, 0.4, {2: 0.823, 5: 2.120, 10: 3.595}),
)


@pytest.mark.parametrize(("protocol", "k", "eps_inf", "eps_1", "row"), TABLE)
def test_the_printed_table(
    protocol: str, k: int, eps_inf: float, eps_1: float, row: dict[int, float]
) -> None:
    calibration = calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1)
    for t, printed in row.items():
        assert round(calibration.epsilon_after(t), 3) == printed


def test_t_times_eps_1_is_no_bound() -> None:
    assert calibrate("L-GRR", k=32, eps_inf=2, eps_1=0.2).epsilon_after(5) > 5 * 0.2
    assert calibrate("L-OUE", k=8, eps_inf=4, eps_1=0.4).epsilon_after(5) > 5 * 0.4
    for protocol in ("L-OSUE", "L-SUE"):
        assert calibrate(protocol, k=8, eps_inf=2, eps_1=0.2).epsilon_after(5) < 5 * 0.2


@pytest.mark.parametrize("protocol", [p for p in LONGITUDINAL if p != "L-GRR"])
def test_the_domains_size_does_not_matter_to_unary_protocols(protocol: str) -> None:
    small, large = (calibrate(protocol, k=k, eps_inf=2, eps_1=0.6) for k in (2, 4096))
    assert small.epsilon_after(7) == large.epsilon_after(7)
