"""Is A above B? Differences between bars of a result, with the interval that belongs to them."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypedDict

from collector.errors import UnknownCampaign
from collector.show.estimates import estimate_of
from protocol_spec import Manifest, Result
from protocol_spec.estimation import Contrast, difference
from protocol_spec.programs.output import quoted, shown

Answer = Literal["above", "below", "not shown", "withheld"]


class Comparison(TypedDict):
    """How much more frequent A is than B, as shares of 1; None where the result is withheld.

    `low` and `high` are for a pair named before looking; `low_all` and `high_all` hold for all
    pairs at once, which is what a pair picked for its bars needs.
    """

    attribute: str
    a: str
    b: str
    round: int | None
    first: int | None
    last: int | None
    rounds: int
    n: int
    devices: int
    n_eff: float | None
    confidence: float
    difference: float | None
    privacy_error: float | None
    sampling_error: float | None
    half_width: float | None
    low: float | None
    high: float | None
    half_width_all: float | None
    low_all: float | None
    high_all: float | None
    answer: Answer
    answer_all: Answer


def compare(manifest: Manifest, result: Result, a: str, b: str) -> Comparison:
    """Whether value `a` of the result's attribute is more frequent than value `b`."""
    attribute = next(each for each in manifest.attributes if each.name == result.attribute)
    u, v = (_index(attribute.values, value) for value in (a, b))
    if u == v:
        raise UnknownCampaign(f"{quoted(a)} is compared with itself; name two values")
    found = None if result.withheld else difference(estimate_of(manifest, result), u, v)
    named = _Interval.of(found, result.confidence, 1)
    every = _Interval.of(found, result.confidence, math.comb(attribute.k, 2))
    return {
        "attribute": result.attribute,
        "a": a,
        "b": b,
        "round": result.round,
        "first": result.first,
        "last": result.last,
        "rounds": result.rounds,
        "n": result.n,
        "devices": result.devices,
        "n_eff": result.n_eff,
        "confidence": result.confidence,
        "difference": None if found is None else found.value,
        "privacy_error": None if found is None else math.sqrt(found.privacy_variance),
        "sampling_error": None if found is None else math.sqrt(found.sampling_variance),
        "half_width": named.half,
        "low": named.low,
        "high": named.high,
        "half_width_all": every.half,
        "low_all": every.low,
        "high_all": every.high,
        "answer": named.answer,
        "answer_all": every.answer,
    }


class _Interval(NamedTuple):
    half: float | None
    low: float | None
    high: float | None
    answer: Answer

    @classmethod
    def of(cls, found: Contrast | None, confidence: float, comparisons: int) -> _Interval:
        if found is None:
            return cls(None, None, None, "withheld")
        half = found.half_width(confidence, comparisons=comparisons)
        low, high = found.interval(confidence, comparisons=comparisons)
        answer: Answer = "above" if low > 0.0 else "below" if high < 0.0 else "not shown"
        return cls(half, low, high, answer)


def _index(values: tuple[str, ...], value: str) -> int:
    if value not in values:
        known = ", ".join(map(repr, values[:20])) + (", …" if len(values) > 20 else "")
        raise UnknownCampaign(
            f"unknown value {quoted(value)}; the attribute has: {shown(known, 600)}"
        )
    return values.index(value)
