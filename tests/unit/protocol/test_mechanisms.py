"""The mechanisms behind one interface: what devices draw and collectors count."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest

from protocol_spec import (
    BodyFormat,
    Calibration,
    ParameterError,
    Spending,
    UnknownValue,
    as_drawn,
    calibrate,
    calibrate_once,
    choose,
    thresholds,
)
from protocol_spec.mechanisms import (
    Hashed,
    HashedRandomiser,
    Nested,
    Once,
    better_once,
    change_log_ratio,
    code,
    default_levels,
    draw_rounds,
    nested_thresholds,
    support,
)
from tests.support.protocol import reference, vectors
from tests.support.protocol.entropy import Tape, TapeEnded, seeded
from tests.support.protocol.helpers import MANIFESTS, near
from tests.support.protocol.reference import mp

VECTORS = vectors.load("mechanisms.json")


# --- published numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", VECTORS["once"], ids=lambda e: f"{e['k']}-{e['eps_1']:g}")
def test_once(entry: dict[str, Any]) -> None:
    assert entry["eps_inf"] / entry["each"] == entry["eps_1"]
    once = Once.calibrate(k=entry["k"], epsilon=entry["eps_1"], rounds=9, each=entry["each"])
    assert once.calibration.protocol == entry["protocol"]
    assert near(once.calibration.p1, entry["p"])
    assert near(once.calibration.q1, entry["q"])
    assert list(map(str, thresholds(once.calibration)[0])) == entry["thresholds"]


@pytest.mark.parametrize("entry", VECTORS["hashed"], ids=lambda e: str(e["eps_inf"]))
def test_hashed(entry: dict[str, Any]) -> None:
    hashed = Hashed.calibrate(k=9, eps_inf=entry["eps_inf"], eps_1=entry["eps_1"])
    drawn = [str(number) for step in thresholds(hashed.cell) for number in step]
    assert drawn == entry["thresholds"]
    p1, q1, p2, q2 = hashed.as_drawn().exact
    assert near(float(p1 * p2 + (1 - p1) * q2), entry["ps"])
    assert near(float(q1 * p2 + (1 - q1) * q2), entry["qs"])


@pytest.mark.parametrize(
    "entry", VECTORS["nested"], ids=lambda e: f"{e['protocol']}-{e['k']}-{e['levels']}"
)
def test_nested(entry: dict[str, Any]) -> None:
    nested = Nested.calibrate(entry["protocol"], k=entry["k"], schedule=entry["levels"])
    steps = [list(map(str, step)) for step in nested_thresholds(nested)]
    assert steps == entry["thresholds"]
    for level, (p, q) in zip(nested.as_drawn().levels, entry["chances"], strict=True):
        assert near(level.p1, p)
        assert near(level.q1, q)


@pytest.mark.parametrize("entry", VECTORS["levels"], ids=lambda e: str(e["eps_inf"]))
def test_levels_that_the_author_leaves_out(entry: dict[str, Any]) -> None:
    levels = default_levels(entry["eps_inf"], entry["eps_1"])
    assert list(levels) == entry["levels"]
    assert 2 <= len(levels) <= 16


@pytest.mark.parametrize(
    "entry", VECTORS["choice"], ids=lambda e: f"{e['k']}-{e['eps_inf']}-{e['rounds']}"
)
def test_the_choice_by_pooled_rounds(entry: dict[str, Any]) -> None:
    budget = {name: entry[name] for name in ("k", "eps_inf", "eps_1", "rounds")}
    assert choose(**budget).protocol == entry["chosen"]


@pytest.mark.parametrize("entry", VECTORS["codes"], ids=lambda e: f"{e['device']}-{e['k']}")
def test_codes(entry: dict[str, Any]) -> None:
    found = code(bytes.fromhex(entry["digest"]), entry["device"], entry["k"])
    assert found.hex() == entry["code"]


@pytest.mark.parametrize(
    "entry", VECTORS["domains"], ids=lambda e: f"{e['manifest']}-{e['attribute']}"
)
def test_every_value_has_its_published_place(entry: dict[str, Any]) -> None:
    attribute = MANIFESTS[entry["manifest"]].attributes[entry["attribute"]]
    for value, place in entry["places"]:
        if place is None:
            with pytest.raises(UnknownValue, match="not a number"):
                attribute.index_of(value)
        else:
            assert attribute.index_of(value) == place, value


# --- what all mechanisms offer -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "change", "field"),
    [
        (Once, {"k": 1}, "k"),
        (Once, {"epsilon": 0.0}, "epsilon"),
        (Once, {"rounds": 0}, "rounds"),
        (Once, {"each": 0}, "each"),
        (Once, {"each": 11}, "each"),
        (Hashed, {"k": 1}, "k"),
        (Hashed, {"eps_1": 3.0}, "eps_1"),
        (Nested, {"protocol": "SUE"}, "protocol"),
        (Nested, {"protocol": "L-GRR"}, "protocol"),
        (Nested, {"schedule": ()}, "schedule"),
        (Nested, {"schedule": (1.0, 1.0)}, "schedule"),
        (Nested, {"schedule": (2.0, 1.0)}, "schedule"),
        (Nested, {"schedule": tuple(range(1, 300))}, "schedule"),
        (Nested, {"schedule": (0.0, 1.0)}, "epsilon"),
    ],
)
def test_parameters_are_refused_by_name(
    mechanism: type[Any], change: dict[str, Any], field: str
) -> None:
    good: dict[Any, dict[str, Any]] = {
        Once: {"k": 4, "epsilon": 1.0, "rounds": 10, "each": 1},
        Hashed: {"k": 5, "eps_inf": 2.0, "eps_1": 0.6},
        Nested: {"protocol": "GRR", "k": 4, "schedule": (1.0,)},
    }
    with pytest.raises(ParameterError) as caught:
        mechanism.calibrate(**{**good[mechanism], **change})
    assert caught.value.field == field


def test_the_price_of_a_life() -> None:
    found = {name: manifest.lifetime_epsilon for name, manifest in MANIFESTS.items()}
    assert found == {
        "fleet": 3 * 2.0,
        "plain": 1.0,
        "tour": 2 * 1.0,
        "trend": 3.0,
        "rare": 0.1,
        "cells": 2 * 2.0,
        "steps": 2.0,
        "cars": 2.0,
    }


def test_the_number_of_memos_a_device_may_hold() -> None:
    found = {
        name: {mechanism.memos for mechanism in manifest.mechanisms}
        for name, manifest in MANIFESTS.items()
    }
    assert found["fleet"] == {3}
    assert found["tour"] == {2}
    assert found["trend"] == found["rare"] == {0}
    assert found["cells"] == {2}
    assert found["steps"] == {1}


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_what_is_charged_is_never_below_what_was_told(name: str) -> None:
    for mechanism in MANIFESTS[name].mechanisms:
        for memos in range(mechanism.memos + 1) if mechanism.memos else (1,):
            for reports in (0, 1, 2):
                found = mechanism.spending([reports] * memos)
                assert found.reports == reports * memos
                assert 0.0 <= found.exact <= found.charged <= mechanism.lifetime_epsilon
                once = mechanism.epsilon_after(reports) * memos
                assert found.exact == pytest.approx(min(once, found.charged))


def test_before_anything_is_drawn() -> None:
    """Rounds are drawn at joining, so `once` is charged from then on."""
    charged = {
        name: manifest.mechanisms[0].spending([]).charged for name, manifest in MANIFESTS.items()
    }
    assert {name for name, spent in charged.items() if spent} == {"trend", "rare"}
    assert MANIFESTS["steps"].mechanisms[0].spending([]) == Spending(0, 0, 0.0, 0.0)


def test_a_memo_that_does_not_fit_is_refused() -> None:
    for name in ("tour", "cells", "steps"):
        device = MANIFESTS[name].mechanisms[0].randomiser("a")
        with pytest.raises(ValueError, match="does not fit"):
            device.report(b"", 0)


def test_a_level_is_sent_once_and_the_last_one_for_ever() -> None:
    mechanism = MANIFESTS["steps"].mechanisms[1]
    device = mechanism.randomiser("a")
    memo = device.memoize(3)
    answers = [device.report(memo, sent) for sent in range(6)]
    assert [answer[0] for answer in answers] == [1, 2, 3, 4, 4, 4]
    assert answers[3] == answers[4] == answers[5]
    assert [mechanism.epsilon_after(t) for t in range(6)] == [0.0, 0.6, 1.0, 1.7, 2.0, 2.0]


# --- One round for life: what all that a device ever sends tells, by enumeration, and its draws.


Law = dict[object, Fraction]


def once_law(once: Once, history: tuple[int, ...]) -> Law:
    """Chance of every (rounds drawn, answers) of a device with that history of values."""
    c, found = once.calibration, dict[object, Fraction]()
    step = thresholds(c)[0]
    drawn = list(combinations(range(once.rounds), once.each))
    for rounds in drawn:
        laws = [
            reference.response(c.unary, c.k, step, reference.true_answer(history[r]))
            for r in rounds
        ]
        for answers in product(*(each.items() for each in laws)):
            outcome = rounds, tuple(answer for answer, _ in answers)
            found[outcome] = math.prod((p for _, p in answers), start=Fraction(1, len(drawn)))
    return found


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(
    ("k", "rounds", "each"), [(2, 3, 1), (3, 3, 1), (5, 2, 1), (2, 3, 2), (4, 2, 2), (2, 2, 2)]
)
def test_a_whole_history_tells_each_times_epsilon(
    k: int, rounds: int, each: int, epsilon: float
) -> None:
    """Between any two histories, whatever changes: never more, and attained."""
    once = Once.calibrate(k=k, epsilon=epsilon, rounds=rounds, each=each)
    laws = [once_law(once, history) for history in product(range(k), repeat=rounds)]
    assert all(sum(chances.values()) == 1 for chances in laws)
    spent = reference.largest_loss(laws)
    assert spent <= once.lifetime_epsilon == each * epsilon
    assert spent > once.lifetime_epsilon - 1e-14


@pytest.mark.parametrize(("epsilon", "last"), [(0.1, 3), (1.0, 5), (2.0, 11), (3.0, 29)])
def test_grr_is_for_few_values(epsilon: float, last: int) -> None:
    for k, expected in ((2, "GRR"), (last, "GRR"), (last + 1, "SS"), (last + 50, "SS")):
        once = Once.calibrate(k=k, epsilon=epsilon, rounds=10)
        assert (k, once.calibration.protocol) == (k, expected)
        assert better_once(k, epsilon) == once.calibration


@pytest.mark.parametrize(("count", "each"), [(4, 1), (3, 2), (4, 2), (5, 2)])
def test_every_set_of_rounds_is_exactly_equally_likely(count: int, each: int) -> None:
    """Over every tape of one byte a draw: those that are rejected ask for more, and count not."""
    found = Counter[tuple[int, ...]]()
    for drawn in product(range(0, 256, 16), repeat=each):  # draws look at the top bits only
        with contextlib.suppress(TapeEnded):
            found[draw_rounds(0, count, each, Tape(bytes(drawn)))] += 1
    assert sorted(found) == list(combinations(range(count), each))
    assert len(set(found.values())) == 1


def test_late_joiners_draw_among_what_is_left() -> None:
    entropy = seeded("late")
    assert {draw_rounds(7, 10, 1, entropy) for _ in range(100)} == {(7,), (8,), (9,)}
    assert draw_rounds(8, 10, 3, entropy) == (8, 9)
    assert draw_rounds(10, 10, 1, entropy) == ()
    assert draw_rounds(11, 10, 1, entropy) == ()


# --- Two cells: what reports tell, of values and of changes, by enumeration; codes and support.


BUDGETS = ((0.5, 0.15), (2.0, 0.6), (4.0, 2.0))
budgets = pytest.mark.parametrize(("eps_inf", "eps_1"), BUDGETS)
DIGEST = bytes(range(32))


def told(step: tuple[int, int], cell: int) -> list[Fraction]:
    """Chance of reporting each of two cells."""
    chances = reference.response(False, 2, step, reference.true_answer(cell))
    return [chances[reference.true_answer(each)] for each in range(2)]


def cell_law(cell: Calibration, cells: tuple[int, ...]) -> Law:
    """Chance of every sequence of reports, for the cells a device was in: one memo for each."""
    first, second = thresholds(cell)
    found: Law = dict.fromkeys(product(range(cell.k), repeat=len(cells)), Fraction(0))
    for memos in product(range(cell.k), repeat=cell.k):
        chance = math.prod(
            (told(first, c)[memo] for c, memo in enumerate(memos)),
            start=Fraction(1),
        )
        for reports in found:
            assert isinstance(reports, tuple)
            found[reports] += math.prod(
                (told(second, memos[c])[y] for c, y in zip(cells, reports)),
                start=chance,
            )
    return found


def hashed(eps_inf: float, eps_1: float) -> Hashed:
    return Hashed.calibrate(k=5, eps_inf=eps_inf, eps_1=eps_1)


@pytest.mark.parametrize("t", [1, 2, 3, 4])
@budgets
def test_histories_that_change_cells_at_the_same_moments(
    eps_inf: float, eps_1: float, t: int
) -> None:
    """Of two cells there is one other history of the same pattern: all cells swapped."""
    h = hashed(eps_inf, eps_1)
    for cells in product(range(2), repeat=t):
        swapped = tuple(1 - c for c in cells)
        told = reference.largest_loss([cell_law(h.cell, cells), cell_law(h.cell, swapped)])
        spent = h.spending([cells.count(c) for c in range(2) if c in cells])
        assert told <= spent.exact + 1e-15
        assert told > spent.exact - 1e-13, "attained: the ledger's exact number is exact"
        assert spent.exact <= spent.charged <= h.lifetime_epsilon == 2 * eps_inf


@budgets
def test_one_report_tells_eps_1(eps_inf: float, eps_1: float) -> None:
    h = hashed(eps_inf, eps_1)
    told = reference.largest_loss(cell_law(h.cell, (c,)) for c in range(2))
    assert eps_1 - 1e-14 < told <= eps_1


@pytest.mark.parametrize("t", [2, 3, 4, 5, 8])
@budgets
def test_what_tells_a_change_half_way_from_none(eps_inf: float, eps_1: float, t: int) -> None:
    cell = hashed(eps_inf, eps_1).cell
    never = [cell_law(cell, (c,) * t) for c in range(2)]
    changes = [cell_law(cell, (c,) * (t // 2) + (1 - c,) * (t - t // 2)) for c in range(2)]
    worst = max(reference.largest_loss([a, b]) for a in never for b in changes)
    assert change_log_ratio(cell, t) == pytest.approx(float(worst), rel=1e-12)


def test_it_grows_without_limit_and_beyond_the_ledger() -> None:
    cell = calibrate("L-GRR", k=2, eps_inf=2.0, eps_1=0.6)
    ratios = [change_log_ratio(cell, t) for t in (8, 16, 64, 365)]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(2.98, abs=0.01)
    assert ratios[-1] > 100 > 2 * 2.0


@pytest.mark.parametrize(
    ("cell", "reports", "field"),
    [
        (calibrate("L-GRR", k=3, eps_inf=2.0, eps_1=0.6), 8, "k"),
        (calibrate("L-OSUE", k=2, eps_inf=2.0, eps_1=0.6), 8, "k"),
        (calibrate("L-GRR", k=2, eps_inf=2.0, eps_1=0.6), 1, "reports"),
    ],
)
def test_a_ratio_that_is_not_defined(cell: Calibration, reports: int, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        change_log_ratio(cell, reports)
    assert caught.value.field == field


@pytest.mark.parametrize("cells", [2, 3, 5])
def test_the_chance_that_a_change_is_ever_seen(cells: int) -> None:
    """Memos of two different cells are equal in cells ways; values differ in cell 1 - 1/cells."""
    h = Hashed.calibrate(k=9, eps_inf=2.0, eps_1=0.6, cells=cells)
    p, q = h.cell.p1, h.cell.q1
    laws = [[p if y == c else q for y in range(cells)] for c in (0, 1)]
    same = math.fsum(a * b for a, b in zip(*laws))
    assert h.change_seen_if_cells_differ == pytest.approx(1 - same)
    assert h.change_seen == pytest.approx((1 - 1 / cells) * (1 - same))


def test_only_the_cells_there_are_can_be_visited() -> None:
    h = hashed(2.0, 0.6)
    assert h.spending([]).charged == 0.0
    with pytest.raises(ParameterError, match="cells"):
        h.spending([1, 2, 3])


@pytest.mark.parametrize("k", [2, 3, 5])
def test_over_all_codes_supports_are_independent_bits(k: int) -> None:
    """Every code, every memo, every report: the law of the support vector of a device."""
    drawn = hashed(2.0, 0.6).as_drawn()
    channel = Hashed(k, drawn.cell)
    p1, _, p2, q2 = map(float, channel.exact)
    ps, qs = p1 * p2 + (1 - p1) * q2, 0.5
    chances = dict.fromkeys(range(1 << k), 0.0)
    for bits in range(1 << k):
        cell = bits >> (k - 1) & 1  # the device holds value 0
        for report in (0, 1):
            supported = bits if report else bits ^ ((1 << k) - 1)
            same = drawn.cell.ps if report == cell else 1 - drawn.cell.ps
            chances[supported] += same / (1 << k)
    for supported, chance in chances.items():
        own = ps if supported >> (k - 1) & 1 else 1 - ps
        assert chance == pytest.approx(own * qs ** (k - 1))


@pytest.mark.parametrize("k", [2, 7, 8, 9])
def test_a_report_supports_the_code_or_its_complement(k: int) -> None:
    own, values = code(DIGEST, "a", k), BodyFormat(True, k)
    ones, zeros = (set(values.supported(support(own, bytes([y]), k))) for y in (1, 0))
    assert support(own, b"\x01", k) == own
    assert ones | zeros == set(range(k))
    assert ones & zeros == set()
    assert values.fault(support(own, b"\x00", k)) is None


@pytest.mark.parametrize("wrong", [b"", b"\x00\x00", bytes([0b00000100])])
def test_a_code_that_does_not_fit(wrong: bytes) -> None:
    with pytest.raises(ParameterError, match="code"):
        HashedRandomiser(hashed(2.0, 0.6), wrong)


# --- Gradual release: the first t reports together tell e_t, by enumeration with exact fractions.


SCHEDULES = ((0.6, 1.2, 2.0), (0.1, 0.3, 1.0), (0.5, 3.9, 4.0))


def joint(nested: Nested, value: int) -> Law:
    """Chance of every (level 1, ..., level G), from the integers."""
    unary, k = nested.levels[-1].unary, nested.k
    laws: dict[tuple[int, ...], Fraction] = {(reference.true_answer(value),): Fraction(1)}
    for step in reversed(nested_thresholds(nested)):
        laws = {
            (lower, *above): chance * p
            for above, chance in laws.items()
            for lower, p in reference.response(unary, k, step, above[0]).items()
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
@pytest.mark.parametrize(
    ("protocol", "k"), [("GRR", 2), ("GRR", 3), ("GRR", 4), ("OUE", 2), ("SS", 4), ("SS", 5)]
)
def test_the_first_reports_together_and_the_last_alone(
    protocol: str, k: int, schedule: tuple[float, ...]
) -> None:
    """Both tell exactly e_t: never more as drawn, and attained."""
    nested = Nested.calibrate(protocol, k=k, schedule=schedule)
    laws = [joint(nested, value) for value in range(k)]
    assert all(sum(law.values()) == 1 for law in laws)
    for t, epsilon in enumerate(schedule, start=1):
        for part in (first, alone):
            told = reference.largest_loss(part(law, t) for law in laws)
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
        told = reference.largest_loss(first(law, t) for law in laws)
        assert epsilon - 1e-14 < told <= mp.mpf(epsilon)


GRID = [
    (protocol, k, tuple(share * top for share in shares))
    for protocol, k in (
        *(("GRR", 2), ("GRR", 5), ("GRR", 37), ("GRR", 4096), ("OUE", 8)),
        *(("SS", 4), ("SS", 37), ("SS", 300)),
    )
    for top in (0.001, 0.1, 1.0, 4.0, 10.0, 20.0)
    for shares in ((0.01, 0.1, 0.3, 0.6, 0.9, 0.999, 1.0), (0.3, 0.31, 0.32, 0.33, 1.0))
]


def test_no_level_is_ever_overspent() -> None:
    """Along the whole chain of integers, for many schedules, of many levels."""
    for protocol, k, schedule in GRID:
        nested = Nested.calibrate(protocol, k=k, schedule=schedule)
        p, q = Fraction(1), Fraction(0)
        for epsilon, (keep, add) in reversed(list(zip(schedule, nested_thresholds(nested)))):
            one = Fraction(keep, reference.SCALE)
            if protocol == "OUE":
                none = Fraction(add, reference.SCALE)
                p, q = p * one + (1 - p) * none, q * one + (1 - q) * none
                ratio = p * (1 - q) / (q * (1 - p))
            else:  # p is the chance that nothing was blind; what is blind has each set as often
                p *= one
                ratio = (p * Fraction(k, add) + 1 - p) / (1 - p)
            for declared in (mp.mpf(epsilon), mp.mpf(repr(epsilon))):
                assert reference.log(ratio) <= declared, (protocol, k, schedule, epsilon)


@pytest.mark.parametrize(("protocol", "k"), [("GRR", 5), ("OUE", 5), ("SS", 12)])
def test_the_collector_debiases_with_what_devices_draw(protocol: str, k: int) -> None:
    nested = Nested.calibrate(protocol, k=k, schedule=(0.6, 1.2, 2.0))
    drawn = nested.as_drawn()
    unary = nested.levels[-1].unary
    for level, nominal, step in zip(drawn.levels, nested.levels, nested_thresholds(nested)):
        assert level.eps_inf == nominal.eps_inf
        assert level.p1 == pytest.approx(nominal.p1, rel=1e-14)
        assert level.q1 == pytest.approx(nominal.q1, rel=1e-14)
        assert all(0 < threshold < reference.SCALE for threshold in step)
    # The top level is the one-time protocol, integers and all.
    top = as_drawn(calibrate_once(protocol, k=k, epsilon=2.0))
    assert drawn.levels[-1].exact[:2] == pytest.approx(top.exact[:2])
    if not unary:
        for level in drawn.levels:
            assert abs(level.exact.p1 + (k - 1) * level.exact.q1 - level.size) < 1e-70
