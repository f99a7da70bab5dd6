"""Weighted sums over some of the values, divided by the share of those: "among whoever gave one".

Claim: the interval of a ratio holds as often as that of a difference, also where the share below
the line is small. It is Fieller's: all r for which the sum less r times the share, which is a
weighted sum itself with a known error, could be 0 by chance. If the share could be 0, that is all
there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from protocol_spec.estimation.histograms import Array
from protocol_spec.estimation.intervals import critical_value

__all__ = ["Parts", "Ratio"]


class Parts(NamedTuple):
    """Variance above the line, covariance with what is below it, variance below it."""

    above: Array
    both: Array
    below: float

    def plus(self, other: Parts) -> Parts:
        """Of errors from both sources, which are independent."""
        return Parts(self.above + other.above, self.both + other.both, self.below + other.below)

    def of_sum(self, ratio: Array) -> Array:
        """Variance of the sum less `ratio` times the share."""
        found: Array = self.above - 2.0 * ratio * self.both + ratio**2 * self.below
        return np.maximum(found, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """One or several ratios with the same share below the line, and where their error comes from.

    The true ratio lies between `smallest` and `largest`.
    """

    sums: Array
    share: float
    privacy: Parts
    sampling: Parts
    smallest: float
    largest: float

    @property
    def values(self) -> Array:
        """The ratios, clipped to what is possible."""
        return self._sums / max(self.share, np.finfo(np.float64).tiny)

    @property
    def _sums(self) -> Array:
        """Clipped to what is possible, which can only raise coverage."""
        share = max(self.share, 0.0)
        return np.minimum(np.maximum(self.sums, self.smallest * share), self.largest * share)

    def is_certain(self, confidence: float = 0.95, comparisons: int = 1) -> bool:
        """Whether the share below the line could not be 0 by chance."""
        z = critical_value(confidence, comparisons)
        return self.share > z * float(np.sqrt(self.privacy.below + self.sampling.below))

    def variance(self, parts: Parts) -> Array:
        """Of the ratios, to first order, from one of the sources of error."""
        if self.share == 0.0:
            return np.full_like(self.values, np.inf)
        found: Array = parts.of_sum(self.values) / self.share**2
        return found

    def interval(
        self, confidence: float = 0.95, *, comparisons: int = 1, sampling: bool = True
    ) -> tuple[Array, Array]:
        """Limits, clipped to what is possible; `comparisons` are to hold all at once."""
        zz = critical_value(confidence, comparisons) ** 2
        above, both, below = self.privacy if not sampling else self.privacy.plus(self.sampling)
        sums = self._sums
        lead = self.share**2 - zz * below
        if lead <= 0.0 or self.share <= 0.0:
            return np.full_like(sums, self.smallest), np.full_like(sums, self.largest)
        middle = (sums * self.share - zz * both) / lead
        reach = middle**2 - (sums**2 - zz * above) / lead
        half = np.sqrt(np.maximum(reach, 0.0))
        return self._clip(middle - half), self._clip(middle + half)

    def _clip(self, ends: Array) -> Array:
        return np.minimum(np.maximum(ends, self.smallest), self.largest)
