"""Raw estimates as histograms: shifted to sum to one, or projected on what is possible."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "project_to_simplex", "shift_to_one", "within_one"]

Array = npt.NDArray[np.float64]


def project_to_simplex(raw: npt.ArrayLike) -> Array:
    """Euclidean projection on the histograms (also called Norm-Sub), along the last axis."""
    values = np.asarray(raw, dtype=np.float64)
    falling = -np.sort(-values, axis=-1)
    excess = (np.cumsum(falling, axis=-1) - 1.0) / np.arange(1, values.shape[-1] + 1)
    positive = (falling > excess).sum(axis=-1, keepdims=True)
    projected: Array = values - np.take_along_axis(excess, positive - 1, axis=-1)
    return np.maximum(projected, 0.0, out=projected)


def within_one(raw: Array) -> Array:
    """Clipped to [0, 1], in a third of the time that `np.clip` takes for a few numbers."""
    return np.minimum(np.maximum(raw, 0.0), 1.0)


def shift_to_one(raw: npt.ArrayLike) -> Array:
    """Add the same amount to every estimate so that they sum to one; stays unbiased."""
    values = np.asarray(raw, dtype=np.float64)
    missing = 1.0 - values.sum(axis=-1, keepdims=True)
    shifted: Array = values + missing / values.shape[-1]
    return shifted
