"""One round for life: what all that a device ever sends tells, by enumeration, and its draws."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import pytest

from protocol_spec import ParameterError, thresholds
from protocol_spec.mechanisms import Once, OnceRandomiser, draw_rounds
from tests.support.protocol import exact
from tests.support.protocol.entropy import Tape, TapeEnded, seeded, words
from tests.support.protocol.reference import mp

Law = dict[object, Fraction]


def law(once: Once, history: tuple[int, ...]) -> Law:
    """Chance of every (rounds drawn, answers) of a device with that history of values."""
    c, found = once.calibration, dict[object, Fraction]()
    step = thresholds(c)[:2]
    drawn = list(combinations(range(once.rounds), once.each))
    for rounds in drawn:
        laws = [
            exact.response(c.unary, c.k, step, exact.true_answer(c.unary, history[r]))
            for r in rounds
        ]
        for answers in product(*(each.items() for each in laws)):
            outcome = rounds, tuple(answer for answer, _ in answers)
            found[outcome] = math.prod((p for _, p in answers), start=Fraction(1, len(drawn)))
    return found


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(
    ("k", "rounds", "each"), [(2, 3, 1), (3, 3, 1), (2, 3, 2), (3, 2, 2), (2, 2, 2)]
)
def test_a_whole_history_tells_each_times_epsilon(
    k: int, rounds: int, each: int, epsilon: float
) -> None:
    """Between any two histories, whatever changes: never more, and attained."""
    once = Once.calibrate(k=k, epsilon=epsilon, rounds=rounds, each=each)
    laws = [law(once, history) for history in product(range(k), repeat=rounds)]
    assert all(sum(chances.values()) == 1 for chances in laws)
    spent = exact.largest_loss(laws)
    assert spent <= once.lifetime_epsilon == each * epsilon
    assert spent > once.lifetime_epsilon - 1e-14


def test_also_where_bits_are_answered() -> None:
    once = Once.calibrate(k=6, epsilon=0.1, rounds=2)
    assert once.calibration.protocol == "OUE"
    histories = [(0, 0), (0, 5), (5, 0), (3, 3), (1, 2)]
    spent = exact.largest_loss(law(once, history) for history in histories)
    assert 0.1 - 1e-14 < spent <= mp.mpf("0.1")


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 3.0])
def test_the_better_protocol_is_chosen(epsilon: float) -> None:
    limit = math.floor(3 * math.exp(epsilon) + 2)
    for k in (2, limit - 1, limit, limit + 1, limit + 50):
        once = Once.calibrate(k=max(k, 2), epsilon=epsilon, rounds=10)
        assert once.calibration.protocol == ("GRR" if k <= limit else "OUE")


def test_what_is_spent() -> None:
    once = Once.calibrate(k=4, epsilon=1.5, rounds=10, each=3)
    assert (once.epsilon, once.lifetime_epsilon) == (1.5, 4.5)
    assert [once.spending([n]).exact for n in range(4)] == [0.0, 1.5, 3.0, 4.5]
    assert {once.spending([n]).charged for n in range(4)} == {4.5}


def test_what_to_expect_of_a_window() -> None:
    once = Once.calibrate(k=6, epsilon=2.0, rounds=100, each=2)
    assert once.expected_reports(5000, 10) == 1000.0
    privacy, sampling = once.window_variance(5000, 10, 0.1)
    assert privacy == pytest.approx(once.calibration.pooled_variance(1000, 1, 0.1))
    assert sampling == pytest.approx(0.1 * 0.9 / 1000)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"k": 1}, "k"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"rounds": 0}, "rounds"),
        ({"each": 0}, "each"),
        ({"each": 11}, "each"),
    ],
)
def test_refused(arguments: dict[str, float], field: str) -> None:
    good = {"k": 4, "epsilon": 1.0, "rounds": 10, "each": 1}
    with pytest.raises(ParameterError) as caught:
        Once.calibrate(**{**good, **arguments})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(("devices", "window", "field"), [(0, 1, "devices"), (9, 11, "window")])
def test_windows_that_are_not_there(devices: int, window: int, field: str) -> None:
    once = Once.calibrate(k=4, epsilon=1.0, rounds=10)
    with pytest.raises(ParameterError) as caught:
        once.window_variance(devices, window, 0.1)
    assert caught.value.field == field


# --- the draw of the rounds ---------------------------------------------------------------------


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


def test_the_randomiser_draws_rounds_and_answers() -> None:
    once = Once.calibrate(k=4, epsilon=1.0, rounds=10, each=2)
    p1, *_ = thresholds(once.calibration)
    randomiser = OnceRandomiser(once, Tape(bytes([0x00, 0x10]) + words(p1 - 1)))
    assert randomiser.rounds() == (0, 1)
    assert randomiser.report(randomiser.memoize(3)) == b"\x03"
    assert OnceRandomiser(once, seeded("x")).rounds(first=9) == (9,)
