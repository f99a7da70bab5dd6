"""Counts and sums as both databases keep them in a row; counts are little-endian, 64 bits each."""

from __future__ import annotations

import numpy as np

from collector.records import RoundSum, Tally
from collector.store.shared import together


def read_tally(n: int, counts: bytes) -> Tally:
    """The counts of one round."""
    return Tally(n, np.frombuffer(counts, dtype="<i8").astype(np.int64))


def read_sum(first: int, last: int, rounds: int, n: int, counts: bytes) -> RoundSum:
    """Several rounds."""
    return RoundSum(first, last, rounds, read_tally(n, counts))


def sum_row(known: RoundSum | None, more: RoundSum) -> tuple[int, int, int, int, bytes]:
    """Several rounds that are known, if any are, with more of them."""
    both = together([known, more] if known else [more])
    counts = both.tally.counts.astype("<i8").tobytes()
    return both.first, both.last, both.rounds, both.tally.n, counts
