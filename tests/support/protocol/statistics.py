"""Verdicts for statistical tests: distances from the theory in standard deviations.

Seeds are fixed and printed by the failing assertion, so a verdict is the same in every run. The
limit is four standard deviations: a right program exceeds it by chance once in 16 000 comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LIMIT = 4.0


def binomial_z(successes: int, trials: int, chance: float) -> float:
    """How far a number of successes is from its expectation."""
    spread = math.sqrt(trials * chance * (1 - chance))
    return (successes - trials * chance) / spread


def uniform_z(counts: Sequence[int]) -> float:
    """Pearson's chi-square of equal chances, made normal by Wilson and Hilferty's cube root."""
    expected = sum(counts) / len(counts)
    freedom = len(counts) - 1
    chi_square = math.fsum((count - expected) ** 2 for count in counts) / expected
    part = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - part)) / math.sqrt(part))


def mean_z(sample_mean: float, expected: float, sample_variance: float, runs: int) -> float:
    """How far a mean over independent runs is from its expectation."""
    return (sample_mean - expected) / math.sqrt(sample_variance / runs)
