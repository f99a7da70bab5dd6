"""From counts to the histograms that are published. Pure: the same counts give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from collector.records import NO_COUNTS, Campaign, Participation, RoundSum, Tally
from collector.rounds.estimates import Evidence
from protocol_spec import RESULT_SERIES, Attribute, HalfWidths, Outcome, Result
from protocol_spec.estimation import Array, Estimate, numbers_of, smallest_difference

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
    evidence = Evidence.of_round(campaign.manifest.ways[index], tally or Tally(0, NO_COUNTS))
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
    evidence = Evidence(campaign.manifest.ways[index], rounds.tally, participation)
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
    evidence = Evidence(campaign.manifest.ways[index], total, participation)
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
        **_told(manifest.attributes[index], estimated),
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


def _told(attribute: Attribute, estimated: Estimate | None) -> dict[str, Any]:
    """What follows from a histogram beyond its bars."""
    if estimated is None:
        return {"difference": None, "numbers": None}
    named, any_pair = smallest_difference(estimated, CONFIDENCE)
    return {
        "difference": HalfWidths(named, any_pair),
        "numbers": numbers_of(estimated, attribute, CONFIDENCE),
    }
