"""What a collector would publish of the counts of a simulated campaign.

The memo per value goes through the collector's own functions. The other ways of reporting are
estimated with the same public functions of `protocol_spec.estimation` that the collector uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from collector.records import Campaign, Tally
from collector.rounds.results import CONFIDENCE, pooled_result, round_result
from protocol_spec import RESULT_SERIES, Manifest, Outcome, Result, Way
from protocol_spec.estimation import (
    Array,
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

_PAPER: Final = "memoized"


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
    """The results of one attribute."""

    def __init__(self, manifest: Manifest, index: int, collected: Collected) -> None:
        self._manifest, self._index = manifest, index
        self._campaign = Campaign(0, manifest, manifest.created, None)
        self._way, self._collected = manifest.ways[index], collected

    def round(self, number: int, outcomes: Outcomes) -> Result:
        """Of one round."""
        n = int(self._collected.n[number])
        if self._way.reporting == _PAPER:
            tally = Tally(n, self._collected.counts[number])
            return round_result(self._campaign, number, self._index, tally, outcomes)
        made = estimate_of_round(self._way, self._collected, number) if n else None
        return self._message(number, (number, number), made, outcomes)

    def pooled(self, outcomes: Outcomes) -> Result | None:
        """Of all rounds together; None before there is a report."""
        heard = [t for t, n in enumerate(self._collected.n.tolist()) if n]
        if not heard:
            return None
        if self._way.reporting == _PAPER:
            tally = Tally(total_of(self._collected), self._collected.counts.sum(axis=0))
            who = self._collected.participants()
            return pooled_result(self._campaign, self._index, len(heard), tally, who, outcomes)
        first = heard[-1] if self._way.reporting == "nested" else heard[0]
        made = estimate_of_rounds(self._way, self._collected)
        return self._message(None, (first, heard[-1]), made, outcomes)

    def window(self, first: int, last: int, outcomes: Outcomes) -> Result:
        """Of some rounds in which every answer was drawn afresh."""
        answered = self._collected.n[first : last + 1].any()
        made = estimate_of_window(self._way, self._collected, (first, last)) if answered else None
        return self._message(None, (first, last), made, outcomes)

    def _message(
        self, number: int | None, span: Span, made: Estimate | None, outcomes: Outcomes
    ) -> Result:
        first, last = span
        n = self._collected.n[first : last + 1]
        least = self._manifest.min_reports
        shown = made if made and made.n_eff >= least else None
        counts = self._collected.counts[first : last + 1].sum(axis=0).tolist() if shown else []
        repeats = self._way.reporting == "hashed" and number is None
        devices = sum(self._collected.participants()[1]) if repeats else int(n.sum())
        return Result(
            digest=self._manifest.digest,
            attribute=self._manifest.attributes[self._index].name,
            round=number,
            rounds=int((n > 0).sum()),
            protocol=self._way.protocol,
            n=int(n.sum()),
            devices=devices,
            min_reports=least,
            confidence=CONFIDENCE,
            device_bound=0.0,
            counts=tuple(counts),
            outcomes=dict(outcomes),
            reporting=self._way.reporting,
            first=first,
            last=last,
            n_eff=made.n_eff if made else 0.0,
            **dict(zip(RESULT_SERIES, _series(shown))),  # type: ignore[arg-type]
        )


def _series(made: Estimate | None) -> Sequence[tuple[float, ...]]:
    if made is None:
        return [()] * len(RESULT_SERIES)
    arrays: list[Array] = [made.raw, made.projected, made.privacy_error, made.sampling_error]
    arrays += [*made.interval(CONFIDENCE), *made.interval(CONFIDENCE, simultaneous=True)]
    return [tuple(array.tolist()) for array in arrays]
