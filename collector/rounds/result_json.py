"""A result as one JSON object: a line on standard output, and a retained message for dashboards.

The keys are part of the protocol (protocol_spec/README.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypedDict

from collector.records import Campaign
from protocol_spec import Numbers, Result
from protocol_spec.limits import MAX_JSON_BYTES


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
    """A result; its histogram is empty where it is withheld, or too long for a broker.

    What is new in version 2 is null in results of version 1.
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
    n_eff: float | None
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
    """One result as one object."""
    names = next(a.values for a in campaign.manifest.attributes if a.name == result.attribute)
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
        "difference": _difference(result),
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
    for i, value in enumerate(names):
        yield {
            "value": value,
            "count": result.counts[i],
            "raw": result.raw[i],
            "projected": result.projected[i],
            "low": result.low[i],
            "high": result.high[i],
            "low_all": result.low_all[i],
            "high_all": result.high_all[i],
        }


def _difference(result: Result) -> Difference | None:
    if result.difference is None:
        return None
    return {"pair": result.difference.pair, "tallest": result.difference.tallest}


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
