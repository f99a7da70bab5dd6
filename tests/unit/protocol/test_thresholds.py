"""R02, R04: the chances a device draws with are integers over 2^64 that never overspend."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import (
    Calibration,
    Randomiser,
    Thresholds,
    as_drawn,
    calibrate,
    calibrate_once,
    thresholds,
)
from tests.support.protocol import vectors
from tests.support.protocol.budgets import VARIANTS, Budget, budget_of, budgets, feasible, relative
from tests.support.protocol.entropy import Tape, words
from tests.support.protocol.reference import Mechanism, Real, mp
from tests.support.protocol.reference import calibrate as reference_calibrate
from tests.support.protocol.shared import from_shared, shared

SCALE = 1 << 64
TOP = SCALE - 1
GRID_INF = (0.001, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 20.0)
GRID_RATIO = (0.01, 0.1, 0.3, 0.6, 0.9, 0.999)
GRID_K = (2, 3, 5, 37, 1000, 4096)


def mechanism(calibration: Calibration) -> Mechanism:
    """The mechanism that a device really runs, in exact fractions."""
    p1, q1, p2, q2 = (Fraction(t, SCALE) for t in thresholds(calibration))
    if not calibration.unary:  # a device draws with p only; the others share what is left
        q1, q2 = ((1 - p) / (calibration.k - 1) for p in (p1, p2))
    return Mechanism(calibration.unary, calibration.k, p1, q1, p2, q2)


def loss(p: Fraction, q: Fraction, unary: bool) -> Real:
    """ln of the exact worst ratio between two values."""
    ratio = p * (1 - q) / ((1 - p) * q) if unary else p / q
    return mp.log(mp.mpf(ratio.numerator) / ratio.denominator)


def losses(calibration: Calibration) -> tuple[Real, Real]:
    """(of the memo, of one report), from the integers."""
    m = mechanism(calibration)
    memo = loss(m.p1, m.q1, m.unary)
    return memo, loss(m.support(True), m.support(False), m.unary)


def check_never_overspent(budget: Budget) -> None:
    """Both for who reads the epsilons as float64 and for who reads their decimal text."""
    memo, report = losses(budget.calibrate())
    for spent, declared in ((memo, budget.eps_inf), (report, budget.eps_1)):
        assert spent <= mp.mpf(declared), budget
        assert spent <= mp.mpf(repr(declared)), budget


def grid(variant: tuple[str, str]) -> list[Budget]:
    ks = GRID_K if variant[0] == "L-GRR" else (8,)
    found = [
        feasible(variant, k, eps_inf, ratio * eps_inf)
        for eps_inf in GRID_INF
        for ratio in GRID_RATIO
        for k in ks
    ]
    return [budget for budget in found if budget is not None]


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_never_overspent_on_a_grid(variant: tuple[str, str]) -> None:
    for budget in grid(variant):
        check_never_overspent(budget)


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
@settings(max_examples=50)
@given(st.data())
def test_never_overspent(variant: tuple[str, str], data: st.DataObject) -> None:
    check_never_overspent(data.draw(budgets(variant)))


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
@settings(max_examples=50)
@given(st.data())
def test_rounding_down_to_float64_is_what_short_decimals_need(
    variant: tuple[str, str], data: st.DataObject
) -> None:
    """0.1 as text is below 0.1 as float64; epsilons people write have few digits."""
    eps_inf = data.draw(st.integers(1, 200)) / 10
    eps_1 = data.draw(st.integers(1, 99)) / 100 * eps_inf
    budget = feasible(variant, data.draw(st.integers(2, 4096)), eps_inf, round(eps_1, 3) or 0.001)
    if budget is not None and budget.eps_1 < eps_inf:
        check_never_overspent(budget)


def nominal(budget: Budget) -> Mechanism:
    """What the integers round: the calibration at the next float64 below each epsilon."""
    eps_inf, eps_1 = lower(budget.eps_inf), lower(budget.eps_1)
    return reference_calibrate(budget.protocol, budget.k, eps_inf, eps_1, budget.method)


def lower(epsilon: float) -> float:
    return math.nextafter(epsilon, 0.0)


def slope(*chances: Real) -> Real:
    """d ln(odds): the steeper end bounds it between two chances, as 1/x(1-x) is convex."""
    return max(1 / (x * (1 - x)) for x in chances)


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_what_rounding_gives_away(variant: tuple[str, str]) -> None:
    """At most 2^-64 on each chance of RR1 and 2^-63 on each of the chain, times the slope."""
    for budget in grid(variant):
        wanted, drawn = nominal(budget), mechanism(budget.calibrate())
        memo, report = losses(budget.calibrate())
        steps = slope(wanted.p1, _real(drawn.p1)) + slope(wanted.q1, _real(drawn.q1))
        assert 0 <= lower(budget.eps_inf) - memo <= steps / SCALE, budget
        chain = slope(wanted.support(True), _real(drawn.support(True)))
        chain += slope(wanted.support(False), _real(drawn.support(False)))
        assert 0 <= wanted.epsilon(1) - report <= 2 * chain / SCALE, budget


def _real(x: Fraction) -> Real:
    return mp.mpf(x.numerator) / x.denominator


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v[1] == "exact"], ids="-".join)
def test_budgets_in_use_lose_less_than_a_millionth_of_a_billionth(
    variant: tuple[str, str],
) -> None:
    """Up to eps_inf = 4 the next float64 is 4.4e-16 away and 2^-63 k adds no more than that."""
    for budget in grid(variant):
        if budget.eps_inf <= 4 and budget.eps_1 <= 0.9 * budget.eps_inf:
            memo, report = losses(budget.calibrate())
            assert budget.eps_inf - memo < 1e-15, budget
            assert budget.eps_1 - report < 1e-15, budget


def test_the_vectors() -> None:
    for entry in vectors.load("calibration.json")["longitudinal"]:
        drawn = thresholds(budget_of(entry).calibrate())
        assert [str(threshold) for threshold in drawn] == entry["thresholds"], entry


def test_the_shared_vectors_are_within_their_rounding() -> None:
    """Those are rounded to the nearest at the epsilons themselves, ours down from below them."""
    for entry in shared("thresholds"):
        drawn = thresholds(from_shared(entry))
        for ours, theirs in zip(drawn, map(int, entry["thresholds_2_64"])):
            assert abs(ours - theirs) <= SCALE * math.ulp(entry["einf"])


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_the_collector_debiases_with_what_devices_draw(variant: tuple[str, str]) -> None:
    budget = Budget(*variant, 5, 2.0, 0.6)
    drawn, m = as_drawn(budget.calibrate()), mechanism(budget.calibrate())
    for name in ("p1", "q1", "p2", "q2"):
        assert relative(getattr(drawn, name), _real(getattr(m, name))) < 1e-15
    assert relative(drawn.gap, _real(m.gap())) < 1e-15
    assert (drawn.eps_inf, drawn.eps_1, drawn.protocol) == (2.0, 0.6, budget.protocol)
    assert drawn.epsilon_after(1) <= budget.eps_1
    assert math.isclose(drawn.variance(100, 0.2), budget.calibrate().variance(100, 0.2))


def test_values_share_exactly_what_the_rounding_of_p_leaves() -> None:
    drawn = as_drawn(calibrate("L-GRR", k=5, eps_inf=20.0, eps_1=12.0)).exact
    for p, q in ((drawn.p1, drawn.q1), (drawn.p2, drawn.q2)):
        assert abs(Fraction(p) + 4 * Fraction(q) - 1) < Fraction(1, 10**75)


UNARY = calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6)
GENERALISED = calibrate("L-GRR", k=4, eps_inf=2.0, eps_1=0.6)
# threshold: the draws below it, and the draws not below it
EXTREMES = {
    0: ((), (0, 1, TOP)),
    1: ((0,), (1, TOP)),
    TOP: ((0, TOP - 1), (TOP,)),
    SCALE: ((0, TOP), ()),
}


def with_thresholds(calibration: Calibration, threshold: int, tape: Tape) -> Randomiser:
    randomiser = Randomiser(calibration, tape)
    randomiser.thresholds = Thresholds(*(threshold,) * 4)
    return randomiser


@pytest.mark.parametrize("threshold", EXTREMES)
def test_extreme_thresholds_of_bits(threshold: int) -> None:
    below, above = EXTREMES[threshold]
    for draw, bits in (*((d, 0xF0) for d in below), *((d, 0x00) for d in above)):
        tape = Tape(words(*(draw,) * 8))
        randomiser = with_thresholds(UNARY, threshold, tape)
        assert randomiser.memoize(1) == bytes([bits])
        assert randomiser.report(b"\x40") == bytes([bits])


@pytest.mark.parametrize("threshold", EXTREMES)
def test_extreme_thresholds_of_a_value(threshold: int) -> None:
    below, above = EXTREMES[threshold]
    for draw in below:
        assert with_thresholds(GENERALISED, threshold, Tape(words(draw))).memoize(2) == b"\x02"
    for draw in above:
        tape = Tape(words(draw) + b"\x00")
        assert with_thresholds(GENERALISED, threshold, tape).memoize(2) == b"\x00"


def test_extreme_budgets_have_extreme_thresholds() -> None:
    assert thresholds(calibrate("L-OSUE", k=4, eps_inf=100.0, eps_1=50.0)).q1 == 1
    assert thresholds(calibrate("L-SUE", k=4, eps_inf=100.0, eps_1=50.0)).p1 == TOP
    assert thresholds(calibrate("L-GRR", k=4, eps_inf=100.0, eps_1=99.0)).p1 == TOP
    once = thresholds(calibrate_once("OUE", k=4, epsilon=1.0))
    assert (once.p2, once.q2) == (SCALE, 0)
    limit = calibrate("L-SOUE", k=4, eps_inf=20.0, eps_1=10.69307908452972)
    assert thresholds(limit).q2 == 0
