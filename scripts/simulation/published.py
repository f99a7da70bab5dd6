"""What a collector would publish of the counts of a simulated campaign.

Results are made by the collector's own functions. Estimates are made here only to know the exact
error about the devices of the fleet, of which a collector knows nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from collector.records import Campaign, RoundSum, Tally
from collector.rounds.results import pooled_result, round_result, window_result
from protocol_spec import Manifest, Outcome, Result, Way
from protocol_spec.estimation import (
    Estimate,
    estimate,
    estimate_levels,
    estimate_pooled,
    estimate_window,
)
from protocol_spec.ways import OnceWay
from simulation.counted import Collected

Outcomes = Counter[Outcome]
Span = tuple[int, int]  # first and last round


def estimate_of_round(
    way: Way, collected: Collected, number: int, fleet: int | None = None
) -> Estimate:
    """One round: all levels of nested reports together."""
    n, counts = collected.n_by_channel[number], collected.counts_by_channel[number]
    if len(way.channels) > 1:
        return estimate_levels(counts, n, way.channels, fleet=fleet)
    return estimate(counts[0], int(n[0]), way.channels[0], fleet=fleet)


def estimate_of_rounds(way: Way, collected: Collected, fleet: int | None = None) -> Estimate:
    """All rounds: pooled, or added up, or the latest where that one says all."""
    heard = [t for t, n in enumerate(collected.n.tolist()) if n]
    if way.reporting == "nested":
        return estimate_of_round(way, collected, heard[-1], fleet)
    total, channel = collected.counts.sum(axis=0), way.channels[0]
    if way.reporting != "once":
        who = collected.participants()
        return estimate_pooled(total, *who, channel, weights="reports", fleet=fleet)
    if fleet is None:
        return estimate_of_window(way, collected, (heard[0], heard[-1]))
    answers = estimate(total, int(total_of(collected)), channel)
    who = collected.participants()
    sampled = estimate_pooled(total, *who, channel, weights="reports", fleet=fleet)
    together = replace(answers.moments, dilution=sampled.moments.dilution)
    return replace(answers, moments=together)


def estimate_of_window(way: Way, collected: Collected, span: Span) -> Estimate:
    """Some rounds of fresh answers, added up."""
    first, last = span
    n, counts = (
        table[first : last + 1, 0]
        for table in (collected.n_by_channel, collected.counts_by_channel)
    )
    each = way.once.each if isinstance(way, OnceWay) else 1
    return estimate_window(counts, n, way.channels[0], each=each)


def total_of(collected: Collected) -> int:
    """Reports of all rounds."""
    return int(collected.n.sum())


class Published:
    """The results of one attribute, made by the collector's own functions."""

    def __init__(self, manifest: Manifest, index: int, collected: Collected) -> None:
        self._index, self._collected = index, collected
        self._campaign = Campaign(0, manifest, manifest.created, None)
        self._way = manifest.ways[index]

    def round(self, number: int, outcomes: Outcomes) -> Result:
        """Of one round."""
        tally = self._tally(number, number)
        return round_result(self._campaign, number, self._index, tally, outcomes)

    def pooled(self, outcomes: Outcomes) -> Result | None:
        """Of all rounds together, of nested reports the latest; None before there is a report."""
        heard = [t for t, n in enumerate(self._collected.n.tolist()) if n]
        if not heard:
            return None
        first, who = heard[0], self._collected.participants()
        if self._way.reporting == "nested":
            heard = heard[-1:]
            first, who = heard[0], ([1], [int(self._collected.n[heard[0]])])
        total, last = self._tally(first, heard[-1]), heard[-1]
        rounds = len(heard)
        return pooled_result(
            self._campaign, self._index, rounds, total, who, outcomes, first=first, last=last
        )

    def window(self, first: int, last: int, outcomes: Outcomes) -> Result:
        """Of some rounds in which every answer was drawn afresh. Who answered more than one of
        them is not known here: sampling error is stated as if everybody had who may."""
        tally = self._tally(first, last)
        rounds = int((self._collected.n[first : last + 1] > 0).sum())
        most = min(self._campaign.manifest.rounds.each, max(rounds, 1))
        who = ([most], [-(-tally.n // most)]) if tally.n else ([], [])
        added = RoundSum(first, last, rounds, tally)
        return window_result(self._campaign, self._index, added, who, outcomes)

    def _tally(self, first: int, last: int) -> Tally:
        """As the collector keeps them: of levels, the number of reports before the counts."""
        n = self._collected.n_by_channel[first : last + 1].sum(axis=0)
        counts = self._collected.counts_by_channel[first : last + 1].sum(axis=0)
        if len(n) == 1:
            return Tally(int(n[0]), counts[0])
        return Tally(int(n.sum()), np.column_stack([n, counts]).reshape(-1))
