"""Campaigns by sufficient statistics: counts with exactly the law of n devices, without them.

Devices that hold, or memoised, the same thing are exchangeable, so binomial and multinomial draws
replace them. Each row of the answers is one run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from protocol_spec import Calibration
from simulation.counts import answers

Counts = npt.NDArray[np.int64]
Frequencies = npt.NDArray[np.float64]


def holders(rng: np.random.Generator, n: int, f: Frequencies, runs: int) -> Counts:
    """How many of n devices hold each value, for devices drawn from a large fleet."""
    return np.asarray(rng.multinomial(n, f, size=runs), dtype=np.int64)


def one_round(rng: np.random.Generator, c: Calibration, held: Counts) -> Counts:
    """Support of each value in one round."""
    return respond(rng, c.size, held, c.ps, c.qs, held.sum(axis=1, keepdims=True))


def rounds(rng: np.random.Generator, c: Calibration, held: Counts, m: int) -> Counts:
    """Support of each value in m rounds of all devices, each with one memo for life."""
    n = held.sum(axis=1, keepdims=True)
    memos = respond(rng, c.memo_size, held, c.p1, c.q1, n)
    return respond(rng, c.size, m * memos, c.p2, c.q2, m * n)


def respond(
    rng: np.random.Generator, size: int, true: Counts, p: float, q: float, total: Counts
) -> Counts:
    """Answers in favour: `true` of `total` are kept with chance p, the others appear with q.

    An answer that is no vector of bits is a set of `size` values.
    """
    if not size:
        return rng.binomial(true, p) + rng.binomial(total - true, q)
    return answers(rng, true, p - q, size)


def unequal_rounds(
    rng: np.random.Generator,
    c: Calibration,
    groups: Sequence[tuple[int, int]],
    f: Frequencies,
    runs: int,
) -> tuple[Counts, Counts]:
    """(holders, support) summed over groups of devices: (reports each, devices)."""
    held = [holders(rng, devices, f, runs) for _, devices in groups]
    parts = [rounds(rng, c, each, m) for each, (m, _) in zip(held, groups)]
    return np.sum(held, axis=0), np.sum(parts, axis=0)


def zipf(k: int) -> Frequencies:
    """A few common values and many rare ones."""
    weights = 1.0 / np.arange(1, k + 1)
    return np.asarray(weights / weights.sum())


def steep(k: int) -> Frequencies:
    """Zipf with exponent 1.5: one very common value, a long tail of hardly any."""
    weights = np.arange(1, k + 1) ** -1.5
    return np.asarray(weights / weights.sum())


def dominant(k: int) -> Frequencies:
    """97 % hold the first value; the others share the rest."""
    return np.array([0.97, *([0.03 / (k - 1)] * (k - 1))])


def uniform(k: int) -> Frequencies:
    return np.full(k, 1.0 / k)


def point(k: int) -> Frequencies:
    """Every device holds the first value."""
    return np.asarray(np.eye(k)[0], dtype=np.float64)
