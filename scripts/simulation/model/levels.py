"""Rounds of devices that release one value gradually, as counts alone (`reporting = "nested"`).

A device draws the level of its last report first and every level below from the one above. Seen
the other way, the next report depends on the value and on the report before it alone: a chain whose
chances follow by Bayes' rule from the integers that devices draw with. So the numbers of devices by
value, last report and number of reports are all that is kept.

Exact, given who holds what: for GRR everything jointly; for OUE what `simulation.model.memos` says
of unary protocols.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec import drawn_chances
from protocol_spec.reporting import Nested, nested_thresholds
from protocol_spec.ways import NestedWay
from simulation.model.counts import Counts
from simulation.model.memos import Rates, Round, UnaryFleet, longer, step

Array = npt.NDArray[np.float64]


class Chain(NamedTuple):
    """Chances with and without the value, level by level: of the level alone, and of the step
    from the level above to it. Level 0 is before the first report."""

    p: Array
    q: Array
    keep: Array
    add: Array


@lru_cache(maxsize=256)
def chain_of(nested: Nested) -> Chain:
    """The chain that devices draw."""
    levels, unary = nested.as_drawn().levels, nested.levels[-1].unary
    steps = [drawn_chances(each, unary, nested.k) for each in nested_thresholds(nested)]
    table = [(level.exact.p1, level.exact.q1, *each) for level, each in zip(levels, steps)]
    return Chain(*np.array(table, dtype=np.float64).T)


class Levels:
    """A fleet with its nested reports: call `round` once for each round, in order.

    Rounds have `n[..., level]` and `counts[..., level, v]`.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        way: NestedWay,
        truth: npt.ArrayLike,
        *,
        dropout: npt.ArrayLike = 0.0,
        churn: float = 0.0,
    ) -> None:
        held = np.asarray(truth, dtype=np.int64)
        rates = np.broadcast_to(np.asarray(dropout, dtype=np.float64), held.shape[-1:])
        kind = _UnaryLevels if way.counted.unary else _GeneralisedLevels
        self._fleet = kind(rng, way, held, 1.0 - rates)
        self._churn = churn
        self._left = np.zeros((*held.shape[:-1], 1), dtype=np.int64)
        self._begun = False

    def round(self) -> Round:
        """The next round's reports, counted."""
        if self._begun and self._churn:
            self._left = self._left + self._fleet.replace(self._churn)
        self._begun = True
        self._left = longer(self._left, 1)
        return self._fleet.round()

    @property
    def participation(self) -> Counts:
        """`[..., m]` devices sent m reports so far, those that have left included."""
        return self._left + self._fleet.devices()


def _levels_of(columns: int, levels: int) -> Counts:
    """`[m, level]`: 1 where the next report of a device that sent m is of that level."""
    places = np.minimum(np.arange(columns), levels - 1)
    chosen: Counts = (places[:, np.newaxis] == np.arange(levels)).astype(np.int64)
    return chosen


class _UnaryLevels(UnaryFleet):
    """Bits of the last report in place of a memo's; before the first report they are all 0."""

    def __init__(
        self, rng: np.random.Generator, way: NestedWay, held: Counts, present: Rates
    ) -> None:
        super().__init__(rng, way.channels[-1], held, present, False)
        self._chain, self._first = chain_of(way.nested), (0.0, 0.0)
        self._mine, self._theirs = np.zeros_like(self._mine), np.zeros_like(self._theirs)

    def round(self) -> Round:
        reporting = self._rng.binomial(self._held, self._present[:, np.newaxis])
        mine, theirs = self._ones(reporting)
        next_mine = self._next(mine, reporting, self._chain.p)
        next_theirs = self._next(theirs, self._others(reporting), self._chain.q)
        ones = next_mine + next_theirs.sum(axis=-3)
        level = _levels_of(reporting.shape[-1], self._chain.p.size)
        counts = np.moveaxis(ones @ level, -1, -2)
        self._held = step(self._held, reporting)
        self._mine = longer(self._mine - mine, 1)
        self._mine[..., 1:] += next_mine
        self._theirs = longer(self._theirs - theirs, 1)
        self._theirs[..., 1:] += next_theirs
        return Round(reporting.sum(axis=-2) @ level, counts)

    def _next(self, ones: Counts, all_bits: Counts, chance: Array) -> Counts:
        """Ones of the next report, among bits that are 1 with that chance at each level."""
        keep, low, high = self._chain.keep[:-1], chance[:-1], chance[1:]
        stays, turns = high * keep / low, high * (1.0 - keep) / (1.0 - low)
        places = np.minimum(np.arange(ones.shape[-1]), chance.size)
        from_one = np.array([0.0, *stays, 1.0])[places]
        from_zero = np.array([chance[0], *turns, 0.0])[places]
        drawn: Counts = self._rng.binomial(ones, from_one)
        drawn += self._rng.binomial(all_bits - ones, from_zero)
        return drawn


class _GeneralisedLevels:
    """`[..., value, last report, m]` devices; before the first report it is the value itself."""

    def __init__(
        self, rng: np.random.Generator, way: NestedWay, held: Counts, present: Rates
    ) -> None:
        self._rng, self._present, self._k = rng, present[:, np.newaxis, np.newaxis], way.k
        self._same = np.eye(way.k, dtype=np.int64)
        self._table = self._at_first(held)
        chain = chain_of(way.nested)
        self._levels = chain.p.size
        low, high, add = chain.q[:-1], chain.q[1:], chain.add[:-1]
        # From the value itself to another one; from another one to the value, to itself, to a third
        self._lose = np.array([chain.q[0], *(high * add / chain.p[:-1]), 0.0])
        self._third = np.array([0.0, *(high * add / low), 0.0])
        self._find = np.array([0.0, *(chain.p[1:] * add / low), 0.0])

    def round(self) -> Round:
        reporting = self._rng.binomial(self._table, self._present)
        said = self._next(reporting)
        level = _levels_of(reporting.shape[-1], self._levels)
        counts = np.moveaxis(said.sum(axis=-3) @ level, -1, -2)
        self._table = longer(self._table - reporting, 1)
        self._table[..., 1:] += said
        return Round(reporting.sum(axis=(-3, -2)) @ level, counts)

    def replace(self, churn: float) -> Counts:
        leaving = self._rng.binomial(self._table, churn)
        self._table -= leaving
        self._table[..., :1] += self._at_first(leaving.sum(axis=(-2, -1)))
        gone: Counts = leaving.sum(axis=(-3, -2))
        return gone

    def devices(self) -> Counts:
        total: Counts = self._table.sum(axis=(-3, -2))
        return total

    def _at_first(self, held: Counts) -> Counts:
        return (held[..., np.newaxis] * self._same)[..., np.newaxis]

    def _next(self, reporting: Counts) -> Counts:
        """Keep what was said, say the value, or any of the k: mixed so that chances are right."""
        places = np.minimum(np.arange(reporting.shape[-1]), self._levels)
        lose, third, find = (x[places] for x in (self._lose, self._third, self._find))
        draw, same = self._rng.binomial, self._same[..., np.newaxis]
        guessing = draw(reporting, np.where(same, self._k * lose, self._k * third))
        rest = reporting - guessing
        to_value = (find - third) / (1.0 - self._k * third)
        finding = draw(rest * (1 - same), to_value)
        said = rest - finding + finding.sum(axis=-2, keepdims=True) * same
        guesses = self._rng.multinomial(guessing.sum(axis=-2), np.full(self._k, 1.0 / self._k))
        total: Counts = said + np.moveaxis(guesses, -1, -2)
        return total
