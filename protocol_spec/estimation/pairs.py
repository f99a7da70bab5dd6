"""Two questions answered together: a table, its margins, and whether the two are related.

Claim: the table is a histogram whose margins are the best histograms of the two questions alone;
the error of a margin is that of a sum of cells, with their exact covariance; and two questions that
are not related are called related with at most the stated chance, whatever the noise.

A pair with a and b values has k = a b cells, in rows: `raw` is the table read row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol_spec.errors import ParameterError
from protocol_spec.estimation.frequencies import Estimate
from protocol_spec.estimation.intervals import (
    Array,
    Moments,
    excess,
    project_to_simplex,
    shift_to_one,
)

RELATION_ALARMS: Final = 0.01  # the chance to call two questions related that are not
_BLOCK: Final = 111  # tables without a relation at once,
_BLOCKS: Final = 9  # and how often
_TURNS: Final = 2000
_NEAR: Final = 1e-12

Shape = tuple[int, ...]  # of two numbers


# --- the table and its margins --------------------------------------------------------------------


def project_pair(raw: npt.ArrayLike, shape: Shape) -> Array:
    """The nearest histogram with the nearest histograms of both questions as its margins.

    The nearest histogram alone has margins that are far off: it cuts what is below zero in every
    cell, so that a rare value with many cells gains what a frequent one loses.
    """
    table = shift_to_one(raw).reshape(shape)
    rows, columns = (project_to_simplex(table.sum(axis=axis))[:, None] for axis in (1, 0))
    found, down = table, 0.0 * columns.T
    for _ in range(_TURNS):
        across = excess(table - down, rows)
        down = excess((table - across).T, columns).T
        found = np.maximum(table - across - down, 0.0)
        if np.abs(found.sum(axis=1, keepdims=True) - rows).max() < _NEAR:
            break
    return found.ravel()


def margins(estimated: Estimate, shape: Shape) -> list[Estimate]:
    """Of the first question and of the second, as if they had been asked alone.

    Their projections are the sums of the table that `project_pair` gives.
    """
    table, k = estimated.shifted.reshape(shape), estimated.raw.size
    return [
        Estimate(table.sum(axis=axis), moments_of_sum(estimated.moments, k // n, k), True)
        for axis, n in zip((1, 0), shape)
    ]


def moments_of_sum(known: Moments, cells: int, k: int) -> Moments:
    """Of the sum of that many bars, shifted so that all k sum to one.

    It weighs its own bars by 1 - cells / k and the others by -cells / k. Third cumulants are taken
    as if bits were independent, which is exact for unary protocols.
    """
    own, other = 1.0 - cells / k, -cells / k
    squares, cubes = (cells * own**n + (k - cells) * other**n for n in (2, 3))
    return replace(
        known,
        v0=known.base * squares + known.base_slope * other**2,
        slope=known.base_slope * (own**2 - other**2),
        third0=known.third0 * cubes + known.third_slope * other**3,
        third_slope=known.third_slope * (own**3 - other**3),
        base=known.base * cells,
        coupled=known.base_coupled * (own**2 - other**2),
    )


# --- are the two related? -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relation:
    """`p_value` is the chance of a table as far from independence as this one if there is no
    relation; it is never below 1/1000."""

    p_value: float
    false_alarms: float

    @property
    def shown(self) -> bool:
        return self.p_value < self.false_alarms


def relation(estimated: Estimate, shape: Shape, false_alarms: float = RELATION_ALARMS) -> Relation:
    """Is the share of a pair other than the product of the shares of its two values?

    A score test: what no margins explain of the table, in units of the error that cells would have
    if there were no relation. Its distribution is that of tables drawn with the exact variance,
    covariance and skewness for the product of the margins, treated as this one: a formula for many
    devices would forget that margins are as noisy as cells.
    """
    if not 0.0 < false_alarms < 1.0 or min(shape) < 2 or shape[0] * shape[1] != estimated.raw.size:
        raise ParameterError("shape", shape, "two questions, and a chance between 0 and 1")
    known, raw = estimated.moments, estimated.shifted.reshape(1, *shape)
    rows, columns = _margins(raw)
    unrelated = (rows[:, :, None] * columns[:, None, :]).ravel()
    least, further = _unexplained(raw, known)[0] * (1.0 - 1e-9), 0
    rng = np.random.default_rng(raw.view(np.uint32).ravel())  # the same result, the same chance
    for _ in range(_BLOCKS):
        tables = _drawn(known, unrelated, rng).reshape(-1, *shape)
        further += int((_unexplained(tables, known) >= least).sum())
    return Relation((1 + further) / (1 + _BLOCKS * _BLOCK), false_alarms)


def _drawn(known: Moments, f: Array, rng: np.random.Generator) -> Array:
    """Estimates of a known histogram, with their covariance, and with the skewness of each bar."""
    skewness = known.skewness(f)
    shape = 4.0 / np.maximum(np.abs(skewness), 1e-4) ** 2  # of gamma, which is as skewed
    noise = np.copysign(1.0, skewness) * (rng.standard_gamma(shape, (_BLOCK, f.size)) - shape)
    error = np.sqrt((known.base + f * (known.base_slope + known.dilution)) / shape)
    return shift_to_one(f + error * noise)


def _margins(tables: Array) -> list[Array]:
    return [project_to_simplex(tables.sum(axis=axis)) for axis in (2, 1)]


def _unexplained(tables: Array, known: Moments) -> Array:
    """What is left of each table without everything that has its rows' or its columns' shares.

    Cells count by their variance without a relation, as nearly as a product of one number for each
    row and each column can be it: then both kinds are projected away one after the other.
    """
    rows, columns = _margins(tables)
    slope = known.base_slope + known.dilution
    down, across = (
        known.base + slope * s / n for s, n in zip((rows, columns), tables.shape[:0:-1])
    )
    left = tables / np.sqrt(down[:, :, None] * across[:, None, :])
    rows, columns = rows / np.sqrt(down), columns / np.sqrt(across)
    rows, columns = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rows, columns))
    left -= (left @ columns[:, :, None]) * columns[:, None, :]
    left -= rows[:, :, None] * (rows[:, None, :] @ left)
    found: Array = (left * left).sum(axis=(1, 2))
    return found
