"""A device's value finds its place in the domain, and never appears in an error."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import AllomfreeError, Attribute, UnknownValue
from protocol_spec.attributes import bin_labels

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
    with pytest.raises(UnknownValue, match="not a number; nothing was drawn or sent") as caught:
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
