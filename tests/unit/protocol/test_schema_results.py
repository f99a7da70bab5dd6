"""The schema of results takes what the decoder takes, and refuses what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocol_spec import (
    RESULT_QUANTILES,
    RESULT_SERIES,
    HalfWidths,
    Numbers,
    Outcome,
    Rejected,
    Result,
    ResultQuantile,
    decode_result,
    encoding,
)
from tests.support.protocol.asyncapi import SCHEMAS, fits
from tests.support.protocol.oddities import ODDITIES

RESULT = Result(
    digest=bytes(range(32)),
    attribute="model",
    reporting="memoized",
    round=3,
    first=3,
    last=3,
    rounds=1,
    protocol="L-GRR",
    n=(1 << 63) - 1,
    devices=2,
    n_eff=2.0,
    min_reports=2,
    confidence=0.95,
    device_bound=0.5,
    counts=(3, 4, 5),
    outcomes={Outcome.ACCEPTED: 12},
    raw=(0.25, 0.5, 0.25),
    projected=(0.25, 0.5, 0.25),
    privacy_error=(0.25, 0.5, 0.25),
    sampling_error=(0.25, 0.5, 0.25),
    low=(0.25, 0.5, 0.25),
    high=(0.25, 0.5, 0.25),
    low_all=(0.25, 0.5, 0.25),
    high_all=(0.25, 0.5, 0.25),
    difference=HalfWidths(0.5, 1.0),
    numbers=Numbers(
        *(1.0, 0.5, 1.5, 0.25),
        cdf=(0.25, 0.75),
        cdf_low=(0.25, 0.75),
        cdf_high=(0.25, 0.75),
        quantiles=tuple(ResultQuantile(tau, None, 0.5, None) for tau in RESULT_QUANTILES),
    ),
)


def _map_of(payload: bytes) -> dict[str, Any]:
    return dict(encoding.unpack(payload, array=4097, text=4096, binary=64, maps=32))


def test_a_result_has_the_fields_of_its_schema_in_order() -> None:
    schema = SCHEMAS["result"]
    document = _map_of(RESULT.encode())
    assert list(document) == schema["required"] == list(schema["properties"])
    assert fits(document, schema)
    assert list(document["outcomes"]) == SCHEMAS["outcome"]["enum"]
    for name in ("difference", "numbers"):
        assert list(document[name]) == SCHEMAS[name]["required"]


def _changed_results() -> Iterator[dict[str, Any]]:
    good = _map_of(RESULT.encode())
    arrays = ("counts", *RESULT_SERIES)
    for field in good:
        yield {name: item for name, item in good.items() if name != field}
        lonely = field in arrays  # of another length than the other arrays, which no schema sees
        yield from ({**good, field: odd} for odd in ODDITIES if not (lonely and odd in ([], [1])))
    yield {**good, "extra": 1}
    yield {"extra": 1, **good}
    for field in arrays:
        for odd in ODDITIES:
            yield {**good, field: [good[field][0], odd, good[field][2]]}
    for length in (0, 2, 4096, 4097):
        alike = {"counts": [1] * length, **dict.fromkeys(RESULT_SERIES, [0.5] * length)}
        yield {**good, **alike, "numbers": None}
    outcomes = good["outcomes"]
    for odd in ODDITIES:
        yield {**good, "outcomes": {**outcomes, "late": odd}}
    yield {**good, "outcomes": {**outcomes, "lost": 0}}
    yield {**good, "outcomes": {name: n for name, n in outcomes.items() if name != "late"}}
    yield from _changed_parts(good)


def _changed_parts(good: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every field of the inner maps, and every item of a quantile."""
    for part in ("difference", "numbers"):
        inner = good[part]
        for field in inner:
            yield {**good, part: {name: item for name, item in inner.items() if name != field}}
            yield from ({**good, part: {**inner, field: odd}} for odd in ODDITIES)
        yield {**good, part: {**inner, "extra": 0.5}}
    rows = good["numbers"]["quantiles"]
    for place in range(4):
        for odd in ODDITIES:
            row = [*rows[0][:place], odd, *rows[0][place + 1 :]]
            yield {**good, "numbers": {**good["numbers"], "quantiles": [row, *rows[1:]]}}


def _contradicts_itself(document: dict[str, Any]) -> bool:
    """What no schema sees: fields that are right by themselves but not together."""
    n, first, last = (document[name] for name in ("n", "first", "last"))
    one = document["round"] in (None, first) and first <= last
    one &= document["round"] in (None, last) and document["rounds"] <= last - first + 1
    some = {bool(document[name]) for name in ("n", "devices", "n_eff", "rounds")}
    withheld = not n or document["n_eff"] < document["min_reports"]
    told = withheld == (not document["counts"]) == (document["device_bound"] == 0.0)
    told &= withheld == (document["difference"] is None)
    return not (
        one
        and len(some) == 1
        and document["devices"] <= n
        and told
        and _numbers_fit(document["numbers"], withheld, len(document["counts"]))
        and document["reporting"] == "memoized"
    )


def _numbers_fit(numbers: Any, withheld: bool, k: int) -> bool:
    if numbers is None:
        return True
    whole = len({numbers[name] is None for name in ("mean", "mean_low", "mean_high", "mean_bias")})
    lengths = {len(numbers[name]) for name in ("cdf", "cdf_low", "cdf_high")}
    shares = [row[0] for row in numbers["quantiles"]]
    fitting = lengths in ({k - 1}, {k - 2})
    return not withheld and whole == 1 and fitting and shares == list(RESULT_QUANTILES)


def test_schema_and_decoder_take_the_same_results() -> None:
    taken = refused = 0
    for document in _changed_results():
        accepted = not isinstance(decode_result(encoding.pack(document)), Rejected)
        fitting = fits(document, SCHEMAS["result"]) and not _contradicts_itself(document)
        assert fitting == accepted, document
        taken, refused = taken + accepted, refused + (not accepted)
    assert taken > 10
    assert refused > 200
