"""Clopper and Pearson's bounds of a probability, one-sided and exact."""

from __future__ import annotations

import math
from functools import cache


def upper_tail(successes: int, trials: int, probability: float) -> float:
    """The probability of that many successes or more."""
    if successes <= 0 or probability >= 1:
        return 1.0
    if probability <= 0:
        return 0.0
    log = (
        math.lgamma(trials + 1)
        - math.lgamma(successes + 1)
        - math.lgamma(trials - successes + 1)
        + successes * math.log(probability)
        + (trials - successes) * math.log1p(-probability)
    )
    term, odds, terms = math.exp(log), probability / (1 - probability), []
    for i in range(successes, trials + 1):
        terms.append(term)
        term *= (trials - i) / (i + 1) * odds
        if term < 1e-20 * terms[0]:  # terms rise up to the mean and fall behind it
            break
    return math.fsum(terms)


@cache
def lower_bound(successes: int, trials: int, risk: float) -> float:
    """The probability is below this with at most that risk: where the tail is as large as it."""
    low, high = 0.0, successes / trials
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if upper_tail(successes, trials, middle) < risk:
            low = middle
        else:
            high = middle
    return low


def upper_bound(successes: int, trials: int, risk: float) -> float:
    """The probability is above this with at most that risk."""
    return 1 - lower_bound(trials - successes, trials, risk)
