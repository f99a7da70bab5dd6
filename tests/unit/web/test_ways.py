"""Numbers, windows, comparisons and the ways of reporting on the page, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.records import Campaign
from tests.support.collector_fakes import FIRST, candidate, seal, three_questions
from tests.support.results import rooms, store_windows
from tests.support.site import Site, serving, words


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ways") / "data"


@pytest.fixture(scope="module")
def campaign(data: Path) -> Campaign:
    """One round for life: two windows, and one that fills."""
    with closing(open_store(data)) as store:
        made = store.open_campaign(rooms("once"), FIRST)
        store_windows(store, made)
        return made


@pytest.fixture(scope="module")
def site(data: Path, campaign: Campaign) -> Iterator[Site]:
    with serving(data) as served:
        yield served


@pytest.fixture(scope="module")
def room(campaign: Campaign) -> str:
    return f"/campaigns/{campaign.name}/attributes/room"


def test_numbers_stand_beside_the_histogram(site: Site, room: str) -> None:
    (facts,) = json.loads(site.get(f"{room}/rounds/pooled.json").text)
    numbers, page = facts["numbers"], site.get(f"{room}/rounds/pooled").text
    shown, middle = words(page), numbers["quantiles"][2]
    assert f"Median {middle['value']:.4g} °C {middle['low']:g} … {middle['high']:g}" in shown
    assert f"Mean {numbers['mean']:.4g} °C" in shown
    for edge, share in zip(numbers["edges"], numbers["cdf"]):
        assert f"{edge:g} {100 * share:.1f} %" in shown
    assert 'id="cdf"' in page
    assert 'id="cdf"' not in site.get(f"{room.removesuffix('room')}fuel/rounds/pooled").text


def test_windows_are_named_by_their_rounds(site: Site, room: str) -> None:
    shown = words(site.get(room).text)
    rows = re.findall(r"<tr data-round.*?</tr>", site.get(room).text, re.DOTALL)
    assert [words(row).split()[0] for row in rows] == ["5", "2–4", "0–1"]
    assert "not enough reports: 10 of 50" in shown
    assert "All released, rounds 0 to 4" in shown
    assert "The bands of different windows are independent" in shown
    assert "first-stage noise" not in shown
    window = words(site.get(f"{room}/rounds/4").text)
    assert "Rounds 2 to 4 : 70 reports, GRR" in window
    filling = words(site.get(f"{room}/rounds/3").text)
    assert "Rounds 2 to 3 : 40 reports" in filling
    assert "these rounds go on into a longer window" in filling


@pytest.mark.parametrize("name", ["median", "mean"])
def test_a_number_over_time(site: Site, room: str, name: str) -> None:
    facts = json.loads(site.get(f"{room}.json").text)
    numbers = next(r["numbers"] for r in facts["rounds"] if r["last"] == 4)
    value = numbers["mean"] if name == "mean" else numbers["quantiles"][2]["value"]
    page = site.get(f"{room}?value={name}").text
    (row,) = re.findall(r'<tr data-round="4">.*?</tr>', page, re.DOTALL)
    begins = next(r["opens"] for r in facts["rounds"] if r["last"] == 4)
    moment = begins.replace("T", " ").removesuffix("Z").removesuffix(":00")
    assert f"2–4 {moment} 70 {value:.4g} " in words(row)
    assert f"Numbers for “{name}”" in words(page)
    assert site.get(f"{room.removesuffix('room')}fuel?value={name}").status == 400


def test_is_a_above_b_by_parameters(site: Site, room: str) -> None:
    fuel = room.removesuffix("room") + "fuel/rounds/pooled"
    assert 'id="answer"' not in site.get(fuel).text
    page = site.get(f"{fuel}?a=gas&b=oil").text
    (told,) = json.loads(site.get(f"{fuel}.json?a=gas&b=oil").text)
    assert "Yes: gas is above oil" in words(page)
    assert f"The difference is {100 * told['difference']:.1f} points" in words(page)
    assert f"{100 * told['low']:.1f} … {100 * told['high']:.1f}" in words(page)
    assert page.count("<option selected>") == 2
    assert site.get(f"{fuel}?a=gas&b=coal").status == 404
    assert "unknown value" in words(site.get(f"{fuel}?a=gas&b=coal").text)


def test_the_address_chooses_which_half_width_is_shown(site: Site, room: str) -> None:
    (facts,) = json.loads(site.get(f"{room}/rounds/pooled.json").text)
    each, every = (f"±{100 * facts['difference'][name]:.1f}" for name in ("pair", "tallest"))
    page = site.get(f"{room}/rounds/pooled").text
    assert f"<span data-each>{each}</span><span data-every hidden>{every}</span>" in page
    page = site.get(f"{room}/rounds/pooled?intervals=all").text
    assert f"<span data-each hidden>{each}</span><span data-every>{every}</span>" in page


def test_the_way_of_reporting_is_said_with_its_caveat(
    site: Site, campaign: Campaign, room: str
) -> None:
    shown = words(site.get(f"/campaigns/{campaign.name}").text)
    assert "Way of reporting once . Each device answers only in rounds that it drew" in shown
    assert "a device answers in 1 of 60 rounds" in shown
    assert "trends may be fitted" in words(site.get(f"{room}/rounds/pooled").text)
    assert "data-warning" not in site.get(f"{room}/rounds/pooled").text


@pytest.mark.parametrize("reporting", ["memoized", "hashed", "nested"])
def test_every_way_has_its_pages(tmp_path: Path, reporting: str) -> None:
    with closing(open_store(tmp_path)) as store:
        made = store.open_campaign(rooms(reporting), FIRST)
    with serving(tmp_path) as site:
        shown = words(site.get(f"/campaigns/{made.name}").text)
        assert f"Way of reporting {reporting} ." in shown
        assert ("Careful: room may change" in shown) == (reporting != "hashed")
        assert site.get(f"/planner?campaign={made.name}").status == 200


def test_numbers_of_format_1_are_warned_of(tmp_path: Path) -> None:
    edges = '[[attributes]]\nname = "t"\nquestion = "?"\nedges = [0, 1, 2]\n'
    with closing(open_store(tmp_path)) as store:
        made = store.open_campaign(three_questions(attributes=edges), FIRST)
        store.commit([candidate(made, d) for d in range(5)], [])
        seal(store, made, 0)
    with serving(tmp_path) as site:
        path = f"/campaigns/{made.name}/attributes/t"
        for page in (path, f"{path}/rounds/0", f"/campaigns/{made.name}"):
            assert "data-warning" in site.get(page).text, page


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_the_planner_plans_every_way(site: Site, reporting: str) -> None:
    query = f"n=5000&k=8&reporting={reporting}&rounds=100&changes=yes"
    planned = json.loads(site.get(f"/planner.json?{query}").text)
    assert (planned["reporting"], planned["rounds"]) == (reporting, 100)
    page = words(site.get(f"/planner?{query}").text)
    (attribute,) = planned["attributes"]
    for judged in attribute["verdict"]:
        assert judged["sentence"] in page
    for way in attribute["ways"]:
        assert way["hides"] in page
    assert ("Careful:" in page) == (reporting in ("memoized", "nested"))
    rows = site.get(f"/planner.csv?{query}").text.splitlines()
    assert rows[0].endswith(",reporting,changes,difference,difference_all,target,verdict")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("reporting=never", "choose memoized, once, hashed, nested"),
        ("changes=maybe", "must be yes or no"),
        ("rounds=0", "must be 1 or more"),
    ],
)
def test_the_planner_refuses_what_cannot_be(site: Site, query: str, told: str) -> None:
    reply = site.get(f"/planner?{query}")
    assert reply.status == 400
    assert told in words(reply.text)
