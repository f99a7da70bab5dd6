"""The mathematics once more, from the definitions alone, in 80-digit arithmetic.

Nothing is taken from `protocol_spec` and none of its closed forms is repeated: RR2 is the root of
the definition of eps_1, privacy and variance are sums over all that can happen. The files in
`protocol_spec/vectors/` come from here, by

    python -m tests.support.protocol.vectors --write
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import Any

import mpmath

# mpmath has no annotations: a Real is one of its floats, exact to `mp.dps` digits.
Real = Any

mp = mpmath.mp.clone()
mp.dps = 80

LONGITUDINAL = ("L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "L-SS")
ONE_TIME = ("GRR", "OUE", "SUE", "SS")
SETS = ("GRR", "SS", "L-GRR", "L-SS")
STEPS = {
    "L-GRR": ("GRR", "GRR"),
    "L-OUE": ("OUE", "OUE"),
    "L-SUE": ("SUE", "SUE"),
    "L-OSUE": ("OUE", "SUE"),
    "L-SOUE": ("SUE", "OUE"),
    "L-SS": ("GRR", "SS"),
}


@dataclass(frozen=True)
class Mechanism:
    """RR1 (p1, q1) followed by RR2 (p2, q2), on sets of values (of one, then of `size`), or on each
    of k bits."""

    unary: bool
    k: int
    p1: Real
    q1: Real
    p2: Real
    q2: Real
    size: int = 1

    def kept(self, holds: bool) -> Real:
        """Chance that the memo supports a value, if the device holds it or not."""
        return self.p1 if holds else self.q1

    def support(self, holds: bool) -> Real:
        """Chance that one report supports a value."""
        return self.kept(holds) * self.p2 + (1 - self.kept(holds)) * self.q2

    def gap(self) -> Real:
        return self.support(True) - self.support(False)

    def supports(self, holds: bool, t: int) -> list[Real]:
        """Chance of each sequence of t answers about one value with s = 0..t of them in favour."""
        kept, p2, q2 = self.kept(holds), self.p2, self.q2
        return [
            kept * p2**s * (1 - p2) ** (t - s) + (1 - kept) * q2**s * (1 - q2) ** (t - s)
            for s in range(t + 1)
        ]

    def epsilon(self, t: int) -> Real:
        """Largest log-ratio of t reports between two values, by definition."""
        if not self.unary:
            return mp.log(max(self._told(t, among) for among in range(t)))
        ratios = [a / b for a, b in zip(self.supports(True, t), self.supports(False, t)) if b]
        return mp.log(max(ratios) / min(ratios))

    def _told(self, t: int, among: int) -> Real:
        """How much likelier than for another value, which is in `among` of them, are t sets that
        all have the value, if the others have as even a share of the rest as there is?"""
        rest, k = t * (self.size - 1) - among, self.k
        if rest < 0 or rest > t * (k - 2):
            return mp.mpf(1)
        often, more = divmod(rest, max(k - 2, 1))
        b = self.p2 / self.size / ((1 - self.p2) / (k - self.size))
        others = more * b ** (often + 1) + (k - 2 - more) * b**often
        chances = [
            self.p1 * one + self.q1 * (other + others)
            for one, other in ((b**t, b**among), (b**among, b**t))
        ]
        return chances[0] / chances[1]

    def variance(self, n: int, f: float) -> Real:
        """One round of n devices, each holding the value with chance f."""
        gamma = mp.mpf(f) * self.support(True) + (1 - mp.mpf(f)) * self.support(False)
        return gamma * (1 - gamma) / self.gap() ** 2 / n

    def device_variance(self, holds: bool, t: int) -> Real:
        """Of one device's debiased mean of t reports: a sum over how many were in favour."""
        return self.device_cumulants(mp.mpf(holds), t)[0]

    def device_cumulants(self, f: Real, t: int) -> tuple[Real, Real]:
        """Variance and third cumulant of that, if the device holds the value with chance f."""
        both = zip(self.supports(True, t), self.supports(False, t))
        chances = [math.comb(t, s) * (f * a + (1 - f) * b) for s, (a, b) in enumerate(both)]
        mean = mp.fsum(c * s for s, c in enumerate(chances)) / t
        second, third = (
            mp.fsum(
                c * ((mp.mpf(s) / t - mean) / self.gap()) ** power for s, c in enumerate(chances)
            )
            for power in (2, 3)
        )
        return second, third

    def pooled_variance(self, n: int, t: int, f: float) -> Real:
        """Of the mean over n devices that each sent t reports, a share f of them holding it."""
        held = mp.mpf(f)
        total = held * self.device_variance(True, t) + (1 - held) * self.device_variance(False, t)
        return total / n


def report_variance(known: Mechanism, f: list[Real], c: list[float]) -> tuple[Real, Real]:
    """Of sum c_v times the debiased support of v by one report of a device that holds each value
    with chance f: the mean variance given the memo, and the variance of the mean given the memo.

    Of unary protocols, of the sum that is shifted to one. By enumeration of values and memos.
    """
    k, gap = known.k, known.gap()
    centre = mp.fsum(c) / k
    weight = [(mp.mpf(x) - centre) / gap for x in c]
    within = mean = square = mp.mpf(0)
    for x, share in enumerate(f):
        if known.unary:  # of independent bits the means and the variances add up
            kept = [known.kept(v == x) for v in range(k)]
            p2, q2 = known.p2, known.q2
            inner = [r * p2 * (1 - p2) + (1 - r) * q2 * (1 - q2) for r in kept]
            expected = mp.fsum(w * known.support(v == x) for v, w in enumerate(weight))
            memo = [r * (1 - r) * (p2 - q2) ** 2 for r in kept]
            within += share * mp.fsum(w**2 * a for w, a in zip(weight, inner))
            mean += share * expected
            square += share * (expected**2 + mp.fsum(w**2 * a for w, a in zip(weight, memo)))
            continue
        for j in range(k):
            chance = share * known.kept(j == x)
            said = [known.p2 if u == j else known.q2 for u in range(k)]
            expected = mp.fsum(w * r for w, r in zip(weight, said))
            within += chance * (mp.fsum(w**2 * r for w, r in zip(weight, said)) - expected**2)
            mean += chance * expected
            square += chance * expected**2
    return within, square - mean**2


Devices = list[tuple[int, int, Real]]  # reports, how many sent as many, the weight of each of them


def weighed(reports: list[int], devices: list[int]) -> Devices:
    """By reports."""
    every = sum(m * size for m, size in zip(reports, devices))
    return [(m, size, mp.mpf(m) / every) for m, size in zip(reports, devices)]


def cumulants(known: Mechanism, f: Real, devices: Devices) -> list[Real]:
    """Variance and third cumulant of the weighted sum over independent devices."""
    return [
        mp.fsum(size * w**power * known.device_cumulants(f, m)[power - 2] for m, size, w in devices)
        for power in (2, 3)
    ]


def projected(raw: list[Real]) -> list[Real]:
    """The nearest histogram: all less what leaves as many above zero as it was worked out from."""
    every = [(mp.fsum(sorted(raw)[-n:]) / n - mp.mpf(1) / n, n) for n in range(1, len(raw) + 1)]
    less = next(x for x, n in every if sum(share > x for share in raw) == n)
    return [max(share - less, mp.mpf(0)) for share in raw]


def first_step(kind: str, k: int, epsilon: Real, size: int = 1) -> tuple[Real, Real]:
    """p and q of a one-time protocol: SS p + (k-1) q = size, OUE p = 1/2, SUE p + q = 1."""
    ratio = mp.exp(epsilon)
    if kind in SETS:
        p = size * ratio / (size * ratio + k - size)
        return p, (size - p) / (k - 1)
    if kind == "OUE":
        return mp.mpf(1) / 2, 1 / (ratio + 1)
    root = mp.sqrt(ratio)
    return root / (root + 1), 1 / (root + 1)


@cache
def calibrate_once(protocol: str, k: int, epsilon: float) -> Mechanism:
    size = best_size(k, epsilon) if protocol == "SS" else 1
    p, q = first_step(protocol, k, mp.mpf(epsilon), size)
    return Mechanism(protocol not in SETS, k, p, q, mp.mpf(1), mp.mpf(0), size)


@cache
def best_size(k: int, epsilon: float, before: int = 1, above: float | None = None) -> int:
    """Of all sizes, that with the least variance over all values; of those that can be drawn from
    sets of `before` at the epsilon `above`."""

    def variance(size: int) -> Real:
        p, q = first_step("SS", k, mp.mpf(epsilon), size)
        return (p * (1 - p) + (k - 1) * q * (1 - q)) / (p - q) ** 2

    def possible(size: int) -> bool:
        if above is None:
            return True
        pairs = (epsilon, size), (above, before)
        lower, upper = (first_step("SS", k, mp.mpf(e), d)[0] - mp.mpf(d) / k for e, d in pairs)
        return bool(kept(lower / upper, k, before, size) <= 1)

    return min((d for d in range(before, k // 2 + 1) if possible(d)), key=variance, default=before)


def kept(gap: Real, k: int, before: int, size: int) -> Real:
    """The chance of a superset, with which p - q of a step between sets of those sizes is `gap`."""
    return gap * (k - before) / (k - size)


@cache
def calibrate(
    protocol: str, k: int, eps_inf: float, eps_1: float, method: str = "exact"
) -> Mechanism:
    return _calibrate(protocol, k, eps_inf, eps_1, method, _size(protocol, k, eps_inf, eps_1))


def _size(protocol: str, k: int, eps_inf: float, eps_1: float) -> int:
    return best_size(k, eps_1, 1, eps_inf) if protocol == "L-SS" else 1


def _calibrate(
    protocol: str, k: int, eps_inf: Real, eps_1: Real, method: str, size: int
) -> Mechanism:
    first, second = STEPS[protocol]
    p1, q1 = first_step(first, k, mp.mpf(eps_inf))
    c = mp.exp(mp.mpf(eps_1))
    if second == "SS":
        gap = (first_step("SS", k, mp.mpf(eps_1), size)[0] - mp.mpf(size) / k) / (
            p1 - mp.mpf(1) / k
        )
        q2 = (size - gap) / k
        return Mechanism(False, k, p1, q1, q2 + gap, q2, size)
    if second == "GRR":
        p2, q2 = _second_grr(k if method == "exact" else 2, p1, q1, c, k)
    else:
        p2, q2 = _second_unary(second, p1, q1, c)
    return Mechanism(second != "GRR", k, p1, q1, p2, q2)


def _second_grr(counted: int, p1: Real, q1: Real, c: Real, k: int) -> tuple[Real, Real]:
    """p2/q2 = b makes Pr[y = v | v] equal c Pr[y = v | v']. The paper counts only two values."""

    def excess(b: int) -> Real:  # linear in b
        same = p1 * b + (counted - 1) * q1
        other = p1 + q1 * b + (counted - 2) * q1
        return same - c * other

    b = excess(0) / (excess(0) - excess(1))
    return b / (b + k - 1), 1 / (b + k - 1)


def _second_unary(kind: str, p1: Real, q1: Real, c: Real) -> tuple[Real, Real]:
    """q2 at which the odds of a one under a true 1 are c times those under a true 0."""

    def keep(q2: Real) -> Real:
        return mp.mpf(1) / 2 if kind == "OUE" else 1 - q2

    def excess(q2: Real) -> Real:
        ps = p1 * keep(q2) + (1 - p1) * q2
        qs = q1 * keep(q2) + (1 - q1) * q2
        return ps * (1 - qs) - c * (1 - ps) * qs

    q2 = root_between(excess, mp.mpf(0), mp.mpf(1) / 2)
    return keep(q2), q2


def root_between(excess: Callable[[Real], Real], low: Real, high: Real) -> Real:
    """Where a function positive at `low` and negative at `high` is zero; `low` if never positive.

    The Illinois method: false position that halves the value kept on the side that stays.
    """
    at_low, at_high = excess(low), excess(high)
    if at_low <= 0:
        return low
    kept_side = 0
    while high - low > mp.eps * high:
        middle = low + (high - low) * at_low / (at_low - at_high)
        value = excess(middle)
        if value == 0 or middle in (low, high):
            return middle
        if value > 0:
            low, at_low = middle, value
            at_high = at_high / 2 if kept_side > 0 else at_high
            kept_side = 1
        else:
            high, at_high = middle, value
            at_low = at_low / 2 if kept_side < 0 else at_low
            kept_side = -1
    return high


@cache
def largest_eps_1(protocol: str, eps_inf: float) -> Real:
    """What one report spends when RR2 adds nothing (q2 = 0) and keeps a one half of the time."""
    first, second = STEPS[protocol]
    p1, q1 = first_step(first, 2, mp.mpf(eps_inf))
    if second != "OUE":
        return mp.mpf(eps_inf)
    return Mechanism(True, 2, p1, q1, mp.mpf(1) / 2, mp.mpf(0)).epsilon(1)


@cache
def adaptive(k: int, eps_inf: float, eps_1: float, method: str = "exact", rounds: int = 1) -> str:
    """What `auto` is: sets or L-OSUE, the smaller variance over all values of that many reports;
    the paper's choice is L-GRR or L-OSUE, by that of a value that nobody holds."""
    if method == "paper":
        grr, osue = (calibrate(p, k, eps_inf, eps_1, method) for p in ("L-GRR", "L-OSUE"))
        return "L-GRR" if grr.variance(1, 0.0) <= osue.variance(1, 0.0) else "L-OSUE"
    sets, osue = (calibrate(p, k, eps_inf, eps_1) for p in ("L-SS", "L-OSUE"))
    sums = [
        m.device_variance(True, rounds) + (k - 1) * m.device_variance(False, rounds)
        for m in (sets, osue)
    ]
    if sums[0] > sums[1]:
        return "L-OSUE"
    return "L-SS" if sets.size > 1 else "L-GRR"


def digits(number: Real) -> str:
    """A number for the vectors: 17 significant digits, enough for any float64."""
    return str(mp.nstr(number, 17, strip_zeros=False, min_fixed=-5, max_fixed=17))


# --- once, hashed and nested, from the definitions: thresholds, draws, codes, domains


NOT_KNOWN = "none of these / not known"
SCALE = 1 << 64

Step = tuple[int, int]  # p and q in units of 2^-64; of sets, the chance of a superset and the size
Adjust = Callable[[float], Real]


def lower(epsilon: float) -> float:
    return math.nextafter(epsilon, 0.0)


def rounded(p: Real, q: Real) -> Step:
    """p down and q up, in units of 2^-64."""
    return int(mp.floor(p * SCALE)), int(mp.ceil(q * SCALE))


def floored(probability: Real) -> int:
    return int(mp.floor(probability * SCALE))


def better_once(k: int, epsilon: float) -> str:
    """Sets of the best size, which never have more variance than OUE."""
    return "SS" if best_size(k, epsilon) > 1 else "GRR"


def once_step(protocol: str, k: int, epsilon: Real, size: int) -> Step:
    p, q = first_step(protocol, k, mp.mpf(epsilon), size)
    return (floored(kept(p - q, k, 1, size)), size) if protocol in SETS else rounded(p, q)


@cache
def thresholds(
    protocol: str,
    k: int,
    eps_inf: float,
    eps_1: float,
    method: str = "exact",
    adjusted: Adjust = lower,
) -> list[Step]:
    """Of RR1 and RR2, at adjusted epsilons."""
    size = _size(protocol, k, eps_inf, eps_1)
    m = _calibrate(protocol, k, adjusted(eps_inf), adjusted(eps_1), method, size)
    if protocol not in SETS:
        return [rounded(m.p1, m.q1), rounded(m.p2, m.q2)]
    pairs = (m.p1 - m.q1, 1, 1), (m.p2 - m.q2, 1, size)
    return [(floored(kept(gap, k, *sizes)), sizes[1]) for gap, *sizes in pairs]


def once_thresholds(protocol: str, k: int, epsilon: float, adjusted: Adjust = lower) -> Step:
    size = best_size(k, epsilon) if protocol == "SS" else 1
    return once_step(protocol, k, adjusted(epsilon), size)


def nested_sizes(protocol: str, k: int, levels: Sequence[float]) -> list[int]:
    """The best there are, level 1 first, each at least that of the level above."""
    if protocol != "SS":
        return [1] * len(levels)
    sizes = [best_size(k, levels[-1])]
    for level, above in reversed(list(pairwise(levels))):
        sizes.insert(0, best_size(k, level, sizes[0], above))
    return sizes


def better_nested(k: int, levels: Sequence[float]) -> str:
    return "SS" if nested_sizes("SS", k, levels)[0] > 1 else "GRR"


def nested_thresholds(
    protocol: str, k: int, levels: Sequence[float], adjusted: Adjust = lower
) -> list[Step]:
    """Of the step to each level from the one above it, level 1 first."""
    sizes, found = nested_sizes(protocol, k, levels), list[Step]()
    for (level, above), (size, before) in zip(pairwise(map(adjusted, levels)), pairwise(sizes)):
        if protocol == "OUE":
            step = _calibrate("L-OSUE", k, above, level, "exact", 1)
            found.append(rounded(step.p2, step.q2))
            continue
        pairs = (level, size), (above, before)
        low, high = (first_step("SS", k, mp.mpf(e), d)[0] - mp.mpf(d) / k for e, d in pairs)
        found.append((floored(kept(low / high, k, before, size)), size))
    return [*found, once_step(protocol, k, adjusted(levels[-1]), sizes[-1])]


def nested_probabilities(protocol: str, k: int, levels: Sequence[float]) -> list[tuple[Real, Real]]:
    """Of supporting the true value, and another, at each level: the steps one after another."""
    kept, added, found, before = mp.mpf(1), mp.mpf(0), [], 1
    for p, q in reversed(nested_thresholds(protocol, k, levels)):
        keep, add = mp.mpf(p) / SCALE, mp.mpf(q) / SCALE
        if protocol != "OUE":
            blind = (1 - keep) * q / k  # p is the chance of a superset, q its size
            keep, add = keep + blind, keep * (q - before) / (k - before) + blind
            before = q
        kept, added = (x * keep + (1 - x) * add for x in (kept, added))
        found.append((kept, added))
    return found[::-1]


def default_levels(eps_inf: float, eps_1: float) -> list[float]:
    """eps_1, what 2, 3, ... reports of an L-OSUE's memo tell, to six decimals, then eps_inf."""
    mechanism = calibrate("L-OSUE", 2, eps_inf, eps_1)
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


def respond(protocol: str, k: int, said: list[int], step: Step, stream: Stream) -> list[int]:
    """One randomised response to a set of supported values, as the set it becomes."""
    keep, add = step
    if protocol in SETS:
        chosen = set(said) if stream.chance(keep) else set[int]()
        while len(chosen) < add:
            chosen.add(stream.below(k))
        return sorted(chosen)
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


def domain_size(attribute: dict[str, Any]) -> int:
    """k of an attribute as it stands on the wire."""
    if "cross" in attribute:
        return math.prod(map(domain_size, attribute["cross"]))
    if "values" in attribute:
        return len(attribute["values"])
    ends = attribute["edges"][0], attribute["edges"][-1]
    return len(attribute["edges"]) - 1 + (not all(map(math.isinf, ends)))


# --- Mechanisms as tables of exact fractions, from the integers that devices draw with.


Answer = int  # k bits


@cache
def response(
    unary: bool, k: int, thresholds: tuple[int, int], given: Answer
) -> dict[Answer, Fraction]:
    """Chance of every answer to an answer."""
    p, q = (Fraction(threshold, SCALE) for threshold in thresholds)
    if not unary:
        sets = [y for y in range(1 << k) if y.bit_count() == thresholds[1]]
        supersets = [y for y in sets if y & given == given]
        blind = (1 - p) / len(sets)
        return {y: blind + (p / len(supersets) if y in supersets else 0) for y in sets}
    chances = {}
    for y in range(1 << k):
        chance = Fraction(1)
        for i in range(k):
            one = p if given >> i & 1 else q
            chance *= one if y >> i & 1 else 1 - one
        chances[y] = chance
    return chances


def true_answer(index: int) -> Answer:
    """The answer that supports exactly one value, before any noise."""
    return 1 << index


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
