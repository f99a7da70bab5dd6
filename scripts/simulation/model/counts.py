"""Counts with exactly the law of n devices, without the devices: one round, fresh memos.

Devices that hold the same value are exchangeable: binomial, multinomial and hypergeometric draws
replace them, and what is kept grows with the number of values, not of devices. Given who holds
what, `one_round` has the joint law of all counts of a round: the k bits of a unary report are
independent given the device's value, and an L-GRR report is one draw of a multinomial.

Pass the calibration as drawn (`protocol_spec.as_drawn`): those are the chances devices use.
Several rounds of the same devices, who remember their memos, are `simulation.model.memos`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from protocol_spec import Calibration

Counts = npt.NDArray[np.int64]


def one_round(rng: np.random.Generator, calibration: Calibration, truth: npt.ArrayLike) -> Counts:
    """Support of each value in one round with fresh memos; `truth[..., v]` devices hold v."""
    held = np.asarray(truth, dtype=np.int64)
    if calibration.unary:
        return _unary(rng, held, calibration.ps, calibration.qs)
    return generalised(rng, held, calibration.gap)


def groups(
    rng: np.random.Generator, counts: Sequence[npt.ArrayLike], sizes: npt.ArrayLike
) -> list[Counts]:
    """Who holds what among the devices that drew each attribute.

    `counts[a]` are the whole population's counts of attribute a; `sizes[..., a]` devices drew it,
    each population without replacement. Leading axes of `sizes` are runs. What a device holds of
    one attribute is taken to tell nothing of another: the groups' draws are independent.
    """
    drew = np.asarray(sizes, dtype=np.int64)
    return [_without_replacement(rng, held, drew[..., a]) for a, held in enumerate(counts)]


def _unary(rng: np.random.Generator, held: Counts, keep: float, add: float) -> Counts:
    """Ones per value: kept where the value is held, added where it is not."""
    others = held.sum(axis=-1, keepdims=True) - held
    ones: Counts = rng.binomial(held, keep) + rng.binomial(others, add)
    return ones


def generalised(rng: np.random.Generator, held: Counts, gap: float) -> Counts:
    """Answers per value. GRR keeps the value with chance gap = p - q and otherwise says any of the
    k values, itself included: the same law as one multinomial per value held, in k steps, not k^2.
    """
    kept = rng.binomial(held, gap)
    k = held.shape[-1]
    guesses = rng.multinomial((held - kept).sum(axis=-1), np.full(k, 1.0 / k))
    return np.asarray(kept + guesses, dtype=np.int64)


def _without_replacement(rng: np.random.Generator, counts: npt.ArrayLike, sizes: Counts) -> Counts:
    """Multivariate hypergeometric draws of several sizes at once, value after value."""
    held = np.asarray(counts, dtype=np.int64)
    rest = np.cumsum(held[::-1])[::-1] - held  # devices with a later value
    left = sizes
    columns = []
    for here, later in zip(held, rest):
        drawn = rng.hypergeometric(here, later, left)
        left = left - drawn
        columns.append(drawn)
    return np.stack(columns, axis=-1).astype(np.int64)
