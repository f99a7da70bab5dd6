"""Mechanisms as tables of exact fractions, from the integers that devices draw with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import product

from tests.support.protocol.reference import Real, mp

SCALE = 1 << 64
Answer = int  # an index for GRR, k bits for UE


@cache
def response(
    unary: bool, k: int, thresholds: tuple[int, int], given: Answer
) -> dict[Answer, Fraction]:
    """Chance of every answer to an answer."""
    p, q = (Fraction(threshold, SCALE) for threshold in thresholds)
    if not unary:
        return {y: p if y == given else (1 - p) / (k - 1) for y in range(k)}
    chances = {}
    for y in range(1 << k):
        chance = Fraction(1)
        for i in range(k):
            one = p if given >> i & 1 else q
            chance *= one if y >> i & 1 else 1 - one
        chances[y] = chance
    return chances


def true_answer(unary: bool, index: int) -> Answer:
    """The answer that supports exactly one value, before any noise."""
    return 1 << index if unary else index


def largest_loss(laws: Iterable[Mapping[object, Fraction]]) -> Real:
    """ln of the largest ratio that any outcome has between any two of the laws."""
    tables = list(laws)
    worst = max(
        max(column) / min(column)
        for outcome in tables[0]
        for column in [[law[outcome] for law in tables]]
    )
    return log(worst)


def log(ratio: Fraction) -> Real:
    return mp.log(mp.mpf(ratio.numerator) / ratio.denominator)


def sequences(answers: Iterable[Answer], length: int) -> Iterator[tuple[Answer, ...]]:
    return product(answers, repeat=length)
