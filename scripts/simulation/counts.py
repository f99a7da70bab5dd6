"""Counts with exactly the distribution of n devices, without the devices.

Devices that hold the same value are exchangeable: binomial, multinomial and hypergeometric draws
replace them, and what is kept grows with the number of values, not of devices. Given who holds
what, `one_round` has the joint distribution of all counts of a round with fresh memos. Pass the
calibration as drawn (`protocol_spec.as_drawn`), which devices use.

Fleets are for several rounds of the same devices. A device misses a round with a probability that
may depend on its value but on nothing else (`dropout`), and between rounds it may leave and be
replaced by a new device that holds the same value and draws a memo of its own (`churn`). Devices
with the same value, memo and number of reports are exchangeable, so their numbers are all that is
kept: k (rounds + 1) integers for one dropout rate and no churn.

What is exact, given who holds what:
  L-GRR   and L-SS: everything: all counts of all rounds, and who reported how often, jointly;
  unary   all counts of one round jointly; all rounds of one value jointly, together with who
          reported how often. So every estimate, of a round or pooled, and its stated error have
          their exact distribution. Not kept is a dependence between different values in different
          rounds, of fourth order: which two bits are in one memo. With everyone reporting in every
          round there is no such dependence, and everything is exact;
  hashed  as unary, but the dependence is there even then: values of a cell are reported together;
  nested  every result by itself: what one result has in common with the next is not kept;
  once    everything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec import Calibration, Mechanism, ParameterError, as_drawn
from protocol_spec.estimation import Channel
from protocol_spec.mechanisms import Hashed, Memoized, Nested, Once

Counts = npt.NDArray[np.int64]
Generator = np.random.Generator


def one_round(rng: Generator, calibration: Calibration, truth: npt.ArrayLike) -> Counts:
    """Support of each value in one round with fresh memos; `truth[..., v]` devices hold v."""
    held = np.asarray(truth, dtype=np.int64)
    if not calibration.unary:
        return answers(rng, held, calibration.gap, calibration.size)
    others = held.sum(axis=-1, keepdims=True) - held
    ones: Counts = rng.binomial(held, calibration.ps) + rng.binomial(others, calibration.qs)
    return ones


def answers(rng: Generator, held: Counts, gap: float, size: int = 1) -> Counts:
    """Support of each value when every answer is a set of `size` values, p - q = gap: one that has
    the value held and others at random, or any set; of GRR, with one value, it or any value."""
    k = held.shape[-1]
    kept = rng.binomial(held, gap * (k - 1) / (k - size))
    blind = (held - kept).sum(axis=-1)
    if size == 1:
        guesses = rng.multinomial(blind, np.full(k, 1.0 / k))
        return np.asarray(kept + guesses, dtype=np.int64)
    others = subsets(rng, kept, size - 1, k - 1)  # [..., v, i]: of value v + 1 + i, around the end
    supports = kept + subsets(rng, blind, size, k)
    for v in range(k):
        supports += np.roll(np.insert(others[..., v, :], 0, 0, axis=-1), v, axis=-1)
    return supports


def subsets(rng: Generator, n: Counts, size: int, of: int) -> Counts:
    """`[..., i]`: how many of n random sets, of `size` among `of` members, have member i."""
    table = np.zeros((*n.shape, size + 1), dtype=np.int64)  # sets, by members still to be drawn
    table[..., size] = n
    wanted, found = np.arange(size + 1), []
    for left in range(of, 0, -1):
        taking = rng.binomial(table, np.minimum(wanted / left, 1.0))
        found.append(taking.sum(axis=-1))
        table -= taking
        table[..., :-1] += taking[..., 1:]
    return np.stack(found, axis=-1)


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
    """`n[...]` reports, of which `counts[..., v]` support v. Leading axes are runs. Of nested, what
    a result is made of: the latest reports of all devices heard so far, `n[..., level]` and
    `counts[..., level, v]`, while `sent` were sent in this round."""

    n: Counts
    counts: Counts
    sent: Counts


class CountedFleet(ABC):
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

    @abstractmethod
    def round(self, distribution: Rates | None = None) -> Round:
        """The next round's reports, counted. Changing values are drawn from the distribution."""

    def held(self) -> Counts:
        """Devices that hold each value now."""
        return self._truth

    @property
    def participation(self) -> Counts:
        """`[..., m]` devices sent m reports so far, those that have left included."""
        return self._gone + self._devices()

    @abstractmethod
    def _devices(self) -> Counts:
        """Those that are still there, by number of reports sent."""


class RepeatingFleet(CountedFleet):
    """Devices that report in every round in which they are present."""

    def round(self, distribution: Rates | None = None) -> Round:  # noqa: ARG002
        if self._gone.shape[-1] > 1 and self._churn:
            self._gone = self._gone + self._replace(self._churn)
        self._gone = longer(self._gone, 1)
        return self._report()

    @abstractmethod
    def _report(self) -> Round:
        """Reports of all that are present."""

    @abstractmethod
    def _replace(self, churn: float) -> Counts:
        """Replace some devices by new ones; returns how many left, by number of reports sent."""


def counted_fleet(
    rng: Generator, mechanism: Mechanism, truth: npt.ArrayLike, **rates: Any
) -> CountedFleet:
    """Devices of a mechanism; `dropout`, `churn` and `changes` are rates."""
    if type(mechanism) not in (Memoized, Once, Hashed, Nested):
        remedy = "the distribution of its counts is not known here; use reports"
        raise ParameterError("reporting", mechanism.reporting, remedy)
    held = np.asarray(truth, dtype=np.int64)
    if isinstance(mechanism, Once):
        return OnceFleet(rng, mechanism, held, **rates)
    if isinstance(mechanism, Nested):
        return NestedFleet(rng, mechanism, held, **rates)
    return memoized_fleet(rng, mechanism.channels[0], held, **rates)


def memoized_fleet(
    rng: Generator, channel: Channel, truth: npt.ArrayLike, **rates: Any
) -> CountedFleet:
    """Devices that remember their memos."""
    kind = UnaryFleet if channel.unary else GeneralisedFleet
    return kind(rng, channel, np.asarray(truth, dtype=np.int64), **rates)


class GeneralisedFleet(RepeatingFleet):
    """`[..., class, memo, m]` devices. Values of one dropout rate form a class; with churn each
    value is one, because a new device holds what the device before it held."""

    def __init__(self, rng: Generator, c: Channel, held: Counts, **rates: Any) -> None:
        super().__init__(rng, held, **rates)
        self._first = float(c.exact.p1 - c.exact.q1)
        self._second, self._size = float(c.exact.p2 - c.exact.q2), c.size
        if self._churn:
            place = np.arange(self._present.size)
        else:
            self._present, place = np.unique(self._present, return_inverse=True)
        split = held[..., np.newaxis, :] * (place == np.arange(self._present.size)[:, np.newaxis])
        self._table = answers(rng, split, self._first)[..., np.newaxis]

    def _report(self) -> Round:
        reporting = self._rng.binomial(self._table, self._present[:, np.newaxis, np.newaxis])
        self._table = step(self._table, reporting)
        memos = reporting.sum(axis=(-3, -1))
        n = memos.sum(axis=-1)
        return Round(n, answers(self._rng, memos, self._second, self._size), n)

    def _replace(self, churn: float) -> Counts:
        leaving = self._rng.binomial(self._table, churn)
        self._table = self._table - leaving
        newcomers = leaving.sum(axis=(-2, -1))  # by class, which is the value held
        values = newcomers[..., np.newaxis] * np.eye(newcomers.shape[-1], dtype=np.int64)
        self._table[..., 0] += answers(self._rng, values, self._first)
        return _sum(leaving, -3, -2)

    def _devices(self) -> Counts:
        return _sum(self._table, -3, -2)


class UnaryFleet(RepeatingFleet):
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
        return Round(n, draw(ones, keep) + draw(n[..., np.newaxis] - ones, add), n)

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


def step(table: Counts, reporting: Counts) -> Counts:
    """Devices that report have one report more; the table grows by one column."""
    grown = longer(table - reporting, 1)
    grown[..., 1:] += reporting
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
        n = by_value.sum(axis=-1)
        return Round(n, one_round(self._rng, self._calibration, by_value), n)

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


class NestedFleet(RepeatingFleet):
    """`[..., value, m]` devices, those that left after a report beside. A device's latest report is
    an answer of its level by itself, so that every result is drawn from the numbers of devices by
    value and level alone."""

    def __init__(self, rng: Generator, nested: Nested, held: Counts, **rates: Any) -> None:
        super().__init__(rng, held, **rates)
        self._levels = nested.as_drawn().levels
        self._held = held[..., np.newaxis]
        self._left = np.zeros_like(self._held)

    def _report(self) -> Round:
        reporting = self._rng.binomial(self._held, self._present[:, np.newaxis])
        self._held, self._left = step(self._held, reporting), longer(self._left, 1)
        heard = (self._held + self._left)[..., 1:]
        most = len(self._levels)
        levels = np.minimum(np.arange(heard.shape[-1]), most - 1)
        by_level = heard @ (levels[:, np.newaxis] == np.arange(most)).astype(np.int64)
        columns = [one_round(self._rng, c, by_level[..., i]) for i, c in enumerate(self._levels)]
        sent = reporting.sum(axis=(-2, -1))
        return Round(by_level.sum(axis=-2), np.stack(columns, axis=-2), sent)

    def _replace(self, churn: float) -> Counts:
        leaving = self._rng.binomial(self._held, churn)
        self._held = self._held - leaving
        self._left = self._left + leaving
        self._held[..., 0] += leaving.sum(axis=-1)
        return _sum(leaving, -2)

    def _devices(self) -> Counts:
        return _sum(self._held, -2)
