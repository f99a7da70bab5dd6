"""The two randomised responses, on a device, for one value at a time.

Claim: with the operating system's random bytes, the memo is eps_inf-LDP and each report eps_1-LDP
*as drawn*, not only as calculated: every probability is an integer over 2^64, p rounded down and q
up from 80-digit values, so that no rounding ever spends more than the nominal epsilon. (A smaller p
and a larger q are the same mechanism followed by more noise.)

No float and no pseudo-random generator is on this path. Randomness is passed in as a function
from a number of bytes to that many bytes; production passes `os.urandom`.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final, NamedTuple

from protocol_spec.calibration import Calibration, with_probabilities
from protocol_spec.encoding import BodyFormat
from protocol_spec.probabilities import Probabilities, exact_probabilities, precise

Entropy = Callable[[int], bytes]

SCALE: Final = 1 << 64


class Thresholds(NamedTuple):
    """p1, q1, p2, q2 in units of 2^-64. A draw succeeds when 64 random bits are below."""

    p1: int
    q1: int
    p2: int
    q2: int


@precise
def thresholds(calibration: Calibration) -> Thresholds:
    """The integers a device compares its random bits with.

    They are calculated for the next float64 below each epsilon: whoever wrote 0.1 and whoever
    reads the float64 nearest to it must both find their epsilon kept.
    """
    exact = exact_probabilities(
        calibration.protocol,
        calibration.k,
        just_below(calibration.eps_inf),
        just_below(calibration.eps_1),
        calibration.method,
    )
    return Thresholds(*rounded(exact.p1, exact.q1), *rounded(exact.p2, exact.q2))


@precise
def as_drawn(calibration: Calibration) -> Calibration:
    """With the probabilities that devices really use; the collector debiases with it."""
    drawn, unary, k = thresholds(calibration), calibration.unary, calibration.k
    first, second = (drawn_probabilities(step, unary, k) for step in (drawn[:2], drawn[2:]))
    return with_probabilities(calibration, Probabilities(*first, *second))


def just_below(epsilon: float) -> Decimal:
    """The next float64 below an epsilon, which thresholds are calculated for."""
    return Decimal(math.nextafter(epsilon, 0.0))


def rounded(p: Decimal, q: Decimal) -> tuple[int, int]:
    """p down and q up, in units of 2^-64."""
    return (
        int((p * SCALE).to_integral_value(ROUND_FLOOR)),
        int((q * SCALE).to_integral_value(ROUND_CEILING)),
    )


def drawn_probabilities(thresholds: Sequence[int], unary: bool, k: int) -> tuple[Decimal, Decimal]:
    """p and q as drawn. A generalised response compares with p only; the others share the rest."""
    p, q = (Decimal(threshold) / SCALE for threshold in thresholds)
    return (p, q) if unary else (p, (1 - p) / (k - 1))


class Randomiser:
    """One device's draws for one question. It keeps no state: the caller stores what is drawn once.

    In a round: `key` of the value; the memo stored for that key, else `memoize` and store it, up to
    `Mechanism.memos` of them; then `report`. Where `Mechanism.memos` is 0 nothing is stored: memo
    and report are drawn again each time. The methods here are those of `memoized`.
    """

    def __init__(self, calibration: Calibration, entropy: Entropy = os.urandom) -> None:
        self.format = BodyFormat(calibration.unary, calibration.k)
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
        p1, q1, _, _ = self.thresholds
        return respond(self.format, self.format.encode(key), p1, q1, self._entropy)

    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        """RR2: the answer of one round, after `sent` earlier ones of this memo. Once per round."""
        if self.format.fault(memo) is not None:
            raise ValueError("the memo does not fit this attribute")
        _, _, p2, q2 = self.thresholds
        return respond(self.format, memo, p2, q2, self._entropy)


def respond(body_format: BodyFormat, body: bytes, keep: int, add: int, entropy: Entropy) -> bytes:
    """One randomised response: support is kept below `keep`, and appears below `add`."""
    number = body_format.to_number(body)
    if body_format.unary:
        return body_format.from_number(_unary(number, body_format.k, keep, add, entropy))
    return body_format.from_number(_generalised(number, body_format.k, keep, entropy))


def _unary(bits: int, k: int, keep: int, add: int, entropy: Entropy) -> int:
    draws = struct.unpack(f">{k}Q", entropy(8 * k))
    held = format(bits, f"0{k}b")  # as text: shifting a k-bit integer k times is quadratic
    answer = ("1" if d < (keep if h == "1" else add) else "0" for d, h in zip(draws, held))
    return int("".join(answer), 2)


def _generalised(index: int, k: int, keep: int, entropy: Entropy) -> int:
    if int.from_bytes(entropy(8)) < keep:
        return index
    other = random_below(k - 1, entropy)
    return other + (other >= index)


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
