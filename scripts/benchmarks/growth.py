"""Whether something grows: the slope of its peaks over time, with an interval, by rank statistics.

The second half of the samples is cut into blocks, and each block's greatest value counts: a log
that fills and is emptied has the same peak again and again, and blocks depend on each other less.
Theil and Sen: the median of the slopes of all pairs of blocks, which a single jump does not move
much. The interval is Kendall's, 95 %. A limit says from which slope on growth matters at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

BLOCKS: Final = 20
NORMAL_975: Final = 1.959964
HOUR_SECONDS: Final = 3600.0


class Slope(NamedTuple):
    """Per hour: what is certain (the lower end), the estimate, and the upper end."""

    low: float
    middle: float
    high: float


def growth(seconds: Sequence[float], values: Sequence[float]) -> Slope:
    """How much the values grow in an hour, from the second half of the samples alone."""
    first = len(seconds) // 2
    blocks = min(BLOCKS, len(seconds) - first)
    t = np.array([block[-1] for block in np.array_split(seconds[first:], blocks)])
    v = np.array([block.max() for block in np.array_split(values[first:], blocks)])
    i, j = np.triu_indices(len(t), 1)
    if not len(i):
        return Slope(0.0, 0.0, 0.0)
    slopes = np.sort((v[j] - v[i]) / (t[j] - t[i])) * HOUR_SECONDS
    n, pairs = len(t), len(slopes)
    half = NORMAL_975 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((pairs - half) / 2) - 1)
    high = min(pairs - 1, math.ceil((pairs + half) / 2))
    return Slope(float(slopes[low]), float(np.median(slopes)), float(slopes[high]))
