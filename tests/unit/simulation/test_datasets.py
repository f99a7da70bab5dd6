"""The paper's data sets are the right ones, and say how faithful they are."""

from __future__ import annotations

import json

import pytest

from simulation.model.datasets import NAMES, load
from tests.support import places

SHARED = places.SHARED / "marginals"

CENSUS = [9, 52, 47, 17, 3, 7, 24, 15, 5, 10, 2, 3, 6, 8, 6, 6, 51, 38, 8, 10, 9, 10, 3, 4, 5]
CENSUS += [43, 43, 43, 5, 3, 3, 3, 2]

SIZES = {
    "nursery": (12_960, [3, 5, 4, 4, 3, 2, 3, 3, 5]),
    "adult": (45_222, [7, 16, 7, 14, 6, 5, 2, 41, 2]),
    "ms_fimu": (88_935, [3, 3, 8, 12, 37, 11]),
    "census_income": (299_285, CENSUS),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_has_the_paper_s_size(name: str) -> None:
    data = load(name)
    assert (data.n, [a.k for a in data.attributes]) == SIZES[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_attribute_counts_every_row_once(name: str) -> None:
    data = load(name)
    assert {sum(a.counts) for a in data.attributes} == {data.n}
    assert all(len(set(a.values)) == len(a.counts) for a in data.attributes)


def test_the_notes_tell_what_is_approximate() -> None:
    assert "codes" in load("ms_fimu").note
    assert "scaled" in load("census_income").note


@pytest.mark.parametrize("name", NAMES)
def test_the_counts_are_those_worked_out_by_others(name: str) -> None:
    if not SHARED.exists():
        pytest.skip("the shared counts are not beside this checkout")
    wanted = json.loads((SHARED / f"{name}.json").read_text(encoding="utf-8"))
    found = {a.name: dict(zip(a.values, a.counts)) for a in load(name).attributes}
    assert found == wanted
    assert list(found) == list(wanted)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(LookupError, match="nursery, adult, ms_fimu, census_income"):
        load("iris")
