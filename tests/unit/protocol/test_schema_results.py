"""The schema of results takes what the decoder takes, and refuses what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocol_spec import RESULT_SERIES, Outcome, Rejected, Result, canonical, decode_result
from tests.support.protocol.asyncapi import SCHEMAS, fits
from tests.support.protocol.oddities import ODDITIES

HISTOGRAM = Result(
    digest=bytes(range(32)),
    attribute="model",
    round=3,
    rounds=1,
    protocol="L-GRR",
    n=(1 << 63) - 1,
    devices=0,
    min_reports=2,
    confidence=0.95,
    device_bound=0.5,
    counts=(3, 4, 5),
    **dict.fromkeys(RESULT_SERIES, (0.25, 0.5, 0.25)),
    outcomes={Outcome.ACCEPTED: 12},
)


def _map_of(payload: bytes) -> dict[str, Any]:
    return dict(canonical.unpack(payload, array=4097, text=4096, binary=64, maps=32))


def test_a_result_has_the_fields_of_its_schema_in_order() -> None:
    schema = SCHEMAS["result"]
    document = _map_of(HISTOGRAM.encode())
    assert list(document) == schema["required"] == list(schema["properties"])
    assert fits(document, schema)
    assert list(document["outcomes"]) == SCHEMAS["outcome"]["enum"]


def _changed_results() -> Iterator[dict[str, Any]]:
    good = _map_of(HISTOGRAM.encode())
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
        yield {**good, "counts": [1] * length, **dict.fromkeys(RESULT_SERIES, [0.5] * length)}
    outcomes = good["outcomes"]
    for odd in ODDITIES:
        yield {**good, "outcomes": {**outcomes, "late": odd}}
    yield {**good, "outcomes": {**outcomes, "lost": 0}}
    yield {**good, "outcomes": {name: n for name, n in outcomes.items() if name != "late"}}


def _contradicts_itself(document: dict[str, Any]) -> bool:
    """What no schema sees: fields that are right by themselves but not together."""
    withheld = document["devices"] < max(1, document["min_reports"])
    one_round = document["round"] is None or document["rounds"] == 1
    counted = document["devices"] <= document["n"]
    told = withheld == (not document["counts"]) == (document["device_bound"] == 0.0)
    return not (one_round and counted and told)


def test_schema_and_decoder_take_the_same_results() -> None:
    taken = refused = 0
    for document in _changed_results():
        accepted = not isinstance(decode_result(canonical.pack(document)), Rejected)
        fitting = fits(document, SCHEMAS["result"]) and not _contradicts_itself(document)
        assert fitting == accepted, document
        taken, refused = taken + accepted, refused + (not accepted)
    assert taken > 10
    assert refused > 200
