"""From counts to the histograms that are published. Pure: the same counts give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from collector.records import Campaign, Tally
from protocol_spec import RESULT_SERIES, Calibration, Outcome, Result, as_drawn
from protocol_spec.estimation import Array, Estimate, estimate, estimate_pooled

CONFIDENCE: Final = 0.95


def round_results(
    campaign: Campaign,
    number: int,
    tallies: Mapping[int, Tally],
    outcomes: Mapping[Outcome, int],
) -> list[Result]:
    """Every attribute's histogram of one round, withheld where too few reported."""
    return [
        round_result(campaign, number, index, tallies.get(index), outcomes)
        for index in range(len(campaign.manifest.attributes))
    ]


def round_result(
    campaign: Campaign,
    number: int,
    index: int,
    tally: Tally | None,
    outcomes: Mapping[Outcome, int],
) -> Result:
    """One attribute's histogram of one round."""
    n = tally.n if tally else 0
    estimated, bound = None, 0.0
    if tally and n >= campaign.manifest.min_reports:
        drawn = as_drawn(campaign.manifest.calibrations[index])
        estimated, bound = estimate(tally.counts, n, drawn), device_bound(1, n, drawn)
    counts = tally.counts.tolist() if tally and estimated else []
    return _message(campaign, index, number, 1, n, n, counts, estimated, bound, outcomes)


def pooled_result(
    campaign: Campaign,
    index: int,
    rounds: int,
    total: Tally,
    participation: tuple[Sequence[int], Sequence[int]],
    outcomes: Mapping[Outcome, int],
) -> Result:
    """All sealed rounds together, for values that do not change.

    Each report weighs the same, because sealed rounds keep only their sums. The noise of a
    device's memo does not average out over its rounds, and the variance says so.
    """
    reports, devices = participation
    estimated, bound = None, 0.0
    if sum(devices) >= campaign.manifest.min_reports:
        drawn = as_drawn(campaign.manifest.calibrations[index])
        estimated = estimate_pooled(total.counts, reports, devices, drawn, weights="reports")
        bound = device_bound(max(reports), total.n, drawn)
    counts = total.counts.tolist() if estimated else []
    return _message(
        campaign, index, None, rounds, total.n, sum(devices), counts, estimated, bound, outcomes
    )


def device_bound(most: int, n: int, calibration: Calibration) -> float:
    """The furthest that one device can move any raw estimate: its reports support a value or not.

    `most` is the largest number of the n reports that one device sent. Every report weighs the
    same, so replacing all of a device's reports changes a count by at most that.
    """
    return most / (n * calibration.gap)


def _message(
    campaign: Campaign,
    index: int,
    number: int | None,
    rounds: int,
    n: int,
    devices: int,
    counts: Sequence[int],
    estimated: Estimate | None,
    bound: float,
    outcomes: Mapping[Outcome, int],
) -> Result:
    manifest = campaign.manifest
    return Result(
        digest=manifest.digest,
        attribute=manifest.attributes[index].name,
        round=number,
        rounds=rounds,
        protocol=manifest.calibrations[index].protocol,
        n=n,
        devices=devices,
        min_reports=manifest.min_reports,
        confidence=CONFIDENCE,
        device_bound=bound,
        counts=tuple(counts),
        outcomes=dict(outcomes),
        **_series(estimated),
    )


def _series(estimated: Estimate | None) -> dict[str, Any]:
    if estimated is None:
        return dict.fromkeys(RESULT_SERIES, ())
    low, high = estimated.interval(CONFIDENCE)
    low_all, high_all = estimated.interval(CONFIDENCE, simultaneous=True)
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
