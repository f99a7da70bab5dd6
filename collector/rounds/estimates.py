"""Which estimate is made of counts, for each way of reporting. Pure.

memoized, hashed   a round by itself; several rounds with the noise that a memo keeps (M54)
once               the answers of any number of rounds: their noise is drawn anew each time
nested             a round, over its levels; never several rounds, which have the same devices
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collector.records import Counts, Participation, Tally
from protocol_spec import Way
from protocol_spec.estimation import (
    Array,
    Channel,
    Estimate,
    effective_devices,
    estimate,
    estimate_levels,
    estimate_pooled,
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts with what is known of the devices behind them, before anything is estimated."""

    way: Way
    tally: Tally
    participation: Participation

    @classmethod
    def of_round(cls, way: Way, tally: Tally) -> Evidence:
        """A device reports at most once in a round."""
        return cls(way, tally, ([1], [tally.n]) if tally.n else ([], []))

    @property
    def devices(self) -> int:
        """Devices that the reports came from."""
        return sum(self.participation[1])

    @property
    def n_eff(self) -> float:
        """That many devices of equal weight say as much. Never rounded below a whole number."""
        if self.tally.n and len(self.way.channels) > 1:
            return _effective(*self._levels())
        return effective_devices(*self.participation)

    @property
    def counts(self) -> Counts:
        """Reports that support each value, over all levels."""
        if len(self.way.channels) == 1:
            return self.tally.counts
        counts: Counts = self._table()[:, 1:].sum(axis=0)
        return counts

    def estimate(self) -> Estimate:
        """Frequencies with their errors."""
        way, (reports, devices) = self.way, self.participation
        if way.reporting == "nested":
            table = self._table()
            return estimate_levels(table[:, 1:], table[:, 0], way.channels)
        channel = way.channels[0]
        if way.reporting == "once":
            return _answers(self.tally, channel, self.n_eff)
        if list(reports) == [1]:
            return estimate(self.tally.counts, self.tally.n, channel)
        return estimate_pooled(self.tally.counts, reports, devices, channel, weights="reports")

    def device_bound(self, raw: Array) -> float:
        """The furthest that one device can move any of `raw` by sending other reports.

        Every report weighs the same, so replacing all of a device's reports changes a count by at
        most their number; a report with a level can be replaced by one with another level.
        """
        if self.way.reporting == "nested":
            return _level_bound(*self._levels(), self.way.channels, raw)
        return max(self.participation[0]) / (self.tally.n * _gap(self.way.channels[0]))

    def _table(self) -> Counts:
        """Of each level: the number of reports, and the counts."""
        return self.tally.counts.reshape(len(self.way.channels), self.way.k + 1)

    def _levels(self) -> tuple[Array, Array]:
        """Of each level: the number of reports, and what one of them weighs."""
        return self._table()[:, 0].astype(np.float64), _weights(self.way.channels)


def _answers(tally: Tally, channel: Channel, n_eff: float) -> Estimate:
    """Answers drawn anew are independent; only in sampling a device with two of them is one."""
    made = estimate(tally.counts, tally.n, channel)
    if n_eff == tally.n:
        return made
    return replace(made, moments=replace(made.moments, n_eff=n_eff, dilution=1.0 / n_eff))


def _effective(reports: Array, weights: Array) -> float:
    heard = reports > 0
    if heard.sum() == 1:
        return float(reports.sum())
    return float((reports @ weights) ** 2 / (reports @ weights**2))


def _weights(levels: Sequence[Channel]) -> Array:
    """As `estimate_levels` weighs a report: 1 over the variance of one about a value not held."""
    return np.array([gap**2 / (qs * (1.0 - qs)) for gap, qs in map(_gap_and_qs, levels)])


def _level_bound(reports: Array, weights: Array, levels: Sequence[Channel], raw: Array) -> float:
    """Exact: over all levels of the report taken out and of the one put in its place."""
    known = [_gap_and_qs(level) for level in levels]
    ends = np.array([(-qs / gap, (1.0 - qs) / gap) for gap, qs in known])
    heard, total = reports > 0, float(reports @ weights)
    furthest = 0.0
    for centre in (float(raw.min()), float(raw.max())):
        pulls = weights[:, None] * (ends - centre)  # of a report that does not, or does support
        moved = np.abs(pulls[:, None, :, None] - pulls[None, heard][..., None, :])
        left = total + weights[:, None] - weights[None, heard]
        furthest = max(furthest, float((moved.max(axis=(2, 3)) / left).max()))
    return furthest


def _gap(channel: Channel) -> float:
    return _gap_and_qs(channel)[0]


def _gap_and_qs(channel: Channel) -> tuple[float, float]:
    p1, q1, p2, q2 = channel.exact
    return float((p1 - q1) * (p2 - q2)), float(q1 * p2 + (1 - q1) * q2)
