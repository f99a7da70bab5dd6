"""A result as one JSON object: a line on standard output, and a retained message for dashboards.

The keys are part of the protocol (protocol_spec/README.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypedDict

from collector.records import Campaign
from protocol_spec import Result
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


class Summary(TypedDict):
    """A result; its histogram is empty where it is withheld, or too long for a broker."""

    campaign: str
    attribute: str
    round: int | None
    rounds: int
    protocol: str
    n: int
    devices: int
    withheld: bool
    min_reports: int
    digest: str
    outcomes: dict[str, int]
    values: int
    confidence: float
    device_bound: float | None
    histogram: list[Bar]


def summary(campaign: Campaign, result: Result) -> Summary:
    """One result as one object."""
    names = next(a.values for a in campaign.manifest.attributes if a.name == result.attribute)
    return {
        "campaign": campaign.name,
        "attribute": result.attribute,
        "round": result.round,
        "rounds": result.rounds,
        "protocol": result.protocol,
        "n": result.n,
        "devices": result.devices,
        "withheld": result.withheld,
        "min_reports": result.min_reports,
        "digest": result.digest.hex(),
        "outcomes": {str(name): n for name, n in result.outcomes.items() if n},
        "values": len(names),
        "confidence": result.confidence,
        "device_bound": None if result.withheld else result.device_bound,
        "histogram": [] if result.withheld else list(_bars(names, result)),
    }


def result_json(campaign: Campaign, result: Result) -> bytes:
    """The summary as it is published; a histogram too long for a broker is left out."""
    facts = summary(campaign, result)
    whole = _packed(facts)
    return whole if len(whole) <= MAX_JSON_BYTES else _packed({**facts, "histogram": []})


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


def _packed(facts: Summary) -> bytes:
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()
