"""The other ways of reporting once more, from the definitions: chances, draws, codes, domains.

Nothing is taken from `protocol_spec`. Draws read random bytes in the order that the specification
gives; what they should be is worked out here with plain integers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from tests.support.protocol import reference
from tests.support.protocol.reference import Real, mp

NOT_KNOWN = "none of these / not known"
SECOND = {"GRR": "L-GRR", "OUE": "L-OSUE"}
SCALE = 1 << 64

Thresholds = tuple[int, int]


def lower(epsilon: float) -> float:
    return math.nextafter(epsilon, 0.0)


def rounded(p: Real, q: Real) -> Thresholds:
    """p down and q up, in units of 2^-64."""
    return int(mp.floor(p * SCALE)), int(mp.ceil(q * SCALE))


# --- chances -------------------------------------------------------------------------------------


@cache
def better_once(k: int, epsilon: float) -> str:
    """The smaller variance of a value that nobody holds."""
    grr, oue = (reference.calibrate_once(p, k, epsilon).variance(1, 0.0) for p in ("GRR", "OUE"))
    return "GRR" if grr <= oue else "OUE"


def once_thresholds(protocol: str, k: int, epsilon: float) -> Thresholds:
    return rounded(*reference.first_step(protocol, k, mp.mpf(lower(epsilon))))


@cache
def better_pooled(k: int, eps_inf: float, eps_1: float, rounds: int, method: str = "exact") -> str:
    """The smaller variance of the mean of so many reports of one memo."""
    grr, osue = (
        reference.calibrate(p, k, eps_inf, eps_1, method).device_variance(False, rounds)
        for p in ("L-GRR", "L-OSUE")
    )
    return "L-GRR" if grr <= osue else "L-OSUE"


def nested_thresholds(protocol: str, k: int, levels: Sequence[float]) -> list[Thresholds]:
    """Of the step to each level from the one above it, level 1 first."""
    found = []
    for level, above in pairwise(levels):
        step = reference.calibrate(SECOND[protocol], k, lower(above), lower(level))
        found.append(rounded(step.p2, step.q2))
    return [*found, once_thresholds(protocol, k, levels[-1])]


def nested_chances(protocol: str, k: int, levels: Sequence[float]) -> list[tuple[Real, Real]]:
    """Of supporting the true value, and another, at each level: the steps one after another."""
    kept, added, found = mp.mpf(1), mp.mpf(0), []
    for p, q in reversed(nested_thresholds(protocol, k, levels)):
        keep = mp.mpf(p) / SCALE
        add = mp.mpf(q) / SCALE if protocol == "OUE" else (1 - keep) / (k - 1)
        kept, added = (x * keep + (1 - x) * add for x in (kept, added))
        found.append((kept, added))
    return found[::-1]


def default_levels(k: int, eps_inf: float, eps_1: float) -> list[float]:
    """eps_1, what 2, 3, ... reports of ALLOMFREE's memo tell, to six decimals, then eps_inf."""
    mechanism = reference.calibrate(reference.adaptive(k, eps_inf, eps_1), k, eps_inf, eps_1)
    found = [eps_1]
    for reports in range(2, 16):
        told = mechanism.epsilon(reports)
        if float(told) >= 0.99 * eps_inf:
            break
        level = round(float(told), 6)
        if found[-1] < level < eps_inf:
            found.append(level)
    return [*found, eps_inf]


# --- draws ---------------------------------------------------------------------------------------


class Stream:
    """Random bytes that remember what was taken of them."""

    def __init__(self, label: str) -> None:
        self._bytes = hashlib.shake_256(label.encode()).digest(1 << 14)
        self.taken = b""

    def take(self, size: int) -> bytes:
        start = len(self.taken)
        self.taken += self._bytes[start : start + size]
        return self._bytes[start : start + size]

    def chance(self, threshold: int) -> bool:
        return int.from_bytes(self.take(8), "big") < threshold

    def below(self, bound: int) -> int:
        bits = (bound - 1).bit_length()
        size = (bits + 7) // 8
        while True:
            drawn = int.from_bytes(self.take(size), "big") >> (8 * size - bits)
            if drawn < bound:
                return drawn


def respond(protocol: str, k: int, said: list[int], step: Thresholds, stream: Stream) -> list[int]:
    """One randomised response to a set of supported values, as the set it becomes."""
    keep, add = step
    if protocol.endswith("GRR"):
        [index] = said
        if stream.chance(keep):
            return [index]
        other = stream.below(k - 1)
        return [other if other < index else other + 1]
    return [value for value in range(k) if stream.chance(keep if value in said else add)]


def body(protocol: str, k: int, said: list[int]) -> bytes:
    """An index, or k bits with zeros behind them."""
    if protocol.endswith("GRR"):
        return said[0].to_bytes(1 if k <= 256 else 2, "big")
    bits = "".join("1" if value in said else "0" for value in range(k))
    bits += "0" * (-k % 8)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))


def draw_rounds(first: int, count: int, each: int, stream: Stream) -> list[int]:
    left, taken = count - first, set[int]()
    for last in range(max(left - each, 0), left):
        drawn = stream.below(last + 1)
        taken.add(last if drawn in taken else drawn)
    return sorted(first + number for number in taken)


# --- codes and domains ---------------------------------------------------------------------------


def code(digest: bytes, device: str, k: int) -> list[int]:
    """The cell of each value."""
    stream = hashlib.shake_128(digest + device.encode()).digest((k + 7) // 8)
    return [stream[i // 8] >> (7 - i % 8) & 1 for i in range(k)]


def bins(attribute: dict[str, Any]) -> int:
    return len(attribute["edges"]) - 1


def domain_size(attribute: dict[str, Any]) -> int:
    """k of an attribute as it stands on the wire."""
    if "values" in attribute:
        return len(attribute["values"])
    ends = attribute["edges"][0], attribute["edges"][-1]
    return bins(attribute) + (not all(map(math.isinf, ends)))
