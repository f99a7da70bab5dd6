"""From counts to published histograms. Pure: the same counts give the same bytes.

Which estimate is made of counts depends on the mechanism (`Analysis.combined`):

    pooled   a round by itself; several rounds with the noise that a memo keeps (M54)
    window   the answers of any number of rounds: each has fresh noise
    latest   a round, over its levels; never several rounds, which have the same devices
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from collector.records import NO_COUNTS, Campaign, Counts, Participation, RoundSum, Tally
from protocol_spec import RESULT_SERIES, Mechanism, Outcome, Result
from protocol_spec.estimation import (
    Channel,
    Estimate,
    effective_devices,
    estimate_reports,
    numbers_of,
    project_pair,
    series_of,
    smallest_difference,
    unevenness,
)
from protocol_spec.limits import MAX_JSON_BYTES

CONFIDENCE: Final = 0.95

Outcomes = Mapping[Outcome, int]
Heard = tuple[int, int]  # devices of earlier rounds; of these, those that reported in this one
NOBODY: Final[Heard] = (0, 0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts with what is known of the devices behind them, before anything is estimated."""

    mechanism: Mechanism
    tally: Tally
    participation: Participation

    @classmethod
    def of_round(cls, mechanism: Mechanism, tally: Tally) -> Evidence:
        """A device reports at most once in a round."""
        return cls(mechanism, tally, ([1], [tally.n]) if tally.n else ([], []))

    @property
    def n_eff(self) -> float:
        """The number of devices of equal weight that say as much. Never rounded below a whole."""
        return effective_devices(*self.participation)

    @property
    def counts(self) -> Counts:
        """Reports that support each value, over all levels."""
        if len(self.mechanism.channels) == 1:
            return self.tally.counts
        counts: Counts = self._table()[:, 1:].sum(axis=0)
        return counts

    def estimate(self) -> Estimate:
        tally, mechanism = self.tally, self.mechanism
        if len(mechanism.channels) > 1:
            table = self._table()
            return estimate_reports(mechanism, table[:, 1:], table[:, 0], self.participation)
        return estimate_reports(mechanism, [tally.counts], [tally.n], self.participation)

    def device_bound(self) -> float:
        """How far one device can move any of `raw` at most, by sending other reports.

        Every report weighs the same, so replacing all of a device's reports changes a count by at
        most their number; a report with a level can be replaced by one with another level.
        """
        pulls = [
            (-qs / gap, (1.0 - qs) / gap) for gap, qs in map(_gap_and_qs, self.mechanism.channels)
        ]
        lowest, highest = min(low for low, _ in pulls), max(high for _, high in pulls)
        return (highest - lowest) * max(self.participation[0]) / self.tally.n

    def _table(self) -> Counts:
        """Of each level: the number of reports, and the counts."""
        return self.tally.counts.reshape(len(self.mechanism.channels), self.mechanism.k + 1)


def _gap_and_qs(channel: Channel) -> tuple[float, float]:
    p1, q1, p2, q2 = channel.exact
    return float((p1 - q1) * (p2 - q2)), float(q1 * p2 + (1 - q1) * q2)


# --- results ------------------------------------------------------------------------------------


def round_results(
    campaign: Campaign,
    number: int,
    tallies: Mapping[int, Tally],
    outcomes: Outcomes,
    heard: Mapping[int, Heard] = MappingProxyType({}),
) -> list[Result]:
    """Every attribute's histogram of one round, withheld where too few reported."""
    return [
        round_result(
            campaign, number, index, tallies.get(index), outcomes, heard.get(index, NOBODY)
        )
        for index in range(len(campaign.manifest.attributes))
    ]


def round_result(
    campaign: Campaign,
    number: int,
    index: int,
    tally: Tally | None,
    outcomes: Outcomes,
    heard: Heard = NOBODY,
) -> Result:
    """One attribute's histogram of one round."""
    evidence = Evidence.of_round(campaign.mechanism(index), tally or Tally(0, NO_COUNTS))
    rounds = RoundSum(number, number, int(evidence.tally.n > 0), evidence.tally)
    return _result(campaign, index, number, rounds, evidence, outcomes, heard)


def window_result(
    campaign: Campaign,
    index: int,
    rounds: RoundSum,
    participation: Participation,
    outcomes: Outcomes,
    needed: int | None = None,
) -> Result:
    """Several rounds, or one, each answer with fresh noise; withheld below `needed` devices, which
    is `min_reports` unless there are groups to wait for."""
    number = rounds.last if rounds.first == rounds.last else None
    evidence = Evidence(campaign.mechanism(index), rounds.tally, participation)
    return _result(campaign, index, number, rounds, evidence, outcomes, needed=needed)


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
    heard: Heard = NOBODY,
    needed: int | None = None,
) -> Result:
    """Rounds together, `rounds` of which had reports; from `first` to `last`.

    Each report weighs the same, because sealed rounds keep only their sums. The noise of a
    device's memo does not average out over its rounds, and the variance says so. Where only
    the latest round counts (`Analysis.combined`), the total is that of one round.
    """
    end = first + max(rounds, 1) - 1 if last is None else last
    evidence = Evidence(campaign.mechanism(index), total, participation)
    together = RoundSum(first, end, rounds, total)
    return _result(campaign, index, None, together, evidence, outcomes, heard, needed)


def _result(
    campaign: Campaign,
    index: int,
    number: int | None,
    rounds: RoundSum,
    evidence: Evidence,
    outcomes: Outcomes,
    heard: Heard = NOBODY,
    needed: int | None = None,
) -> Result:
    manifest, needed = campaign.manifest, needed or campaign.manifest.min_reports
    attribute = manifest.attributes[campaign.attribute_of(index)]
    n, n_eff = evidence.tally.n, evidence.n_eff
    withheld = Result(
        digest=manifest.digest,
        attribute=attribute.name,
        reporting=evidence.mechanism.reporting,
        round=number,
        first=rounds.first,
        last=rounds.last,
        rounds=rounds.rounds,
        protocol=evidence.mechanism.protocol,
        n=n,
        devices=sum(evidence.participation[1]),
        n_eff=n_eff,
        heard=heard[0],
        returned=heard[1],
        uneven=unevenness(*evidence.participation),
        min_reports=needed,
        confidence=CONFIDENCE,
        device_bound=0.0,
        counts=(),
        outcomes=dict(outcomes),
        difference=None,
        numbers=None,
        **dict.fromkeys(RESULT_SERIES, ()),
    )
    if n == 0 or n_eff < needed:
        return withheld
    made = evidence.estimate()
    columns = series_of(made, CONFIDENCE)
    if attribute.cross:
        columns["projected"] = project_pair(made.raw, attribute.shape).tolist()
    series: dict[str, Any] = {name: tuple(column) for name, column in columns.items()}
    return replace(
        withheld,
        device_bound=evidence.device_bound(),
        counts=tuple(evidence.counts.tolist()),
        difference=smallest_difference(made, CONFIDENCE),
        numbers=numbers_of(made, attribute, CONFIDENCE),
        **series,
    )


# --- a result as one JSON object ------------------------------------------------------------------

_AS_IS: Final = (
    "attribute", "reporting", "round", "first", "last", "rounds", "protocol", "n", "devices",
    "n_eff", "heard", "returned", "uneven", "withheld", "min_reports",
)  # fmt: skip
_BAR: Final = ("raw", "projected", "low", "high", "low_all", "high_all")
_NUMBERS: Final = (
    "mean", "mean_low", "mean_high", "mean_bias", "cdf", "cdf_low", "cdf_high",
)  # fmt: skip


def summary(campaign: Campaign, result: Result) -> dict[str, Any]:
    """A result: a line on standard output, and a retained message for dashboards.

    The keys are part of the protocol (protocol_spec/README.md). The histogram is empty where the
    result is withheld, or too long for a broker; a mean is null where bins have no ends.
    """
    values = next(a.values for a in campaign.manifest.attributes if a.name == result.attribute)
    numbers, of_numbers = result.numbers, None
    columns = (values, result.counts, *(getattr(result, name) for name in _BAR))
    bars = [dict(zip(("value", "count", *_BAR), row)) for row in zip(*columns)]
    if numbers is not None:
        quantiles = [[row.tau, row.value, row.low, row.high] for row in numbers.quantiles]
        of_numbers = {name: getattr(numbers, name) for name in _NUMBERS} | {"quantiles": quantiles}
    return {
        "campaign": campaign.name,
        **{name: getattr(result, name) for name in _AS_IS},
        "digest": result.digest.hex(),
        "outcomes": {str(name): n for name, n in result.outcomes.items() if n},
        "values": len(values),
        "confidence": result.confidence,
        "device_bound": None if result.withheld else result.device_bound,
        "difference": None if result.difference is None else result.difference._asdict(),
        "numbers": of_numbers,
        "histogram": [] if result.withheld else bars,
    }


def result_json(campaign: Campaign, result: Result) -> bytes:
    """The summary as it is published; lists too long for a broker are left out."""
    facts = summary(campaign, result)
    whole = _packed(facts)
    if len(whole) <= MAX_JSON_BYTES:
        return whole
    return _packed({**facts, "histogram": [], "numbers": None})


def _packed(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()
