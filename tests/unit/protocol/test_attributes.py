"""A device's value finds its place in the domain, and never appears in an error."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from bisect import bisect_right
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import (
    NOT_KNOWN,
    AllomfreeError,
    Attribute,
    Manifest,
    ManifestError,
    UnknownValue,
)
from protocol_spec.attributes import bin_labels
from protocol_spec.limits import MAX_VALUES
from tests.support.protocol.manifest_cases import (
    PLAIN,
    PLAIN_TOML,
    TOUR,
    changed,
    document,
)
from tests.support.protocol.reference_wire import packed

INF = math.inf
FUEL = Attribute("fuel", "What heats it?", ("wood", "gas", "7", "true", "false"))


def binned(*edges: float, unit: str = "") -> Attribute:
    """Without a value for what is outside."""
    return Attribute("warm", "How warm?", bin_labels(edges, unit), edges, unit)


@pytest.mark.parametrize(
    ("value", "index"), [("wood", 0), ("gas", 1), ("7", 2), (7, 2), (True, 3), (False, 4)]
)
def test_named_values(value: Any, index: int) -> None:
    assert FUEL.index_of(value) == index


WARM = binned(-INF, 0.0, 40.0, 55.5, INF, unit="°C")


@pytest.mark.parametrize(
    ("value", "index"),
    [
        (-INF, 0),
        (-1e308, 0),
        (-0.001, 0),
        (-0.0, 1),
        (0, 1),
        (39.999, 1),
        (40, 2),
        ("40", 2),
        (" 55.4\n", 2),
        (55.5, 3),
        (1e308, 3),
        (INF, 3),
        ("inf", 3),
    ],
)
def test_bins_include_their_lower_end(value: Any, index: int) -> None:
    assert WARM.index_of(value) == index


def test_the_last_bin_includes_a_finite_upper_end() -> None:
    load = binned(0.0, 0.5, 1.0)
    assert [load.index_of(x) for x in (0, 0.499, 0.5, 1.0)] == [0, 0, 1, 1]


@pytest.mark.parametrize("value", [math.nan, "nan", "warm", "", None, [1], b"\xff", 1j])
def test_what_is_no_number_is_refused(value: Any) -> None:
    """With bins from -inf to inf; every other domain has a place for it."""
    with pytest.raises(UnknownValue, match="not a number; it is not used") as caught:
        WARM.index_of(value)
    assert isinstance(caught.value, AllomfreeError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.attribute == "warm"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


EDGES = st.lists(st.floats(allow_nan=False), min_size=3, max_size=20, unique=True).map(sorted)


@given(EDGES, st.data())
def test_every_number_between_the_ends_has_the_bin_that_holds_it(
    edges: list[float], data: st.DataObject
) -> None:
    attribute = Attribute("x", "?", ("",) * len(edges), tuple(edges))
    number = data.draw(st.floats(edges[0], edges[-1]) | st.sampled_from(edges))
    index = attribute.index_of(number)
    low, high = edges[index], edges[index + 1]
    last = index == attribute.bins - 1
    assert low <= number
    assert number < high or (last and number == high)
    assert index == min(bisect_right(edges, number) - 1, attribute.bins - 1)


def test_labels() -> None:
    assert WARM.values == ("< 0 °C", "0 to 40 °C", "40 to 55.5 °C", "≥ 55.5 °C")
    assert bin_labels((0.0, 0.25, 1.0), "") == ("0 to 0.25", "0.25 to 1")
    assert bin_labels((-5.0, 1e22, INF), "m") == ("-5 to 1e+22 m", "≥ 1e+22 m")


@given(EDGES)
def test_labels_are_distinct(edges: list[float]) -> None:
    unique = [edge + 0.0 for edge in edges]
    labels = bin_labels(tuple(dict.fromkeys(unique)), "")
    assert len(set(labels)) == len(labels)


# --- P1: every value has a place, so that silence tells nothing about it.


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
    made = changed(PLAIN, "attributes[0].values", values)
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
