"""The two randomised responses, on a device, for one value at a time.

Claim: with the operating system's random bytes, the memo is eps_inf-LDP and each report eps_1-LDP
*as drawn*, not only as calculated: every probability is an integer over 2^64, what is kept rounded
down and what is added up from 80-digit values, so that no rounding ever spends more than the
nominal epsilon. (To keep less and add more is the same mechanism followed by more noise.)

No float and no pseudo-random generator is on this path. Randomness is passed in as a function
from a number of bytes to that many bytes; production passes `os.urandom`.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from protocol_spec.calibration import Calibration, with_probabilities
from protocol_spec.encoding import BodyFormat
from protocol_spec.probabilities import (
    Probabilities,
    exact_probabilities,
    kept_of,
    of_kept,
    precise,
)

Entropy = Callable[[int], bytes]

SCALE: Final = 1 << 64


Step = tuple[Decimal, Decimal]  # p and q of bits; of sets, `keep` and the number of values
DrawnStep = tuple[int, int]  # the same in units of 2^-64, but for the number of values


def steps(noise: Calibration, adjusted: Callable[[float], Decimal]) -> tuple[Step, Step]:
    """RR1 and RR2, calculated for slightly `adjusted` epsilons."""
    eps_inf, eps_1 = adjusted(noise.eps_inf), adjusted(noise.eps_1)
    p1, q1, p2, q2 = exact_probabilities(
        noise.protocol, noise.k, eps_inf, eps_1, noise.method, noise.size
    )
    if noise.unary:
        return (p1, q1), (p2, q2)
    k, memo, size = noise.k, noise.memo_size, noise.size
    first, second = kept_of(p1, q1, k, 1, memo), kept_of(p2, q2, k, memo, size)
    return (first, Decimal(memo)), (second, Decimal(size))


@precise
def thresholds(calibration: Calibration) -> tuple[DrawnStep, DrawnStep]:
    """The integers a device compares its random bits with: a draw succeeds when 64 of them are
    below.

    They are calculated for the next float64 below each epsilon: whoever wrote 0.1 and whoever
    reads the float64 nearest to it must both find their epsilon kept.
    """
    first, second = steps(calibration, just_below)
    return rounded(first, calibration.unary), rounded(second, calibration.unary)


@precise
def as_drawn(calibration: Calibration) -> Calibration:
    """With the probabilities that devices really use; the collector debiases with it."""
    first, second = thresholds(calibration)
    sizes = None if calibration.unary else 1
    rr1 = drawn_probabilities(first, calibration.k, sizes)
    rr2 = drawn_probabilities(second, calibration.k, sizes and first[1])
    return with_probabilities(calibration, Probabilities(*rr1, *rr2))


def just_below(epsilon: float) -> Decimal:
    """The next float64 below an epsilon, which thresholds are calculated for."""
    return Decimal(math.nextafter(epsilon, 0.0))


def rounded(step: Step, unary: bool) -> DrawnStep:
    """p and `keep` down and q up, in units of 2^-64."""
    keep = int((step[0] * SCALE).to_integral_value(ROUND_FLOOR))
    return keep, int((step[1] * SCALE).to_integral_value(ROUND_CEILING)) if unary else int(step[1])


def drawn_probabilities(step: DrawnStep, k: int, before: int | None) -> tuple[Decimal, Decimal]:
    """p and q as drawn: of bits, or of sets that are drawn from sets of `before` values."""
    first, second = step
    keep = Decimal(first) / SCALE
    return of_kept(keep, k, before, second) if before else (keep, Decimal(second) / SCALE)


class Randomiser:
    """One device's draws for one question. It keeps no state: the caller stores what is drawn once.

    In a round: `key` of the value; the memo stored for that key, else `memoize` and store it, up to
    `Mechanism.memos` of them; then `report`. Where `Mechanism.memos` is 0 nothing is stored: memo
    and report are drawn again each time. The methods here are those of `memoized`.
    """

    def __init__(self, calibration: Calibration, entropy: Entropy = os.urandom) -> None:
        self.memo_format, self.format = calibration.formats
        self.thresholds = thresholds(calibration)
        self._entropy = entropy

    def rounds(self, first: int) -> tuple[int, ...] | None:  # noqa: ARG002
        """The rounds to answer, of those from `first` on: drawn at joining, once. None: all."""
        return None

    def key(self, index: int) -> int:
        """What a memo belongs to: the value, or its cell."""
        return index

    def memoize(self, key: int) -> bytes:
        """RR1: draw a memo. Once per key, ever, and stored before a report of it is sent."""
        held = self.memo_format.supported(self.memo_format.encode(key))
        return respond(self.memo_format, held, self.thresholds[0], self._entropy)

    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        """RR2: the answer of one round, after `sent` earlier ones of this memo. Once per round."""
        if self.memo_format.fault(memo) is not None:
            raise ValueError("the memo does not fit this attribute")
        held = self.memo_format.supported(memo)
        return respond(self.format, held, self.thresholds[1], self._entropy)


def respond(form: BodyFormat, held: Sequence[int], step: DrawnStep, entropy: Entropy) -> bytes:
    """One randomised response to a set of values: of sets, or of k bits."""
    if form.size:
        return form.encode(*_subset(held, form.k, step, entropy))
    keep, add = step
    draws = struct.unpack(f">{form.k}Q", entropy(8 * form.k))
    ones = set(held)
    answer = ("1" if d < (keep if i in ones else add) else "0" for i, d in enumerate(draws))
    return form.from_number(int("".join(answer), 2))  # as text: k shifts of k bits are quadratic


def _subset(held: Sequence[int], k: int, step: DrawnStep, entropy: Entropy) -> set[int]:
    """All that was held, or nothing of it, and values at random up to the size of the set."""
    keep, size = step
    chosen = set(held) if int.from_bytes(entropy(8)) < keep else set()
    while len(chosen) < size:
        chosen.add(random_below(k, entropy))
    return chosen


def random_below(bound: int, entropy: Entropy = os.urandom) -> int:
    """A uniform integer in [0, bound), by rejection: no modulo bias."""
    if bound < 1:
        raise ValueError("the bound must be 1 or more")
    bits = (bound - 1).bit_length()
    size = (bits + 7) // 8
    while True:
        draw = int.from_bytes(entropy(size)) >> (8 * size - bits)
        if draw < bound:
            return draw
