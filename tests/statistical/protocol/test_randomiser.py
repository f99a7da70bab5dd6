"""R01-R03: a draw follows from the random bytes alone, exactly as the thresholds say."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections import Counter

import pytest

from protocol_spec import LONGITUDINAL, BodyFormat, Randomiser, calibrate, random_below, thresholds
from tests.support.protocol.entropy import Tape, TapeEnded, seeded, words
from tests.support.protocol.statistics import LIMIT, binomial_z, uniform_z

UNARY = ["L-OUE", "L-SUE", "L-OSUE", "L-SOUE"]


def test_the_default_randomness_is_the_operating_systems() -> None:
    assert inspect.signature(Randomiser).parameters["entropy"].default is os.urandom
    assert inspect.signature(random_below).parameters["entropy"].default is os.urandom
    randomiser = Randomiser(calibrate("L-OSUE", k=512, eps_inf=1.0, eps_1=0.5))
    assert randomiser.memoize(0) != randomiser.memoize(0)


@pytest.mark.parametrize("protocol", UNARY)
def test_each_bit_compares_its_own_word_with_its_own_threshold(protocol: str) -> None:
    calibration = calibrate(protocol, k=10, eps_inf=2.0, eps_1=0.6)
    (p1, q1), (p2, q2) = thresholds(calibration)
    # Value 3: at its own place p decides, at all others q; a draw equal to a threshold fails.
    memo = Tape(words(q1 - 1, q1, 0, p1 - 1, q1, q1 - 1, q1, 2**64 - 1, q1, q1 - 1))
    assert Randomiser(calibration, memo).memoize(3) == bytes([0b10110100, 0b01000000])
    report = Tape(words(p2 - 1, q2 - 1, p2, p2 - 1, q2, p2 - 1, q2, q2 - 1, q2, p2))
    drawn = Randomiser(calibration, report).report(bytes([0b10110100, 0b01000000]))
    assert drawn == bytes([0b11010101, 0b00000000])
    assert memo.asked == report.asked == [80]


def test_a_value_is_kept_below_the_threshold_else_any_is_drawn() -> None:
    calibration = calibrate("L-GRR", k=5, eps_inf=2.0, eps_1=0.6)
    (first, _), (second, _) = thresholds(calibration)
    assert Randomiser(calibration, Tape(words(first - 1))).memoize(3) == b"\x03"
    assert Randomiser(calibration, Tape(words(second - 1))).report(b"\x03") == b"\x03"
    for top_three_bits in range(5):
        tape = Tape(words(first) + bytes([top_three_bits << 5]))
        assert Randomiser(calibration, tape).memoize(3) == bytes([top_three_bits])
        assert tape.asked == [8, 1]


def test_a_set_is_kept_whole_or_not_at_all_and_filled_up_with_others() -> None:
    """Of 12 values in four bits each: 13 is drawn again, and so is what the set has already."""
    calibration = calibrate("L-SS", k=12, eps_inf=2.0, eps_1=0.6)
    (keep, size), memo = thresholds(calibration)[1], b"\x10\x00"  # value 3
    assert size == 4
    for word, draws, values in (
        (keep - 1, (0, 3, 0, 13, 11, 7), [0, 3, 7, 11]),
        (keep, (0, 3, 0, 13, 11, 7), [0, 3, 7, 11]),
        (keep, (0, 1, 15, 1, 10, 2), [0, 1, 2, 10]),
    ):
        tape = Tape(words(word) + bytes(draw << 4 for draw in draws))
        randomiser = Randomiser(calibration, tape)
        assert randomiser.format.supported(randomiser.report(memo)) == values
        assert tape.asked == [8, 1, 1, 1, 1, 1, 1]
    for wrong in (b"\x00\x00", b"\x18\x00"):
        with pytest.raises(ValueError, match="memo"):
            Randomiser(calibration).report(wrong)


def test_a_draw_beyond_the_bound_is_repeated_not_wrapped() -> None:
    tape = Tape(bytes([0b11100000, 0b10100000, 0b10000000]))
    assert random_below(5, tape) == 4
    assert tape.asked == [1, 1, 1]


@pytest.mark.parametrize("bound", [*range(1, 10), 127, 128, 129, 200, 256, 257, 1000, 65_536])
def test_below_is_exactly_uniform(bound: int) -> None:
    """Of all one-byte or two-byte draws that are not rejected, each result has the same number."""
    size = 1 if bound <= 256 else 2
    results = Counter[int]()
    for draw in range(256**size):
        with contextlib.suppress(TapeEnded):  # rejected: another draw is needed
            results[random_below(bound, Tape(draw.to_bytes(size)))] += 1
    assert sorted(results) == list(range(bound))
    assert len(set(results.values())) == 1


def test_below_nothing_is_refused() -> None:
    for bound in (0, -1):
        with pytest.raises(ValueError, match="1 or more"):
            random_below(bound)


@pytest.mark.parametrize("k", [3, 5, 37, 1000])
def test_another_value_is_uniform(k: int) -> None:
    """The memo is another one than the value in all draws that did not keep it."""
    seed, index = f"another of {k}", k // 2
    calibration = calibrate("L-GRR", k=k, eps_inf=0.5, eps_1=0.25)
    randomiser = Randomiser(calibration, seeded(seed))
    memos = [int.from_bytes(randomiser.memoize(index)) for _ in range(30_000)]
    counts = Counter(memos)
    z = uniform_z([counts[i] for i in range(k) if i != index])
    assert abs(z) < LIMIT, f"z = {z:.2f} with seed {seed!r}"
    z = binomial_z(counts[index], len(memos), calibration.p1)
    assert abs(z) < LIMIT, f"z = {z:.2f} with seed {seed!r}"


DRAWS = 12_000


@pytest.mark.parametrize(("eps_inf", "eps_1"), [(1.0, 0.5), (4.0, 1.2)])
@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_frequencies_of_memo_and_report(protocol: str, eps_inf: float, eps_1: float) -> None:
    """p1 and ps where the value is, q1 and qs at every other place."""
    seed, k, index = f"{protocol} {eps_inf} {eps_1}", 5, 2
    calibration = calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1)
    randomiser = Randomiser(calibration, seeded(seed))
    memos, reports = Counter[int](), Counter[int]()
    for _ in range(DRAWS):
        memo = randomiser.memoize(index)
        memos.update(randomiser.format.supported(memo))
        reports.update(randomiser.format.supported(randomiser.report(memo)))
    for place in range(k):
        at_memo, at_report = (
            (calibration.p1, calibration.ps) if place == index else (calibration.q1, calibration.qs)
        )
        for counts, probability in ((memos, at_memo), (reports, at_report)):
            z = binomial_z(counts[place], DRAWS, probability)
            assert abs(z) < LIMIT, f"place {place}: z = {z:.2f} with seed {seed!r}"


@pytest.mark.parametrize("protocol", ["L-SUE", "L-OUE"])
def test_bits_are_independent(protocol: str) -> None:
    seed, k = f"pairs of {protocol}", 6
    calibration = calibrate(protocol, k=k, eps_inf=1.0, eps_1=0.5)
    randomiser = Randomiser(calibration, seeded(seed))
    pairs = Counter[tuple[int, int]]()
    for _ in range(DRAWS):
        ones = set(randomiser.format.supported(randomiser.memoize(0)))
        pairs.update((i, i + 1) for i in range(k - 1) if {i, i + 1} <= ones)
    for i in range(k - 1):
        probability = (calibration.p1 if i == 0 else calibration.q1) * calibration.q1
        z = binomial_z(pairs[i, i + 1], DRAWS, probability)
        assert abs(z) < LIMIT, f"bits {i}, {i + 1}: z = {z:.2f} with seed {seed!r}"


@pytest.mark.parametrize("protocol", LONGITUDINAL)
@pytest.mark.parametrize("k", [2, 3, 8, 9, 64, 255, 256, 257])
def test_memo_and_report_are_valid_bodies_of_one_length(protocol: str, k: int) -> None:
    """R26: the size of a message discloses nothing."""
    randomiser = Randomiser(calibrate(protocol, k=k, eps_inf=2.0, eps_1=0.6), seeded("length"))
    memos = [randomiser.memoize(index) for index in range(k)]
    drawn = [*memos, *map(randomiser.report, memos)]
    assert {len(body) for body in drawn} == {BodyFormat(protocol != "L-GRR", k).length}
    assert {randomiser.memo_format.fault(body) for body in memos} == {None}
    assert {randomiser.format.fault(body) for body in drawn[k:]} == {None}


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_nothing_is_drawn_for_a_wrong_index_or_memo(protocol: str) -> None:
    """And the memo is not shown."""
    tape = Tape(b"\x00" * 80)
    randomiser = Randomiser(calibrate(protocol, k=4, eps_inf=1.0, eps_1=0.5), tape)
    for index in (-1, 4, 1 << 40):
        with pytest.raises(IndexError, match="outside the domain"):
            randomiser.memoize(index)
    for memo in (b"", b"\x00\x00", b"\x80\x00", b"\x04" if protocol == "L-GRR" else b"\x08"):
        with pytest.raises(ValueError, match=r"^the memo does not fit this attribute$"):
            randomiser.report(memo)
    assert tape.asked == []
