"""Odds in everyday words: “about 2 times in 3”, with the percentage for whoever compares two.

The words are rounded, never by more than NEAR; the percentage beside them has two digits. Both come
from the chances that the noise really has.
"""

from __future__ import annotations

import math
from typing import Final

from edge_client.language import number, say

SIMPLE: Final = (2, 3, 4, 5, 6, 8, 10, 20)
NEAR: Final = 0.02
RARE: Final = 0.1
NEVER: Final = 1e-5
ALWAYS: Final = 0.995


def times(chance: float) -> str:
    """How often something with this chance happens."""
    if chance >= ALWAYS:
        return say("practically always")
    if chance < NEVER:
        return say("less than once in {of}", of=number(1 / NEVER, ",.0f"))
    many, of = fraction(chance)
    percent = f"{number(float(f'{100 * chance:.2g}'))}\u00a0%"
    if many == 1:
        return say("about once in {of} ({percent})", of=number(of, ",d"), percent=percent)
    return say("about {many} times in {of} ({percent})", many=many, of=of, percent=percent)


def fraction(chance: float) -> tuple[int, int]:
    """The simplest fraction that is near enough; hundredths if there is none."""
    if chance < RARE:
        return 1, int(float(f"{1 / chance:.2g}"))
    for of in SIMPLE:
        many = round(chance * of)
        if 0 < many < of and abs(many / of - chance) <= NEAR:
            return many, of
    return round(100 * chance), 100


def shift(epsilon: float) -> str:
    """The bound of local differential privacy in words: what anyone's odds are multiplied by."""
    if epsilon > math.log(100_000):
        return say("without a useful bound")
    factor = math.exp(epsilon)
    shown = number(float(f"{factor:.3g}")) if factor < 100 else number(factor, ",.0f")
    return say("by at most {factor}", factor=shown)
