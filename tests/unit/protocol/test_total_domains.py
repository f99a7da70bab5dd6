"""P1: every value has a place, so that silence tells nothing about it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import NOT_KNOWN, Manifest, ManifestError, UnknownValue
from protocol_spec.limits import MAX_VALUES
from tests.support.protocol.manifest_cases import (
    PLAIN,
    PLAIN_TOML,
    TOUR,
    TREND_TOML,
    changed,
    document,
)
from tests.support.protocol.reference_wire import packed


def problems(toml: str) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(toml)
    return {problem.field: str(problem) for problem in caught.value.problems}


FINITE = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.lists(st.integers(), max_size=2)
    | st.just(10**5000)
    | st.just(object())
    | st.complex_numbers()
)


@settings(max_examples=200)
@given(st.lists(st.text("abc", min_size=1), min_size=2, max_size=6, unique=True), ANYTHING)
def test_any_value_has_a_place_among_named_ones(values: list[str], value: Any) -> None:
    made = changed(PLAIN, ("attributes", 0, "values"), values)
    (attribute,) = Manifest.from_bytes(packed(made)).attributes
    assert attribute.otherwise == attribute.k - 1
    place = attribute.index_of(value)
    assert 0 <= place < attribute.k
    if place != attribute.otherwise:
        assert attribute.values[place] == str(value)


@settings(max_examples=200)
@given(
    st.lists(FINITE, min_size=2, max_size=6, unique=True).map(sorted),
    st.sampled_from(("none", "low", "high", "both")),
    ANYTHING,
)
def test_any_value_has_a_place_among_numbers(inner: list[float], infinite: str, value: Any) -> None:
    low = [-math.inf] if infinite in ("low", "both") else [math.nextafter(inner[0], -math.inf)]
    high = [math.inf] if infinite in ("high", "both") else [math.nextafter(inner[-1], math.inf)]
    edges = [*low, *inner, *high]
    if infinite in ("none", "high") and math.isinf(edges[0]):
        return
    if infinite in ("none", "low") and math.isinf(edges[-1]):
        return
    heat = {**TOUR["attributes"][2], "edges": [e + 0.0 for e in edges], "low": None, "high": None}
    (attribute,) = Manifest.from_bytes(packed(document([heat]))).attributes
    assert attribute.k == attribute.bins + (infinite != "both")
    if infinite == "both":
        assert attribute.otherwise is None
        with contextlib.suppress(UnknownValue):
            assert 0 <= attribute.index_of(value) < attribute.k
        return
    assert attribute.values[-1] == NOT_KNOWN
    place = attribute.index_of(value)
    if place == attribute.otherwise:
        return
    assert edges[place] <= float(value) <= edges[place + 1]


def test_with_infinite_ends_only_what_is_no_number_has_no_place() -> None:
    heat = Manifest.from_bytes(packed(TOUR)).attributes[2]
    assert [heat.index_of(x) for x in (-math.inf, -1e308, 0, 1e308, math.inf)] == [0, 0, 1, 2, 2]
    for value in (None, "warm", math.nan, True, [1]):
        with pytest.raises(UnknownValue, match="not a number; nothing was drawn or sent"):
            heat.index_of(value)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("", ("open", "closed", NOT_KNOWN)),
        ('otherwise = "open"', ("closed", "open")),
        ('otherwise = "closed"', ("open", "closed")),
    ],
)
def test_the_author_may_name_the_value_for_everything_else(
    line: str, values: tuple[str, ...]
) -> None:
    assert Manifest.from_toml(f"{PLAIN_TOML}{line}\n").attributes[0].values == values


def test_an_author_may_write_it_out() -> None:
    text = PLAIN_TOML.replace('"open", ', f'"{NOT_KNOWN}", "open", ')
    assert Manifest.from_toml(text) == Manifest.from_toml(PLAIN_TOML)


@pytest.mark.parametrize("extra", [0, 1])
def test_one_more_value_must_fit(extra: int) -> None:
    values = repr([f"v{i}" for i in range(MAX_VALUES - 1 + extra)])
    text = PLAIN_TOML.replace('["open", "closed"]', values)
    edges = repr([float(i) for i in range(MAX_VALUES + extra)])
    numbers = PLAIN_TOML.replace('values = ["open", "closed"]', f"edges = {edges}")
    if not extra:
        assert {Manifest.from_toml(t).attributes[0].k for t in (text, numbers)} == {MAX_VALUES}
        return
    assert "otherwise" in problems(text)["attributes[0].values"]
    assert "-inf and inf" in problems(numbers)["attributes[0].edges"]
    assert Manifest.from_toml(f'{text}otherwise = "v0"\n').attributes[0].k == MAX_VALUES


def test_where_a_mean_may_be_taken() -> None:
    door, _, heat, since = Manifest.from_bytes(packed(TOUR)).attributes
    assert door.finite_edges is None
    assert heat.finite_edges == (-20.0, 0.0, 40.0, 90.5)
    assert since.finite_edges == (*(float(year) for year in range(11)), 20.0)
    assert dataclasses.replace(heat, low=None).finite_edges is None
    assert dataclasses.replace(since, high=None).finite_edges is None


def test_what_changes_over_time_unless_told_otherwise() -> None:
    trend = Manifest.from_toml(TREND_TOML)
    assert [attribute.changes for attribute in trend.attributes] == [True, False]
