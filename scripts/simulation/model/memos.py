"""Several rounds of devices that remember their memos, as counts alone.

A device draws its memo once and reports from it in every round it takes part in. It misses a round
with a chance that may depend on its value but on nothing else (`dropout`), and between rounds it
may leave and be replaced by a new device that holds the same value and draws a memo of its own
(`churn`). Devices with the same value, memo and number of reports are exchangeable, so their
numbers are all that is kept: k (rounds + 1) integers for one dropout rate and no churn.

What is exact, given who holds what:
  L-GRR   everything: all counts of all rounds, and who reported how often, jointly;
  unary   all counts of one round jointly; all rounds of one value jointly, together with who
          reported how often. So every estimate, of a round or pooled, and the error stated with
          it have their exact law. Not kept is a dependence between different values in different
          rounds, of fourth order: which two bits stand in one memo. With everyone reporting in
          every round there is no such dependence, and everything is exact;
  hashed  as unary, but the dependence is there even then: values of a cell are reported together.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from protocol_spec.estimation import Channel
from simulation.model.counts import Counts, generalised

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
