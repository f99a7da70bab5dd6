"""From counts to published histograms. Pure: the same counts give the same bytes.

Which estimate is made of counts depends on the mechanism:

    memoized, hashed   a round by itself; several rounds with the noise that a memo keeps (M54)
    once               the answers of any number of rounds: each has fresh noise
    nested             a round, over its levels; never several rounds, which have the same devices
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

import numpy as np

from collector.records import NO_COUNTS, Campaign, Counts, Participation, RoundSum, Tally
from protocol_spec import RESULT_SERIES, Attribute, HalfWidths, Mechanism, Numbers, Outcome, Result
from protocol_spec.estimation import (
    Array,
    Channel,
    Estimate,
    effective_devices,
    estimate,
    estimate_levels,
    estimate_pooled,
    numbers_of,
    smallest_difference,
)
from protocol_spec.limits import MAX_JSON_BYTES


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts with what is known of the devices behind them, before anything is estimated."""

    way: Mechanism
    tally: Tally
    participation: Participation

    @classmethod
    def of_round(cls, way: Mechanism, tally: Tally) -> Evidence:
        """A device reports at most once in a round."""
        return cls(way, tally, ([1], [tally.n]) if tally.n else ([], []))

    @property
    def devices(self) -> int:
        return sum(self.participation[1])

    @property
    def n_eff(self) -> float:
        """The number of devices of equal weight that say as much. Never rounded below a whole."""
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
        """How far one device can move any of `raw` at most, by sending other reports.

        Every report weighs the same, so replacing all of a device's reports changes a count by at
        most their number; a report with a level can be replaced by one with another level.
        """
        if self.way.reporting == "nested":
            return _level_bound(*self._levels(), self.way.channels, raw)
        return max(self.participation[0]) / (self.tally.n * _gap_and_qs(self.way.channels[0])[0])

    def _table(self) -> Counts:
        """Of each level: the number of reports, and the counts."""
        return self.tally.counts.reshape(len(self.way.channels), self.way.k + 1)

    def _levels(self) -> tuple[Array, Array]:
        """Of each level: the number of reports, and what one of them weighs."""
        return self._table()[:, 0].astype(np.float64), _weights(self.way.channels)


def _answers(tally: Tally, channel: Channel, n_eff: float) -> Estimate:
    """Answers with fresh noise are independent; only in sampling, a device with two is one."""
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


def _gap_and_qs(channel: Channel) -> tuple[float, float]:
    p1, q1, p2, q2 = channel.exact
    return float((p1 - q1) * (p2 - q2)), float(q1 * p2 + (1 - q1) * q2)


# --- results ------------------------------------------------------------------------------------


CONFIDENCE: Final = 0.95

Outcomes = Mapping[Outcome, int]


def round_results(
    campaign: Campaign, number: int, tallies: Mapping[int, Tally], outcomes: Outcomes
) -> list[Result]:
    """Every attribute's histogram of one round, withheld where too few reported."""
    return [
        round_result(campaign, number, index, tallies.get(index), outcomes)
        for index in range(len(campaign.manifest.attributes))
    ]


def round_result(
    campaign: Campaign, number: int, index: int, tally: Tally | None, outcomes: Outcomes
) -> Result:
    """One attribute's histogram of one round."""
    evidence = Evidence.of_round(campaign.manifest.mechanisms[index], tally or Tally(0, NO_COUNTS))
    rounds = RoundSum(number, number, int(evidence.tally.n > 0), evidence.tally)
    return _result(campaign, index, number, rounds, evidence, outcomes)


def window_result(
    campaign: Campaign,
    index: int,
    rounds: RoundSum,
    participation: Participation,
    outcomes: Outcomes,
) -> Result:
    """Several rounds, or one, in which devices answered once for all of them (`once`)."""
    number = rounds.last if rounds.first == rounds.last else None
    evidence = Evidence(campaign.manifest.mechanisms[index], rounds.tally, participation)
    return _result(campaign, index, number, rounds, evidence, outcomes)


def pooled_result(
    campaign: Campaign,
    index: int,
    rounds: int,
    total: Tally,
    participation: Participation,
    outcomes: Outcomes,
    *,
    first: int = 0,
    last: int | None = None,
) -> Result:
    """Rounds together, `rounds` of which had reports; from `first` to `last`.

    Each report weighs the same, because sealed rounds keep only their sums. The noise of a
    device's memo does not average out over its rounds, and the variance says so. Nested reports
    are not pooled: their total is that of the latest round.
    """
    end = first + max(rounds, 1) - 1 if last is None else last
    evidence = Evidence(campaign.manifest.mechanisms[index], total, participation)
    return _result(campaign, index, None, RoundSum(first, end, rounds, total), evidence, outcomes)


def _result(
    campaign: Campaign,
    index: int,
    number: int | None,
    rounds: RoundSum,
    evidence: Evidence,
    outcomes: Outcomes,
) -> Result:
    manifest, way = campaign.manifest, evidence.way
    n, n_eff = evidence.tally.n, evidence.n_eff
    shown = n > 0 and n_eff >= manifest.min_reports
    estimated = evidence.estimate() if shown else None
    return Result(
        digest=manifest.digest,
        attribute=manifest.attributes[index].name,
        reporting=way.reporting,
        round=number,
        first=rounds.first,
        last=rounds.last,
        rounds=rounds.rounds,
        protocol=way.protocol,
        n=n,
        devices=evidence.devices,
        n_eff=n_eff,
        min_reports=manifest.min_reports,
        confidence=CONFIDENCE,
        device_bound=0.0 if estimated is None else evidence.device_bound(estimated.raw),
        counts=tuple(evidence.counts.tolist()) if shown else (),
        outcomes=dict(outcomes),
        **_series(estimated),
        **_derived(manifest.attributes[index], estimated),
    )


def _series(estimated: Estimate | None) -> dict[str, Any]:
    if estimated is None:
        return dict.fromkeys(RESULT_SERIES, ())
    (low, high), (low_all, high_all) = estimated.both_intervals(CONFIDENCE)
    arrays: tuple[Array, ...] = (
        estimated.raw,
        estimated.projected,
        estimated.privacy_error,
        estimated.sampling_error,
        low,
        high,
        low_all,
        high_all,
    )
    return {name: tuple(array.tolist()) for name, array in zip(RESULT_SERIES, arrays)}


def _derived(attribute: Attribute, estimated: Estimate | None) -> dict[str, Any]:
    """What is computed from a histogram besides its bars."""
    if estimated is None:
        return {"difference": None, "numbers": None}
    named, any_pair = smallest_difference(estimated, CONFIDENCE)
    return {
        "difference": HalfWidths(named, any_pair),
        "numbers": numbers_of(estimated, attribute, CONFIDENCE),
    }


# --- a result as one JSON object ------------------------------------------------------------------


class Bar(TypedDict):
    """One value of a histogram."""

    value: str
    count: int
    raw: float
    projected: float
    low: float
    high: float
    low_all: float
    high_all: float


class Difference(TypedDict):
    """How far two bars must be apart: named beforehand, or any of all."""

    pair: float
    tallest: float


class InNumbers(TypedDict):
    """A numeric attribute; a mean is null where bins have no ends."""

    mean: float | None
    mean_low: float | None
    mean_high: float | None
    mean_bias: float | None
    cdf: list[float]
    cdf_low: list[float]
    cdf_high: list[float]
    quantiles: list[list[float | None]]  # share, number, low, high


class Summary(TypedDict):
    """A result: a line on standard output, and a retained message for dashboards.

    The keys are part of the protocol (protocol_spec/README.md). The histogram is empty where the
    result is withheld, or too long for a broker.
    """

    campaign: str
    attribute: str
    reporting: str
    round: int | None
    first: int | None
    last: int | None
    rounds: int
    protocol: str
    n: int
    devices: int
    n_eff: float
    withheld: bool
    min_reports: int
    digest: str
    outcomes: dict[str, int]
    values: int
    confidence: float
    device_bound: float | None
    difference: Difference | None
    numbers: InNumbers | None
    histogram: list[Bar]


def summary(campaign: Campaign, result: Result) -> Summary:
    names = next(a.values for a in campaign.manifest.attributes if a.name == result.attribute)
    between = result.difference
    return {
        "campaign": campaign.name,
        "attribute": result.attribute,
        "reporting": result.reporting,
        "round": result.round,
        "first": result.first,
        "last": result.last,
        "rounds": result.rounds,
        "protocol": result.protocol,
        "n": result.n,
        "devices": result.devices,
        "n_eff": result.n_eff,
        "withheld": result.withheld,
        "min_reports": result.min_reports,
        "digest": result.digest.hex(),
        "outcomes": {str(name): n for name, n in result.outcomes.items() if n},
        "values": len(names),
        "confidence": result.confidence,
        "device_bound": None if result.withheld else result.device_bound,
        "difference": None
        if between is None
        else {"pair": between.pair, "tallest": between.tallest},
        "numbers": None if result.numbers is None else _in_numbers(result.numbers),
        "histogram": [] if result.withheld else list(_bars(names, result)),
    }


def result_json(campaign: Campaign, result: Result) -> bytes:
    """The summary as it is published; lists too long for a broker are left out."""
    facts = summary(campaign, result)
    whole = _packed(facts)
    if len(whole) <= MAX_JSON_BYTES:
        return whole
    return _packed({**facts, "histogram": [], "numbers": None})


def _bars(names: tuple[str, ...], result: Result) -> Iterator[Bar]:
    r = result
    rows = zip(names, r.counts, r.raw, r.projected, r.low, r.high, r.low_all, r.high_all)
    for value, count, raw, projected, low, high, low_all, high_all in rows:
        yield {
            "value": value,
            "count": count,
            "raw": raw,
            "projected": projected,
            "low": low,
            "high": high,
            "low_all": low_all,
            "high_all": high_all,
        }


def _in_numbers(numbers: Numbers) -> InNumbers:
    return {
        "mean": numbers.mean,
        "mean_low": numbers.mean_low,
        "mean_high": numbers.mean_high,
        "mean_bias": numbers.mean_bias,
        "cdf": list(numbers.cdf),
        "cdf_low": list(numbers.cdf_low),
        "cdf_high": list(numbers.cdf_high),
        "quantiles": [[row.tau, row.value, row.low, row.high] for row in numbers.quantiles],
    }


def _packed(facts: Summary) -> bytes:
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()
