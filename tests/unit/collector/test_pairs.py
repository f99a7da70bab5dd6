"""A pair on every surface: a table, its margins, and whether the two questions are related."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.results import Results
from simulation.campaigns import into
from simulation.devices import Fleet
from simulation.population import Behaviour, from_records
from tests.support.command_line import facts, printed
from tests.support.harness import ROOT
from tests.support.pages import Site, serving, words
from tests.support.simulation import FUEL, NUMERIC, campaign

PAIR = campaign(attributes=FUEL + NUMERIC, cross=("fuel", "heat"), eps_inf=4.0, eps_1=3.0, count=2)
ROWS, COLUMNS = PAIR.attributes[0].cross
SHAPE = PAIR.attributes[0].shape
RECORDS = {
    "fuel": ["wood"] * 400 + ["gas"] * 400 + ["oil"] * 200 + ["pump"] * 100,
    "heat": [30] * 350 + [50] * 100 + [70] * 450 + [50] * 200,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of a thousand devices whose answers belong together."""
    directory = tmp_path_factory.mktemp("pair")
    people = from_records(PAIR, RECORDS)
    into(directory, Fleet(PAIR, people.counts, Behaviour(), 1, 2))
    return directory


@pytest.fixture(scope="module")
def site(data: Path) -> Iterator[Site]:
    with serving(data) as found:
        yield found


@pytest.fixture(scope="module")
def result(data: Path) -> Any:
    (found,) = facts("estimate", "--data-dir", data)
    return found


def shown(rows: list[dict[str, Any]]) -> list[float]:
    return [row["projected"] for row in rows]


def test_records_keep_the_answers_of_a_device_together() -> None:
    table = from_records(PAIR, RECORDS).counts[0].reshape(SHAPE)
    assert table.tolist() == [[350, 50, 0], [0, 50, 350], [0, 100, 100], [0, 100, 0]]


def test_margins_agree_with_the_table_and_nothing_is_outside_0_to_100(result: Any) -> None:
    table = np.array(shown(result["histogram"])).reshape(SHAPE)
    assert table.sum() == pytest.approx(1.0)
    assert (table >= 0.0).all()
    for axis, margin in zip((1, 0), result["pair"]["margins"]):
        assert shown(margin["histogram"]) == pytest.approx(table.sum(axis=axis), abs=1e-9)
        for row in margin["histogram"]:
            assert 0.0 <= row["low_all"] <= row["low"] <= row["high"] <= row["high_all"] <= 1.0
    names = [margin["attribute"] for margin in result["pair"]["margins"]]
    assert names == ["fuel", "heat"]
    wood = result["pair"]["margins"][0]["histogram"][0]
    assert wood["low"] < 400 / 1100 < wood["high"]


def test_the_sentence_says_whether_they_are_related(result: Any, data: Path) -> None:
    assert (result["pair"]["related"], result["pair"]["p_value"]) == (True, 0.001)
    related = (
        "Fuel and heat are related: if they were not, a table like this would have a chance of "
        "less than 1 in 100."
    )
    assert result["sentence"] == related
    text = printed("estimate", "--data-dir", data)
    assert related in text
    rows = re.findall(r"^  (fuel / heat|wood|gas|oil|pump|all) (.*)$", text, re.MULTILINE)
    assert [name for name, _ in rows] == ["fuel / heat", "wood", "gas", "oil", "pump", "all"]
    wood = [f"{100 * row['projected']:.0f}" for row in result["histogram"][:3]]
    whole = result["pair"]["margins"][0]["histogram"][0]["projected"]
    assert re.findall(r"([\d.]+) %", rows[1][1]) == [*wood, f"{100 * whole:.0f}"]


def test_without_a_relation_none_is_shown(tmp_path: Path) -> None:
    held = np.full(12, 100, dtype=np.int64)
    into(tmp_path, Fleet(PAIR, (held,), Behaviour(), 1, 2))
    (found,) = facts("estimate", "--data-dir", tmp_path)
    assert found["sentence"] == "No relation between fuel and heat can be shown."
    assert (found["pair"]["related"], found["pair"]["p_value"] > 0.01) == (False, True)


def test_the_page_shows_the_table_with_all_intervals(site: Site, result: Any) -> None:
    path = f"/campaigns/{result['campaign']}/attributes/fuel-heat/rounds/pooled"
    assert json.loads(site.get(f"{path}.json").body) == [result]
    page = site.get(path).text
    (table,) = re.findall(r'<table id="pair".*?</table>', page, re.DOTALL)
    cells = [words(cell) for cell in re.findall(r"<td.*?</td>", table, re.DOTALL)]
    assert len(cells) == (SHAPE[0] + 1) * (SHAPE[1] + 1)
    numbers = [[float(x) for x in re.findall(r"[\d.]+", cell)] for cell in cells[:-1]]
    assert all(0.0 <= low <= share <= high <= 100.0 for share, low, high in numbers)
    assert result["sentence"] in words(page)
    every = site.get(f"{path}?intervals=all").text
    assert words(re.findall(r'<table id="pair".*?</table>', every, re.DOTALL)[0]) != words(table)


def test_rows_of_a_pair_are_its_cells_and_then_each_question(site: Site, data: Path) -> None:
    found = Results.open(data).pooled()
    assert found.attributes == ["fuel-heat", "fuel", "heat"]
    assert [row["value"] for row in found][12:] == [*ROWS.values, *COLUMNS.values]
    assert [row["bin_high"] for row in found][-3:] == [40.0, 60.0, None]
    for name in found.attributes:
        shares = [row["projected"] for row in found if row["attribute"] == name]
        assert sum(shares) == pytest.approx(1.0), name
    assert list(Results.open(site.url).pooled()) == list(found)


def test_a_plan_says_what_a_pair_costs() -> None:
    """At eps 2: 0.77 points for each cell with 10,000 answers, 0.24 with 100,000."""
    for devices, error in ((10_000, "0.77"), (100_000, "0.24")):
        plan = printed("plan", ROOT / "docs/examples/cars.toml", "--devices", devices)
        assert f"the standard error of a cell is {error} points" in plan
