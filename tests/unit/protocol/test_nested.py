"""Gradual release: the first t reports together tell e_t, by enumeration with exact fractions."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product

import pytest

from protocol_spec import ParameterError, as_drawn, calibrate, calibrate_once, choose
from protocol_spec.mechanisms import Nested, NestedRandomiser, gradual_levels, nested_thresholds
from tests.support.protocol import exact
from tests.support.protocol.entropy import Tape, words
from tests.support.protocol.reference import mp

SCHEDULES = ((0.6, 1.2, 2.0), (0.1, 0.3, 1.0), (0.5, 3.9, 4.0))
Law = dict[object, Fraction]


def joint(nested: Nested, value: int) -> Law:
    """Chance of every (level 1, ..., level G), from the integers."""
    unary, k = nested.levels[-1].unary, nested.k
    laws: dict[tuple[int, ...], Fraction] = {(exact.true_answer(unary, value),): Fraction(1)}
    for step in reversed(nested_thresholds(nested)):
        laws = {
            (lower, *above): chance * p
            for above, chance in laws.items()
            for lower, p in exact.response(unary, k, step, above[0]).items()
        }
    found: Law = {}
    for answers, chance in laws.items():  # without the value itself, which stands last
        found[answers[:-1]] = found.get(answers[:-1], Fraction(0)) + chance
    return found


def first(law: Law, t: int) -> Law:
    """Of the first t reports."""
    found: Law = {}
    for answers, chance in law.items():
        assert isinstance(answers, tuple)
        found[answers[:t]] = found.get(answers[:t], Fraction(0)) + chance
    return found


def alone(law: Law, t: int) -> Law:
    """Of report t by itself."""
    found: Law = {}
    for answers, chance in law.items():
        assert isinstance(answers, tuple)
        found[answers[t - 1]] = found.get(answers[t - 1], Fraction(0)) + chance
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("protocol", "k"), [("GRR", 2), ("GRR", 3), ("GRR", 4), ("OUE", 2)])
def test_the_first_reports_together_and_the_last_alone(
    protocol: str, k: int, schedule: tuple[float, ...]
) -> None:
    """Both tell exactly e_t: never more as drawn, and attained."""
    nested = Nested.calibrate(protocol, k=k, schedule=schedule)
    laws = [joint(nested, value) for value in range(k)]
    assert all(sum(law.values()) == 1 for law in laws)
    for t, epsilon in enumerate(schedule, start=1):
        for part in (first, alone):
            told = exact.largest_loss(part(law, t) for law in laws)
            assert told <= mp.mpf(epsilon)
            assert told <= mp.mpf(repr(epsilon)), "also for who reads the decimal text"
            assert told > epsilon - 1e-14
        assert nested.epsilon_after(t) == epsilon


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_also_of_three_values_in_bits(schedule: tuple[float, ...]) -> None:
    """Two levels of three bits: 64 outcomes; a third level only by its own law."""
    nested = Nested.calibrate("OUE", k=3, schedule=schedule[:2])
    laws = [joint(nested, value) for value in range(3)]
    for t, epsilon in enumerate(schedule[:2], start=1):
        told = exact.largest_loss(first(law, t) for law in laws)
        assert epsilon - 1e-14 < told <= mp.mpf(epsilon)


GRID = [
    (protocol, k, tuple(share * top for share in shares))
    for protocol, k in (("GRR", 2), ("GRR", 5), ("GRR", 37), ("GRR", 4096), ("OUE", 8))
    for top in (0.001, 0.1, 1.0, 4.0, 10.0, 20.0)
    for shares in ((0.01, 0.1, 0.3, 0.6, 0.9, 0.999, 1.0), (0.3, 0.31, 0.32, 0.33, 1.0))
]


def test_no_level_is_ever_overspent() -> None:
    """Along the whole chain of integers, for many schedules, of many levels."""
    for protocol, k, schedule in GRID:
        nested = Nested.calibrate(protocol, k=k, schedule=schedule)
        p, q = Fraction(1), Fraction(0)
        for epsilon, (keep, add) in reversed(list(zip(schedule, nested_thresholds(nested)))):
            one = Fraction(keep, exact.SCALE)
            none = Fraction(add, exact.SCALE) if protocol == "OUE" else (1 - one) / (k - 1)
            p, q = p * one + (1 - p) * none, q * one + (1 - q) * none
            ratio = p / q if protocol == "GRR" else p * (1 - q) / (q * (1 - p))
            for declared in (mp.mpf(epsilon), mp.mpf(repr(epsilon))):
                assert exact.log(ratio) <= declared, (protocol, k, schedule, epsilon)


@pytest.mark.parametrize(("protocol", "k"), [("GRR", 5), ("OUE", 5)])
def test_the_collector_debiases_with_what_devices_draw(protocol: str, k: int) -> None:
    nested = Nested.calibrate(protocol, k=k, schedule=(0.6, 1.2, 2.0))
    drawn = nested.as_drawn()
    unary = nested.levels[-1].unary
    for level, nominal, step in zip(drawn.levels, nested.levels, nested_thresholds(nested)):
        assert level.eps_inf == nominal.eps_inf
        assert level.p1 == pytest.approx(nominal.p1, rel=1e-14)
        assert level.q1 == pytest.approx(nominal.q1, rel=1e-14)
        assert all(0 < threshold < exact.SCALE for threshold in step)
    # The top level is the one-time protocol, integers and all.
    top = as_drawn(calibrate_once(protocol, k=k, epsilon=2.0))
    assert drawn.levels[-1].exact[:2] == pytest.approx(top.exact[:2])
    if not unary:
        for level in drawn.levels:
            assert abs(level.exact.p1 + (k - 1) * level.exact.q1 - 1) < 1e-70


@pytest.mark.parametrize(("protocol", "k"), [("GRR", 5), ("OUE", 16)])
def test_a_level_and_its_step_are_those_of_the_paper_at_two_epsilons(protocol: str, k: int) -> None:
    nested = Nested.calibrate(protocol, k=k, schedule=(0.6, 2.0))
    chain = calibrate("L-GRR" if protocol == "GRR" else "L-OSUE", k=k, eps_inf=2.0, eps_1=0.6)
    steps = [(float(p), float(q)) for p, q in nested.steps(Decimal)]
    assert steps == [(chain.p2, chain.q2), (chain.p1, chain.q1)]
    assert (nested.levels[0].p1, nested.levels[0].q1) == pytest.approx((chain.ps, chain.qs))


@pytest.mark.parametrize("k", [2, 5, 16, 40])
@pytest.mark.parametrize(("eps_inf", "eps_1"), [(1.0, 0.3), (2.0, 0.6), (4.0, 2.0)])
def test_a_schedule_that_tells_as_much_as_the_memo(k: int, eps_inf: float, eps_1: float) -> None:
    memo = choose(k=k, eps_inf=eps_inf, eps_1=eps_1).chosen
    schedule = gradual_levels(memo)
    assert all(a < b for a, b in pairwise(schedule))
    assert schedule[-1] == eps_inf
    assert schedule[:-1] == [memo.epsilon_after(t) for t in range(1, len(schedule))]
    assert schedule[0] == pytest.approx(eps_1)
    assert len(schedule) <= 16
    protocol = "OUE" if memo.unary else "GRR"
    assert Nested.calibrate(protocol, k=k, schedule=schedule).eps_inf == eps_inf


def test_a_schedule_can_be_cut_short() -> None:
    memo = calibrate("L-OSUE", k=8, eps_inf=1.0, eps_1=0.05)
    assert gradual_levels(memo, most=3) == [0.05, memo.epsilon_after(2), 1.0]
    assert gradual_levels(memo, most=1) == [1.0]
    with pytest.raises(ParameterError, match="most"):
        gradual_levels(memo, most=0)


def test_what_is_spent() -> None:
    nested = Nested.calibrate("GRR", k=4, schedule=(0.5, 1.0, 2.0))
    assert [nested.level_of(report) for report in (1, 2, 3, 4, 100)] == [1, 2, 3, 3, 3]
    assert [nested.epsilon_after(n) for n in (0, 1, 2, 3, 4)] == [0.0, 0.5, 1.0, 2.0, 2.0]
    spent = nested.spending([2])
    assert (spent.memos, spent.reports, spent.exact, spent.charged) == (1, 2, 1.0, 2.0)
    for wrong in (nested.level_of, nested.epsilon_after):
        with pytest.raises(ParameterError, match="report"):
            wrong(-1)


@pytest.mark.parametrize(
    ("protocol", "schedule", "field"),
    [
        ("SUE", (1.0,), "protocol"),
        ("L-GRR", (1.0,), "protocol"),
        ("GRR", (), "schedule"),
        ("GRR", (1.0, 1.0), "schedule"),
        ("GRR", (2.0, 1.0), "schedule"),
        ("GRR", tuple(range(1, 300)), "schedule"),
        ("GRR", (0.0, 1.0), "epsilon"),
    ],
)
def test_refused(protocol: str, schedule: tuple[float, ...], field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Nested.calibrate(protocol, k=4, schedule=schedule)
    assert caught.value.field == field


def test_levels_are_drawn_from_the_top_down() -> None:
    nested = Nested.calibrate("GRR", k=5, schedule=(0.6, 1.2, 2.0))
    (p1, _), (p2, _), (p3, _) = nested_thresholds(nested)
    tape = Tape(words(p3 - 1) + words(p2) + b"\x00" + words(p1 - 1))
    assert NestedRandomiser(nested, tape).draw(3) == (b"\x00", b"\x00", b"\x03")
    assert tape.left == 0


def test_bits_of_levels_compare_with_their_own_thresholds() -> None:
    nested = Nested.calibrate("OUE", k=3, schedule=(0.6, 2.0))
    (p1, q1), (p2, q2) = nested_thresholds(nested)
    tape = Tape(words(p2 - 1, q2 - 1, q2, p1, p1 - 1, q1 - 1))
    assert NestedRandomiser(nested, tape).draw(0) == (bytes([0b01100000]), bytes([0b11000000]))


def test_every_level_differs_in_what_it_costs_but_not_in_length() -> None:
    nested = Nested.calibrate("OUE", k=20, schedule=(0.6, 1.2, 2.0))
    randomiser = NestedRandomiser(nested)
    for index, _ in product(range(20), range(3)):
        assert {len(body) for body in randomiser.draw(index)} == {3}
