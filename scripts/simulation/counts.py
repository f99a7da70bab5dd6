"""Counts with exactly the distribution of n devices, without the devices.

Devices that hold the same value are exchangeable: binomial, multinomial and hypergeometric draws
replace them, and what is kept grows with the number of values, not of devices. Given who holds
what, `one_round` has the joint distribution of all counts of a round with fresh memos: the k bits
of a unary report are independent given the device's value, and an L-GRR report is one draw of a
multinomial. Pass the calibration as drawn (`protocol_spec.as_drawn`), which devices use.

Fleets are for several rounds of the same devices. A device misses a round with a probability that
may depend on its value but on nothing else (`dropout`), and between rounds it may leave and be
replaced by a new device that holds the same value and draws a memo of its own (`churn`). Devices
with the same value, memo and number of reports are exchangeable, so their numbers are all that is
kept: k (rounds + 1) integers for one dropout rate and no churn.

What is exact, given who holds what:
  L-GRR   everything: all counts of all rounds, and who reported how often, jointly;
  unary   all counts of one round jointly; all rounds of one value jointly, together with who
          reported how often. So every estimate, of a round or pooled, and its stated error have
          their exact distribution. Not kept is a dependence between different values in different
          rounds, of fourth order: which two bits are in one memo. With everyone reporting in every
          round there is no such dependence, and everything is exact;
  hashed  as unary, but the dependence is there even then: values of a cell are reported together;
  nested  as L-GRR or unary;
  once    everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec import Calibration, Mechanism, ParameterError, as_drawn, drawn_probabilities
from protocol_spec.estimation import Channel
from protocol_spec.mechanisms import Hashed, Memoized, Nested, Once, nested_thresholds

Counts = npt.NDArray[np.int64]
Generator = np.random.Generator


def one_round(rng: Generator, calibration: Calibration, truth: npt.ArrayLike) -> Counts:
    """Support of each value in one round with fresh memos; `truth[..., v]` devices hold v."""
    held = np.asarray(truth, dtype=np.int64)
    if not calibration.unary:
        return generalised(rng, held, calibration.gap)
    others = held.sum(axis=-1, keepdims=True) - held
    ones: Counts = rng.binomial(held, calibration.ps) + rng.binomial(others, calibration.qs)
    return ones


def sample_groups(
    rng: Generator, counts: Sequence[npt.ArrayLike], sizes: npt.ArrayLike
) -> list[Counts]:
    """Who holds what among the devices that drew each attribute.

    `counts[a]` are the whole population's counts of attribute a; `sizes[..., a]` devices drew it,
    each population without replacement. Leading axes of `sizes` are runs. What a device holds of
    one attribute is assumed independent of another, so the groups' draws are independent.
    """
    drew = np.asarray(sizes, dtype=np.int64)
    return [_without_replacement(rng, held, drew[..., a]) for a, held in enumerate(counts)]


def generalised(rng: Generator, held: Counts, gap: float) -> Counts:
    """Answers per value. GRR keeps the value with probability gap = p - q and otherwise says any of
    the k values, itself included: one multinomial per value held, in k steps, not k^2."""
    kept = rng.binomial(held, gap)
    k = held.shape[-1]
    guesses = rng.multinomial((held - kept).sum(axis=-1), np.full(k, 1.0 / k))
    return np.asarray(kept + guesses, dtype=np.int64)


def _without_replacement(rng: Generator, counts: npt.ArrayLike, sizes: Counts) -> Counts:
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


# --- several rounds ------------------------------------------------------------------------------

Rates = npt.NDArray[np.float64]


class Round(NamedTuple):
    """`n[...]` reports, of which `counts[..., v]` support v. Leading axes are runs."""

    n: Counts
    counts: Counts


class CountedFleet:
    """Devices as numbers: call `round` once for each round, in order. The last axis of every array
    is the number of reports sent so far; `present` is the probability to report, by value held."""

    def __init__(
        self,
        rng: Generator,
        held: Counts,
        *,
        dropout: npt.ArrayLike = 0.0,
        churn: float = 0.0,
        changes: float = 0.0,  # noqa: ARG002 - only devices without memos can change as numbers
    ) -> None:
        rates = np.broadcast_to(np.asarray(dropout, dtype=np.float64), held.shape[-1:])
        self._rng, self._present, self._churn = rng, 1.0 - rates, churn
        self._truth = held
        self._gone = np.zeros((*held.shape[:-1], 1), dtype=np.int64)  # devices, by m
        self._begun = False

    def round(self, distribution: Rates | None = None) -> Round:  # noqa: ARG002
        """The next round's reports, counted. Changing values are drawn from the distribution."""
        if self._begun and self._churn:
            self._gone = self._gone + self._replace(self._churn)
        self._begun = True
        self._gone = longer(self._gone, 1)
        return self._report()

    def held(self) -> Counts:
        """Devices that hold each value now."""
        return self._truth

    @property
    def participation(self) -> Counts:
        """`[..., m]` devices sent m reports so far, those that have left included."""
        return self._gone + self._devices()

    def _report(self) -> Round:
        raise NotImplementedError

    def _replace(self, churn: float) -> Counts:
        """Replace some devices by new ones; returns how many left, by number of reports sent."""
        raise NotImplementedError

    def _devices(self) -> Counts:
        raise NotImplementedError


def counted_fleet(
    rng: Generator, mechanism: Mechanism, truth: npt.ArrayLike, **rates: Any
) -> CountedFleet:
    """Devices of a mechanism; `dropout`, `churn` and `changes` are rates. Rounds of nested reports
    have `n[..., level]` and `counts[..., level, v]`."""
    if type(mechanism) not in (Memoized, Once, Hashed, Nested):
        remedy = "the distribution of its counts is not known here; use reports"
        raise ParameterError("reporting", mechanism.reporting, remedy)
    held = np.asarray(truth, dtype=np.int64)
    if isinstance(mechanism, Once):
        return OnceFleet(rng, mechanism, held, **rates)
    if isinstance(mechanism, Nested):
        kind = UnaryLevels if mechanism.counted.unary else GeneralisedLevels
        return kind(rng, mechanism, held, **rates)
    return memoized_fleet(rng, mechanism.channels[0], held, **rates)


def memoized_fleet(
    rng: Generator, channel: Channel, truth: npt.ArrayLike, **rates: Any
) -> CountedFleet:
    """Devices that remember their memos."""
    kind = UnaryFleet if channel.unary else GeneralisedFleet
    return kind(rng, channel, np.asarray(truth, dtype=np.int64), **rates)


class GeneralisedFleet(CountedFleet):
    """`[..., class, memo, m]` devices. Values of one dropout rate form a class; with churn each
    value is one, because a new device holds what the device before it held."""

    def __init__(self, rng: Generator, c: Channel, held: Counts, **rates: Any) -> None:
        super().__init__(rng, held, **rates)
        self._first = float(c.exact.p1 - c.exact.q1)
        self._second = float(c.exact.p2 - c.exact.q2)
        if self._churn:
            place = np.arange(self._present.size)
        else:
            self._present, place = np.unique(self._present, return_inverse=True)
        split = held[..., np.newaxis, :] * (place == np.arange(self._present.size)[:, np.newaxis])
        self._table = generalised(rng, split, self._first)[..., np.newaxis]

    def _report(self) -> Round:
        reporting = self._rng.binomial(self._table, self._present[:, np.newaxis, np.newaxis])
        self._table = step(self._table, reporting)
        memos = reporting.sum(axis=(-3, -1))
        return Round(memos.sum(axis=-1), generalised(self._rng, memos, self._second))

    def _replace(self, churn: float) -> Counts:
        leaving = self._rng.binomial(self._table, churn)
        self._table = self._table - leaving
        newcomers = leaving.sum(axis=(-2, -1))  # by class, which is the value held
        values = newcomers[..., np.newaxis] * np.eye(newcomers.shape[-1], dtype=np.int64)
        self._table[..., 0] += generalised(self._rng, values, self._first)
        return _sum(leaving, -3, -2)

    def _devices(self) -> Counts:
        return _sum(self._table, -3, -2)


class UnaryFleet(CountedFleet):
    """`[..., value, m]` devices; of the memos' bit v, the ones among holders of v, and among
    holders of other values by class of one dropout rate: `[..., v, m]` and `[..., class, v, m]`."""

    def __init__(self, rng: Generator, c: Channel, held: Counts, **rates: Any) -> None:
        super().__init__(rng, held, **rates)
        self._first = float(c.exact.p1), float(c.exact.q1)
        self._second = float(c.exact.p2), float(c.exact.q2)
        different, place = np.unique(self._present, return_inverse=True)
        self._class = (place == np.arange(different.size)[:, np.newaxis]).astype(np.int64)
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

    def _report(self) -> Round:
        reporting = self._rng.binomial(self._held, self._present[:, np.newaxis])
        mine, theirs = self._ones(reporting)
        ones = mine.sum(axis=-1) + theirs.sum(axis=(-3, -1))
        n = reporting.sum(axis=(-2, -1))
        self._held = step(self._held, reporting)
        self._mine, self._theirs = step(self._mine, mine), step(self._theirs, theirs)
        keep, add = self._second
        draw = self._rng.binomial
        return Round(n, draw(ones, keep) + draw(n[..., np.newaxis] - ones, add))

    def _replace(self, churn: float) -> Counts:
        leaving = self._rng.binomial(self._held, churn)
        mine, theirs = self._ones(leaving)
        self._held, self._mine = self._held - leaving, self._mine - mine
        self._theirs = self._theirs - theirs
        newcomers = leaving.sum(axis=-1, keepdims=True)
        self._held[..., :1] += newcomers
        self._mine[..., :1] += self._rng.binomial(newcomers, self._first[0])
        self._theirs[..., :1] += self._rng.binomial(self._others(newcomers), self._first[1])
        return _sum(leaving, -2)

    def _devices(self) -> Counts:
        return _sum(self._held, -2)


def step(table: Counts, reporting: Counts, after: Counts | None = None) -> Counts:
    """Devices that report have one report more, and are then in the places of `after`; the table
    grows by one column."""
    grown = longer(table - reporting, 1)
    grown[..., 1:] += reporting if after is None else after
    return grown


def longer(table: Counts, columns: int) -> Counts:
    return np.concatenate([table, np.zeros((*table.shape[:-1], columns), np.int64)], axis=-1)


def _sum(table: Counts, *axes: int) -> Counts:
    total: Counts = table.sum(axis=axes)
    return total


class OnceFleet(CountedFleet):
    """Devices that answer in a few rounds only. `[..., value, left, given]` devices hold a value,
    have answers left and gave some."""

    def __init__(
        self,
        rng: Generator,
        once: Once,
        held: Counts,
        *,
        changes: float = 0.0,
        **rates: Any,
    ) -> None:
        super().__init__(rng, held, **rates)
        self._once, self._changes = once, changes
        self._calibration = as_drawn(once.calibration)
        size = once.each + 1
        self._table = np.zeros((*held.shape, size, size), dtype=np.int64)
        self._table[..., -1, 0] = held
        self._gone = np.zeros((*held.shape[:-1], size), dtype=np.int64)
        self._number = 0

    def round(self, distribution: Rates | None = None) -> Round:
        if self._number:
            self._between_rounds(distribution)
        rounds_left = self._once.rounds - self._number
        self._number += 1
        left = np.arange(self._table.shape[-2])[:, np.newaxis]
        drawn = self._rng.binomial(self._table, np.minimum(left / rounds_left, 1.0))
        answering = self._rng.binomial(drawn, self._present[:, np.newaxis, np.newaxis])
        self._table -= drawn
        self._table[..., :-1, :] += (drawn - answering)[..., 1:, :]
        self._table[..., :-1, 1:] += answering[..., 1:, :-1]
        by_value = answering.sum(axis=(-2, -1))
        return Round(by_value.sum(axis=-1), one_round(self._rng, self._calibration, by_value))

    def held(self) -> Counts:
        return _sum(self._table, -2, -1)

    def _devices(self) -> Counts:
        return _sum(self._table, -3, -2)

    def _between_rounds(self, distribution: Rates | None) -> None:
        if self._churn:
            leaving = self._rng.binomial(self._table, self._churn)
            self._table -= leaving
            self._gone += leaving.sum(axis=(-3, -2))
            left = min(self._once.each, self._once.rounds - self._number)
            self._table[..., left, 0] += leaving.sum(axis=(-2, -1))
        if self._changes and distribution is not None:
            changing = self._rng.binomial(self._table, self._changes)
            changed = self._rng.multinomial(changing.sum(axis=-3), distribution)
            self._table += np.moveaxis(changed, -1, -3) - changing


# --- nested reports ------------------------------------------------------------------------------
# A device draws the level of its last report first and every level below from the one above. In the
# other direction, the next report depends on the value and on the report before it alone: a chain
# whose probabilities follow by Bayes' rule from the integers that devices draw with. So the numbers
# of devices by value, last report and number of reports are all that is kept.


class Chain(NamedTuple):
    """Probabilities with and without the value, level by level: of the level alone, and of the step
    from the level above to it. Level 0 is before the first report."""

    p: Rates
    q: Rates
    keep: Rates
    add: Rates


@lru_cache(maxsize=256)
def chain_of(nested: Nested) -> Chain:
    levels, unary = nested.as_drawn().levels, nested.levels[-1].unary
    steps = [drawn_probabilities(each, unary, nested.k) for each in nested_thresholds(nested)]
    table = [(level.exact.p1, level.exact.q1, *each) for level, each in zip(levels, steps)]
    return Chain(*np.array(table, dtype=np.float64).T)


def _levels_of(columns: int, levels: int) -> Counts:
    """`[m, level]`: 1 where the next report of a device that sent m is of that level."""
    places = np.minimum(np.arange(columns), levels - 1)
    chosen: Counts = (places[:, np.newaxis] == np.arange(levels)).astype(np.int64)
    return chosen


class UnaryLevels(UnaryFleet):
    """Bits of the last report in place of a memo's; before the first report they are all 0."""

    def __init__(self, rng: Generator, nested: Nested, held: Counts, **rates: Any) -> None:
        super().__init__(rng, nested.channels[-1], held, **rates)
        self._chain, self._first = chain_of(nested), (0.0, 0.0)
        self._mine, self._theirs = np.zeros_like(self._mine), np.zeros_like(self._theirs)

    def _report(self) -> Round:
        reporting = self._rng.binomial(self._held, self._present[:, np.newaxis])
        mine, theirs = self._ones(reporting)
        next_mine = self._next(mine, reporting, self._chain.p)
        next_theirs = self._next(theirs, self._others(reporting), self._chain.q)
        ones = next_mine + next_theirs.sum(axis=-3)
        level = _levels_of(reporting.shape[-1], self._chain.p.size)
        counts = np.moveaxis(ones @ level, -1, -2)
        self._held = step(self._held, reporting)
        self._mine = step(self._mine, mine, next_mine)
        self._theirs = step(self._theirs, theirs, next_theirs)
        return Round(reporting.sum(axis=-2) @ level, counts)

    def _next(self, ones: Counts, all_bits: Counts, p: Rates) -> Counts:
        """Ones of the next report, among bits that are 1 with probability p at each level."""
        keep, low, high = self._chain.keep[:-1], p[:-1], p[1:]
        stays, turns = high * keep / low, high * (1.0 - keep) / (1.0 - low)
        places = np.minimum(np.arange(ones.shape[-1]), p.size)
        from_one = np.array([0.0, *stays, 1.0])[places]
        from_zero = np.array([p[0], *turns, 0.0])[places]
        drawn: Counts = self._rng.binomial(ones, from_one)
        drawn += self._rng.binomial(all_bits - ones, from_zero)
        return drawn


class GeneralisedLevels(CountedFleet):
    """`[..., value, last report, m]` devices; before the first report it is the value itself."""

    def __init__(self, rng: Generator, nested: Nested, held: Counts, **rates: Any) -> None:
        super().__init__(rng, held, **rates)
        self._k = nested.k
        self._same = np.eye(nested.k, dtype=np.int64)
        self._table = self._at_first(held)
        chain = chain_of(nested)
        self._levels = chain.p.size
        low, high, add = chain.q[:-1], chain.q[1:], chain.add[:-1]
        # From the value itself to another one; from another one to the value, to itself, to a third
        self._lose = np.array([chain.q[0], *(high * add / chain.p[:-1]), 0.0])
        self._third = np.array([0.0, *(high * add / low), 0.0])
        self._find = np.array([0.0, *(chain.p[1:] * add / low), 0.0])

    def _report(self) -> Round:
        reporting = self._rng.binomial(self._table, self._present[:, np.newaxis, np.newaxis])
        reports = self._next(reporting)
        level = _levels_of(reporting.shape[-1], self._levels)
        counts = np.moveaxis(reports.sum(axis=-3) @ level, -1, -2)
        self._table = step(self._table, reporting, reports)
        return Round(reporting.sum(axis=(-3, -2)) @ level, counts)

    def _replace(self, churn: float) -> Counts:
        leaving = self._rng.binomial(self._table, churn)
        self._table -= leaving
        self._table[..., :1] += self._at_first(leaving.sum(axis=(-2, -1)))
        return _sum(leaving, -3, -2)

    def _devices(self) -> Counts:
        return _sum(self._table, -3, -2)

    def _at_first(self, held: Counts) -> Counts:
        return (held[..., np.newaxis] * self._same)[..., np.newaxis]

    def _next(self, reporting: Counts) -> Counts:
        """Repeat the last report, report the value, or any of the k, as the chain's probabilities
        say."""
        places = np.minimum(np.arange(reporting.shape[-1]), self._levels)
        lose, third, find = (x[places] for x in (self._lose, self._third, self._find))
        draw, same = self._rng.binomial, self._same[..., np.newaxis]
        guessing = draw(reporting, np.where(same, self._k * lose, self._k * third))
        rest = reporting - guessing
        to_value = (find - third) / (1.0 - self._k * third)
        finding = draw(rest * (1 - same), to_value)
        decided = rest - finding + finding.sum(axis=-2, keepdims=True) * same
        guesses = self._rng.multinomial(guessing.sum(axis=-2), np.full(self._k, 1.0 / self._k))
        total: Counts = decided + np.moveaxis(guesses, -1, -2)
        return total
