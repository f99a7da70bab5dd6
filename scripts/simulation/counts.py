"""Counts with exactly the law of n devices, without the devices: one round, fresh memos.

Devices that hold the same value are exchangeable: binomial, multinomial and hypergeometric draws
replace them, and what is kept grows with the number of values, not of devices. Given who holds
what, `one_round` has the joint law of all counts of a round: the k bits of a unary report are
independent given the device's value, and an L-GRR report is one draw of a multinomial.

Pass the calibration as drawn (`protocol_spec.as_drawn`): those are the chances devices use.
Several rounds of the same devices, who remember their memos, are `simulation.counts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from protocol_spec import Calibration, as_drawn, drawn_chances
from protocol_spec.estimation import Channel
from protocol_spec.reporting import Nested, nested_thresholds
from protocol_spec.ways import NestedWay, OnceWay

Counts = npt.NDArray[np.int64]


def one_round(rng: np.random.Generator, calibration: Calibration, truth: npt.ArrayLike) -> Counts:
    """Support of each value in one round with fresh memos; `truth[..., v]` devices hold v."""
    held = np.asarray(truth, dtype=np.int64)
    if calibration.unary:
        return _unary(rng, held, calibration.ps, calibration.qs)
    return generalised(rng, held, calibration.gap)


def sample_groups(
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


# --- Several rounds of devices that remember their memos, as counts alone.


Rates = npt.NDArray[np.float64]


class Round(NamedTuple):
    """`n[...]` reports, of which `counts[..., v]` support v. Leading axes are runs."""

    n: Counts
    counts: Counts


class Memos:
    """A fleet with its memos: call `round` once for each round, in order."""

    def __init__(
        self,
        rng: np.random.Generator,
        calibration: Channel,
        truth: npt.ArrayLike,
        *,
        dropout: npt.ArrayLike = 0.0,
        churn: float = 0.0,
    ) -> None:
        held = np.asarray(truth, dtype=np.int64)
        rates = np.broadcast_to(np.asarray(dropout, dtype=np.float64), held.shape[-1:])
        kind = UnaryFleet if calibration.unary else _Generalised
        self._fleet: CountedFleet = kind(rng, calibration, held, 1.0 - rates, churn > 0.0)
        self._churn = churn
        self._left = np.zeros((*held.shape[:-1], 1), dtype=np.int64)
        self._begun = False

    def round(self) -> Round:
        """The next round's reports, counted."""
        if self._begun and self._churn:
            self._left = longer(self._left, 0) + self._fleet.replace(self._churn)
        self._begun = True
        self._left = longer(self._left, 1)
        return self._fleet.round()

    @property
    def participation(self) -> Counts:
        """`[..., m]` devices sent m reports so far, those that have left included."""
        return self._left + self._fleet.devices()


class CountedFleet(Protocol):
    """Devices as numbers; the last axis of every array is the number of reports sent so far."""

    def round(self) -> Round: ...

    def replace(self, churn: float) -> Counts: ...

    def devices(self) -> Counts: ...


class _Generalised:
    """`[..., class, memo, m]` devices. Values of one dropout rate form a class; with churn each
    value is one, because a newcomer holds what the device before it held."""

    def __init__(
        self, rng: np.random.Generator, c: Channel, held: Counts, present: Rates, churn: bool
    ) -> None:
        self._rng = rng
        self._first = float(c.exact.p1 - c.exact.q1)
        self._second = float(c.exact.p2 - c.exact.q2)
        self._present, place = np.unique(present, return_inverse=True)
        if churn:
            self._present, place = present, np.arange(present.size)
        split = held[..., np.newaxis, :] * (place == np.arange(self._present.size)[:, np.newaxis])
        self._table = generalised(rng, split, self._first)[..., np.newaxis]

    def round(self) -> Round:
        chance = self._present[:, np.newaxis, np.newaxis]
        reporting = self._rng.binomial(self._table, chance)
        self._table = step(self._table, reporting)
        memos = reporting.sum(axis=(-3, -1))
        return Round(memos.sum(axis=-1), generalised(self._rng, memos, self._second))

    def replace(self, churn: float) -> Counts:
        leaving = self._rng.binomial(self._table, churn)
        self._table = self._table - leaving
        newcomers = leaving.sum(axis=(-2, -1))  # by class, which is the value held
        values = newcomers[..., np.newaxis] * np.eye(newcomers.shape[-1], dtype=np.int64)
        self._table[..., 0] += generalised(self._rng, values, self._first)
        gone: Counts = leaving.sum(axis=(-3, -2))
        return gone

    def devices(self) -> Counts:
        total: Counts = self._table.sum(axis=(-3, -2))
        return total


class UnaryFleet:
    """`[..., value, m]` devices; of the memos' bit v, the ones among holders of v, and among
    holders of other values by class of one dropout rate: `[..., v, m]` and `[..., class, v, m]`."""

    def __init__(
        self, rng: np.random.Generator, c: Channel, held: Counts, present: Rates, _churn: bool
    ) -> None:
        self._rng = rng
        self._present = present
        self._first = float(c.exact.p1), float(c.exact.q1)
        self._second = float(c.exact.p2), float(c.exact.q2)
        rates, place = np.unique(present, return_inverse=True)
        self._class = (place == np.arange(rates.size)[:, np.newaxis]).astype(np.int64)
        self._held = held[..., np.newaxis]
        self._mine = rng.binomial(self._held, self._first[0])
        self._theirs = rng.binomial(self._others(self._held), self._first[1])

    def _others(self, by_value: Counts) -> Counts:
        """Of numbers by value held, those whose value is not v, by class and v."""
        members = self._class[..., np.newaxis] * by_value[..., np.newaxis, :, :]
        others: Counts = members.sum(axis=-2, keepdims=True) - members
        return others

    def _ones(self, some: Counts) -> tuple[Counts, Counts]:
        """The ones in the memos of `some[..., value, m]` devices, picked blindly."""
        draw = self._rng.hypergeometric
        mine = draw(self._mine, self._held - self._mine, some)
        others = self._others(self._held) - self._theirs
        return mine, draw(self._theirs, others, self._others(some))

    def round(self) -> Round:
        reporting = self._rng.binomial(self._held, self._present[:, np.newaxis])
        mine, theirs = self._ones(reporting)
        ones = mine.sum(axis=-1) + theirs.sum(axis=(-3, -1))
        n = reporting.sum(axis=(-2, -1))
        self._held = step(self._held, reporting)
        self._mine, self._theirs = step(self._mine, mine), step(self._theirs, theirs)
        rest = n[..., np.newaxis] - ones
        draw = self._rng.binomial
        keep, add = self._second
        return Round(n, draw(ones, keep) + draw(rest, add))

    def replace(self, churn: float) -> Counts:
        leaving = self._rng.binomial(self._held, churn)
        mine, theirs = self._ones(leaving)
        self._held, self._mine = self._held - leaving, self._mine - mine
        self._theirs = self._theirs - theirs
        newcomers = leaving.sum(axis=-1, keepdims=True)
        self._held[..., :1] += newcomers
        self._mine[..., :1] += self._rng.binomial(newcomers, self._first[0])
        self._theirs[..., :1] += self._rng.binomial(self._others(newcomers), self._first[1])
        gone: Counts = leaving.sum(axis=-2)
        return gone

    def devices(self) -> Counts:
        total: Counts = self._held.sum(axis=-2)
        return total


def step(table: Counts, reporting: Counts) -> Counts:
    """Whoever reports has one report more; the table grows by one column."""
    after = longer(table - reporting, 1)
    after[..., 1:] += reporting
    return after


def longer(table: Counts, columns: int) -> Counts:
    return np.concatenate([table, np.zeros((*table.shape[:-1], columns), np.int64)], axis=-1)


# --- Rounds of devices that answer in a few rounds only, as counts alone (`reporting = "once"`).


class Answers:
    """A fleet and its answers: call `round` once for each round, in order.

    `[..., value, left, given]` devices hold a value, have answers left and gave some.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        way: OnceWay,
        truth: npt.ArrayLike,
        *,
        dropout: npt.ArrayLike = 0.0,
        churn: float = 0.0,
        changes: float = 0.0,
    ) -> None:
        held = np.asarray(truth, dtype=np.int64)
        self._rng, self._once = rng, way.once
        self._calibration = as_drawn(way.calibration)
        self._churn, self._changes = churn, changes
        rates = np.broadcast_to(np.asarray(dropout, dtype=np.float64), held.shape[-1:])
        self._present: Rates = (1.0 - rates)[:, np.newaxis, np.newaxis]
        size = way.once.each + 1
        self._table = np.zeros((*held.shape, size, size), dtype=np.int64)
        self._table[..., -1, 0] = held
        self._gone = np.zeros((*held.shape[:-1], size), dtype=np.int64)
        self._number = 0

    def round(self, law: Rates | None = None) -> Round:
        """The next round's answers, counted. Values that change are drawn from the law."""
        if self._number:
            self._turn_over(law)
        rounds_left = self._once.rounds - self._number
        self._number += 1
        left = np.arange(self._table.shape[-2])[:, np.newaxis]
        drawn = self._rng.binomial(self._table, np.minimum(left / rounds_left, 1.0))
        answering = self._rng.binomial(drawn, self._present)
        self._table -= drawn
        self._table[..., :-1, :] += (drawn - answering)[..., 1:, :]
        self._table[..., :-1, 1:] += answering[..., 1:, :-1]
        by_value = answering.sum(axis=(-2, -1))
        counts = one_round(self._rng, self._calibration, by_value)
        return Round(by_value.sum(axis=-1), counts)

    def held(self) -> Counts:
        """Devices that hold each value now."""
        total: Counts = self._table.sum(axis=(-2, -1))
        return total

    @property
    def participation(self) -> Counts:
        """`[..., m]` devices gave m answers so far, those that have left included."""
        total: Counts = self._gone + self._table.sum(axis=(-3, -2))
        return total

    def _turn_over(self, law: Rates | None) -> None:
        if self._churn:
            leaving = self._rng.binomial(self._table, self._churn)
            self._table -= leaving
            self._gone += leaving.sum(axis=(-3, -2))
            left = min(self._once.each, self._once.rounds - self._number)
            self._table[..., left, 0] += leaving.sum(axis=(-2, -1))
        if self._changes and law is not None:
            changing = self._rng.binomial(self._table, self._changes)
            anew = self._rng.multinomial(changing.sum(axis=-3), law)
            self._table += np.moveaxis(anew, -1, -3) - changing


# --- Rounds of devices that release one value gradually, as counts alone (`reporting = "nested"`).


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
