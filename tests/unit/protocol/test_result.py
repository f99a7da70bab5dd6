"""R20, R27: a histogram's message keeps every field, and is withheld rather than thin."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import (
    LONGITUDINAL,
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
from protocol_spec.result_checks import PROTOCOLS
from protocol_spec.ways import WAYS
from tests.support.protocol import message_cases, message_cases_2, reference_wire

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, (1 << 63) - 1)


@st.composite
def results(draw: st.DrawFn) -> Result:
    """Of version 1."""
    withheld, number = draw(st.booleans()), draw(st.none() | st.integers(0, 65_535))
    k = 0 if withheld else draw(st.sampled_from((2, 3, 17)))
    min_reports = draw(st.integers(1, 1 << 40))
    devices = draw(
        st.integers(0, min_reports - 1) if withheld else st.integers(min_reports, 1 << 62)
    )
    series = {name: tuple(draw(st.lists(FLOATS, min_size=k, max_size=k))) for name in RESULT_SERIES}
    made: dict[str, Any] = {
        "digest": draw(st.binary(min_size=32, max_size=32)),
        "attribute": draw(st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True)),
        "round": number,
        "rounds": 1 if number is not None else draw(st.integers(1, 65_536)),
        "protocol": draw(st.sampled_from(LONGITUDINAL)),
        "n": draw(st.integers(devices, (1 << 63) - 1)),
        "devices": devices,
        "min_reports": min_reports,
        "device_bound": 0.0 if withheld else draw(st.floats(1e-18, 1e18)),
        "confidence": draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        "counts": tuple(draw(st.lists(COUNTS, min_size=k, max_size=k))),
        "outcomes": {outcome: draw(st.integers(0, 300)) for outcome in Outcome},
        **series,
    }
    return Result(**made)


@st.composite
def second_results(draw: st.DrawFn) -> Result:
    """The same with what version 2 adds."""
    old = draw(results())
    first = old.round if old.round is not None else draw(st.integers(0, 65_535))
    last = old.round if old.round is not None else draw(st.integers(first, 65_535))
    reporting = draw(st.sampled_from(WAYS))
    smallest = 0.0 if old.withheld else float(old.min_reports)
    largest = float(old.min_reports) if old.withheld else 1e18
    n_eff = draw(st.floats(smallest, largest, exclude_min=old.withheld, exclude_max=old.withheld))
    heard = max(old.devices, 1)
    new = replace(
        old,
        reporting=reporting,
        protocol=draw(st.sampled_from(PROTOCOLS[reporting])),
        first=first,
        last=last,
        rounds=draw(st.integers(1, last - first + 1)),
        devices=heard,
        n=max(old.n, heard),
        n_eff=n_eff,
        difference=None if old.withheld else HalfWidths(draw(FLOATS), draw(FLOATS)),
        numbers=None if old.withheld else draw(st.none() | numbers(len(old.counts))),
    )
    nobody = old.withheld and draw(st.booleans())
    return replace(new, n=0, devices=0, n_eff=0.0, rounds=0) if nobody else new


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


@given(results() | second_results())
def test_both_directions(result: Result) -> None:
    payload = result.encode()
    decoded = decode_result(payload)
    assert decoded == result
    assert isinstance(decoded, Result)
    assert decoded.encode() == payload
    assert decoded.withheld == (not result.counts)
    assert decoded.version == (1 if result.n_eff is None else 2)


def test_what_version_1_does_not_say() -> None:
    """It is read into the same class; what it lacks is what a result of version 1 means."""
    [_, fields, payload] = next(case for case in message_cases.good() if case[0] == "result")
    decoded = decode_result(payload)
    assert isinstance(decoded, Result)
    assert "reporting" not in fields
    assert decoded.reporting == "memoized"
    assert decoded.version == 1
    told = (decoded.first, decoded.last, decoded.n_eff, decoded.difference, decoded.numbers)
    assert told == (None,) * 5


@pytest.mark.parametrize(("n_eff", "withheld"), [(199.99999999999997, True), (200.0, False)])
def test_it_is_the_effective_number_of_devices_that_decides(n_eff: float, withheld: bool) -> None:
    fields = {**message_cases_2.RESULTS["pooled"], "n_eff": n_eff}
    shown = decode_result(reference_wire.result(fields, 2))
    empty: dict[str, Any] = {name: [] for name in ("counts", *RESULT_SERIES)}
    hidden = {**fields, **empty, "device_bound": 0.0, "difference": None, "numbers": None}
    kept_back = decode_result(reference_wire.result(hidden, 2))
    assert isinstance(shown, Rejected) == withheld
    assert isinstance(kept_back, Rejected) != withheld


def test_every_outcome_is_written_even_when_not_counted() -> None:
    fields: dict[str, Any] = dict(message_cases.RESULT)
    series = {name: tuple(fields[name]) for name in ("counts", *RESULT_SERIES)}
    sparse = Result(**{**fields, **series, "outcomes": {Outcome.ACCEPTED: 5}})
    decoded = decode_result(sparse.encode())
    assert isinstance(decoded, Result)
    assert decoded.outcomes == {**dict.fromkeys(Outcome, 0), Outcome.ACCEPTED: 5}


PAYLOAD = reference_wire.result(message_cases.RESULT, 1)
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
    fields: dict[str, Any] = dict(message_cases.RESULT)
    series = dict.fromkeys(RESULT_SERIES, (0.1,) * k)
    outcomes = dict.fromkeys(Outcome, 0)
    result = Result(**{**fields, **series, "counts": ((1 << 63) - 1,) * k, "outcomes": outcomes})
    decoded = decode_result(result.encode())
    assert decoded == result if k <= 4096 else isinstance(decoded, Rejected)
