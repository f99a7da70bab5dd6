"""Rounds of devices that answer in a few rounds only, as counts alone (`reporting = "once"`).

Devices that hold the same value, have as many answers left and gave as many are exchangeable, so
their numbers are all that is kept. A device with r answers left takes part in the next of T rounds
with chance r/T: so every set of rounds is equally likely. Exact jointly: all counts of all rounds,
who holds what, and who answered how often, also with values that change, because nothing but the
value of the moment is answered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protocol_spec import as_drawn
from protocol_spec.ways import OnceWay
from simulation.model.counts import Counts, one_round
from simulation.model.memos import Rates, Round


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
