"""Verdicts for statistical tests: distances from the theory in standard deviations.

Seeds are fixed and printed by the failing assertion, so a verdict is the same in every run. The
limit is four standard deviations: a right program exceeds it by chance once in 16 000 comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

LIMIT = 4.0


def binomial_z(successes: int, trials: int, chance: float) -> float:
    """How far a number of successes is from its expectation."""
    spread = math.sqrt(trials * chance * (1 - chance))
    return (successes - trials * chance) / spread


def uniform_z(counts: Sequence[int]) -> float:
    """Pearson's chi-square of equal chances."""
    expected = sum(counts) / len(counts)
    freedom = len(counts) - 1
    chi_square = math.fsum((count - expected) ** 2 for count in counts) / expected
    return chi_square_z(chi_square, freedom)


def chi_square_z(chi_square: float, freedom: int) -> float:
    """By Wilson and Hilferty's cube root."""
    part = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - part)) / math.sqrt(part))


def mean_z(sample_mean: float, expected: float, sample_variance: float, runs: int) -> float:
    """How far a mean over independent runs is from its expectation."""
    return (sample_mean - expected) / math.sqrt(sample_variance / runs)


# --- Clopper and Pearson's bounds of a probability, one-sided and exact


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
