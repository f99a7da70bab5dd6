"""Clopper and Pearson's bounds of a chance, one-sided and exact."""

from __future__ import annotations

import math


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


def lower_bound(successes: int, trials: int, risk: float) -> float:
    """The chance is below this with at most that risk."""
    low, high = 0.0, successes / trials
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if upper_tail(successes, trials, middle) < risk else (low, middle)
        )
    return low


def upper_bound(successes: int, trials: int, risk: float) -> float:
    """The chance is above this with at most that risk."""
    return 1 - lower_bound(trials - successes, trials, risk)
