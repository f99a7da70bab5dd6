"""R20, R27: a histogram's message keeps every field, and is withheld rather than thin."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
)
from protocol_spec.mechanisms import MECHANISMS
from tests.support.protocol import message_cases, reference_wire

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, (1 << 63) - 1)


@st.composite
def results(draw: st.DrawFn) -> Result:
    withheld, number = draw(st.booleans()), draw(st.none() | st.integers(0, 65_535))
    first = number if number is not None else draw(st.integers(0, 65_535))
    last = number if number is not None else draw(st.integers(first, 65_535))
    k = 0 if withheld else draw(st.sampled_from((2, 3, 17)))
    min_reports = draw(st.integers(1, 1 << 40))
    smallest, largest = (0.0, float(min_reports)) if withheld else (float(min_reports), 1e18)
    devices, reporting = draw(st.integers(1, 1 << 62)), draw(st.sampled_from([*MECHANISMS]))
    series = {name: tuple(draw(st.lists(FLOATS, min_size=k, max_size=k))) for name in RESULT_SERIES}
    made: dict[str, Any] = {
        "digest": draw(st.binary(min_size=32, max_size=32)),
        "attribute": draw(st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True)),
        "reporting": reporting,
        "round": number,
        "first": first,
        "last": last,
        "rounds": draw(st.integers(1, last - first + 1)),
        "protocol": draw(st.sampled_from(MECHANISMS[reporting].rules.protocols)),
        "n": draw(st.integers(devices, (1 << 63) - 1)),
        "devices": devices,
        "n_eff": draw(st.floats(smallest, largest, exclude_min=withheld, exclude_max=withheld)),
        "min_reports": min_reports,
        "device_bound": 0.0 if withheld else draw(st.floats(1e-18, 1e18)),
        "confidence": draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        "counts": tuple(draw(st.lists(COUNTS, min_size=k, max_size=k))),
        "difference": None if withheld else HalfWidths(draw(FLOATS), draw(FLOATS)),
        "numbers": None if withheld else draw(st.none() | numbers(k)),
        "outcomes": {outcome: draw(st.integers(0, 300)) for outcome in Outcome},
        **series,
    }
    nobody = {"n": 0, "devices": 0, "n_eff": 0.0, "rounds": 0}
    return Result(**{**made, **(nobody if withheld and draw(st.booleans()) else {})})


@st.composite
def numbers(draw: st.DrawFn, k: int) -> Numbers:
    size = draw(st.sampled_from((k - 1, k - 2)))
    shares = st.lists(FLOATS, min_size=size, max_size=size).map(tuple)
    nothing = (None, None, None, None)
    mean, low, high, bias = draw(st.none() | st.tuples(FLOATS, FLOATS, FLOATS, FLOATS)) or nothing
    ends = st.none() | FLOATS
    quantiles = [ResultQuantile(t, *draw(st.tuples(*[ends] * 3))) for t in RESULT_QUANTILES]
    return Numbers(
        *(mean, low, high, bias),
        cdf=draw(shares),
        cdf_low=draw(shares),
        cdf_high=draw(shares),
        quantiles=tuple(quantiles),
    )


@given(results())
def test_both_directions(result: Result) -> None:
    payload = result.encode()
    decoded = decode_result(payload)
    assert decoded == result
    assert isinstance(decoded, Result)
    assert decoded.encode() == payload
    assert decoded.withheld == (not result.counts)


@pytest.mark.parametrize(("n_eff", "withheld"), [(199.99999999999997, True), (200.0, False)])
def test_it_is_the_effective_number_of_devices_that_decides(n_eff: float, withheld: bool) -> None:
    fields = {**message_cases.RESULTS["pooled"], "n_eff": n_eff}
    shown = decode_result(reference_wire.result(fields))
    empty: dict[str, Any] = {name: [] for name in ("counts", *RESULT_SERIES)}
    hidden = {**fields, **empty, "device_bound": 0.0, "difference": None, "numbers": None}
    kept_back = decode_result(reference_wire.result(hidden))
    assert isinstance(shown, Rejected) == withheld
    assert isinstance(kept_back, Rejected) != withheld


def named() -> Result:
    found = decode_result(reference_wire.result(message_cases.RESULTS["named values"]))
    assert isinstance(found, Result)
    return found


def test_every_outcome_is_written_even_when_not_counted() -> None:
    decoded = decode_result(replace(named(), outcomes={Outcome.ACCEPTED: 5}).encode())
    assert isinstance(decoded, Result)
    assert decoded.outcomes == {**dict.fromkeys(Outcome, 0), Outcome.ACCEPTED: 5}


PAYLOAD = reference_wire.result(message_cases.ROUND)
OTHER_BYTES = {
    "an integer in more bytes": (b"\xa1v\x01", b"\xa1v\xcc\x01"),
    "text with a longer header": (b"\xa6rounds", b"\xd9\x06rounds"),
    "bytes with a longer header": (b"digest\xc4\x20", b"digest\xc5\x00\x20"),
    "a list with a longer header": (b"counts\x93", b"counts\xdc\x00\x03"),
    "a float32": (b"\xcb" + struct.pack(">d", 0.5), b"\xca" + struct.pack(">f", 0.5)),
}


@pytest.mark.parametrize("why", OTHER_BYTES)
def test_only_the_canonical_encoding_is_read(why: str) -> None:
    """Else two messages with different bytes would be the same result."""
    payload = PAYLOAD.replace(*OTHER_BYTES[why], 1)
    assert payload != PAYLOAD
    refused = Rejected(Outcome.MALFORMED, "not the canonical encoding")
    assert decode_result(payload) == refused


@pytest.mark.parametrize("k", [4096, 4097])
def test_as_many_values_as_a_manifest_may_have(k: int) -> None:
    series: dict[str, Any] = dict.fromkeys(RESULT_SERIES, (0.1,) * k)
    result = replace(named(), counts=((1 << 63) - 1,) * k, **series)
    decoded = decode_result(result.encode())
    assert decoded == result if k <= 4096 else isinstance(decoded, Rejected)
