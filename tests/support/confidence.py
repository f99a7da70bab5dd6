"""Clopper and Pearson's bounds of a chance, one-sided and exact."""

from __future__ import annotations

import math
from functools import cache

CLOSE = 1e-14  # of ends, in logarithms
TINY = 1e-300


def upper_tail(successes: int, trials: int, chance: float) -> float:
    """The chance of that many successes or more."""
    if successes <= 0 or chance >= 1:
        return 1.0
    if chance <= 0:
        return 0.0
    log = (
        math.lgamma(trials + 1)
        - math.lgamma(successes + 1)
        - math.lgamma(trials - successes + 1)
        + successes * math.log(chance)
        + (trials - successes) * math.log1p(-chance)
    )
    term, odds, terms = math.exp(log), chance / (1 - chance), []
    for i in range(successes, trials + 1):
        terms.append(term)
        term *= (trials - i) / (i + 1) * odds
        if term < 1e-20 * terms[0]:  # terms rise up to the mean and fall behind it
            break
    return math.fsum(terms)


@cache
def lower_bound(successes: int, trials: int, risk: float) -> float:
    """The chance is below this with at most that risk, which is at most a quarter.

    Where the tail is as large as the risk. Its logarithm is nearly linear in that of the chance:
    secants between two ends find it in a few steps, and bisection in sixty. The value at an end
    that stayed twice is halved, so that both ends close in; the lower one is the answer.
    """
    assert risk <= 0.25, "the tail at the share itself is larger"
    if successes <= 0:
        return 0.0

    def excess(log_chance: float) -> float:
        return math.log(upper_tail(successes, trials, math.exp(log_chance)) or TINY) - log_risk

    log_risk, high = math.log(risk), math.log(successes / trials)
    low, above = high - 1.0, excess(high)
    while (below := excess(low)) >= 0:
        low, high, above = low - 1.0, low, below
    stayed = 0
    while high - low > CLOSE:
        step = above / (above - below) * (high - low)
        middle = high - min(max(step, CLOSE / 2), high - low - CLOSE / 2)
        found = excess(middle)
        if found < 0:
            above = above / 2 if stayed < 0 else above
            low, below, stayed = middle, found, -1
        else:
            below = below / 2 if stayed > 0 else below
            high, above, stayed = middle, found, 1
    return math.exp(low)


def upper_bound(successes: int, trials: int, risk: float) -> float:
    """The chance is above this with at most that risk."""
    return 1 - lower_bound(trials - successes, trials, risk)
