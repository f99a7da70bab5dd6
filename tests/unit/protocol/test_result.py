"""R20, R27: a histogram's message keeps every field, and is withheld rather than thin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import LONGITUDINAL, RESULT_SERIES, Outcome, Rejected, Result, decode_result
from tests.support.protocol import message_cases

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, (1 << 63) - 1)


@st.composite
def results(draw: st.DrawFn) -> Result:
    withheld, number = draw(st.booleans()), draw(st.none() | st.integers(0, 65_535))
    k = 0 if withheld else draw(st.sampled_from((2, 3, 17)))
    min_reports = draw(st.integers(1, 1 << 40))
    devices = draw(
        st.integers(0, min_reports - 1) if withheld else st.integers(min_reports, 1 << 62)
    )
    series = {name: tuple(draw(st.lists(FLOATS, min_size=k, max_size=k))) for name in RESULT_SERIES}
    return Result(
        digest=draw(st.binary(min_size=32, max_size=32)),
        attribute=draw(st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True)),
        round=number,
        rounds=1 if number is not None else draw(st.integers(1, 65_536)),
        protocol=draw(st.sampled_from(LONGITUDINAL)),
        n=draw(st.integers(devices, (1 << 63) - 1)),
        devices=devices,
        min_reports=min_reports,
        device_bound=0.0 if withheld else draw(st.floats(1e-18, 1e18)),
        confidence=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        counts=tuple(draw(st.lists(COUNTS, min_size=k, max_size=k))),
        outcomes={outcome: draw(st.integers(0, 300)) for outcome in Outcome},
        **series,
    )


@given(results())
def test_both_directions(result: Result) -> None:
    payload = result.encode()
    decoded = decode_result(payload)
    assert decoded == result
    assert isinstance(decoded, Result)
    assert decoded.encode() == payload
    assert decoded.withheld == (not result.counts)


def test_every_outcome_is_written_even_when_not_counted() -> None:
    fields: dict[str, Any] = dict(message_cases.RESULT)
    series = {name: tuple(fields[name]) for name in ("counts", *RESULT_SERIES)}
    sparse = Result(**{**fields, **series, "outcomes": {Outcome.ACCEPTED: 5}})
    decoded = decode_result(sparse.encode())
    assert isinstance(decoded, Result)
    assert decoded.outcomes == {**dict.fromkeys(Outcome, 0), Outcome.ACCEPTED: 5}


@pytest.mark.parametrize("k", [4096, 4097])
def test_as_many_values_as_a_manifest_may_have(k: int) -> None:
    fields: dict[str, Any] = dict(message_cases.RESULT)
    series = dict.fromkeys(RESULT_SERIES, (0.1,) * k)
    outcomes = dict.fromkeys(Outcome, 0)
    result = Result(**{**fields, **series, "counts": ((1 << 63) - 1,) * k, "outcomes": outcomes})
    decoded = decode_result(result.encode())
    assert decoded == result if k <= 4096 else isinstance(decoded, Rejected)
