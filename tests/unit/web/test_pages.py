"""Every page says in plain HTML, without a script, what an analyst needs to read a number."""

from __future__ import annotations

import html
import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.records import Campaign
from protocol_spec import report_odds
from tests.support.collector_fakes import FIRST, candidate, three_questions
from tests.support.site import Site, serving, words


def test_the_first_page_lists_campaigns(site: Site, campaign: Campaign) -> None:
    reply = site.get("/")
    assert reply.status == 200
    shown = words(reply.text)
    assert campaign.name in shown
    assert campaign.manifest.title in shown
    assert "Reports counted 36" in shown
    assert "Not counted 6" in shown


def test_a_campaign_shows_who_asks_and_what_it_costs(site: Site, campaign: Campaign) -> None:
    shown = words(site.get(f"/campaigns/{campaign.name}").text)
    manifest = campaign.manifest
    for told in (manifest.purpose, manifest.owner, manifest.contact, manifest.digest.hex()):
        assert told in shown
    for attribute, drawn in zip(manifest.attributes, manifest.calibrations):
        assert attribute.question in shown
        assert drawn.protocol in shown
        odds = report_odds(drawn)
        assert (
            f"says “{attribute.values[0]}” with a chance of {100 * odds.if_true:.3g} % if that is "
            f"the device's true answer, and of {100 * odds.if_false:.3g} % if it is not" in shown
        )
    assert "your" not in shown.replace("What heats your home?", ""), "it speaks to the analyst"
    assert "variance of one answer: L-GRR" in shown
    assert "named in the manifest" in shown


def test_a_campaign_shows_its_rounds_and_outcomes(site: Site, campaign: Campaign) -> None:
    page = site.get(f"/campaigns/{campaign.name}").text
    rows = dict(re.findall(r'<tr data-round="(\d)">(.*?)</tr>', page, re.DOTALL))
    assert rows.keys() == {"0", "1", "2"}
    assert "sealed" in words(rows["0"])
    assert re.search(r"data-received>12<.*data-expected>16<", rows["1"])
    assert re.search(r"data-received>16<.*data-expected>–<", rows["0"])
    shown = words(page)
    assert "bad_length 6 the body has another length than the attribute asks for" in shown


def test_a_round_shows_every_number_in_its_table(site: Site, fuel: str) -> None:
    (facts,) = json.loads(site.get(f"{fuel}/rounds/0.json").body)
    page = site.get(f"{fuel}/rounds/0").text
    for row in facts["histogram"]:
        (line,) = re.findall(rf'<tr data-value="{row["value"]}">(.*?)</tr>', page, re.DOTALL)
        for name in ("raw", "low", "high", "low_all", "high_all", "projected", "privacy_error"):
            assert f"{100 * row[name]:.1f}".replace("-", "−") in line, name
        assert f"{100 * row['sampling_error']:.1f}" in line
    shown = words(page)
    for told in ("Raw", "Projected", "Privacy error", "Sampling error", "For all"):
        assert told in shown
    pair, tallest = facts["difference"]["pair"], facts["difference"]["tallest"]
    assert f"Half-width of a difference ±{100 * pair:.1f} ±{100 * tallest:.1f} points" in shown


@pytest.mark.parametrize(
    ("which", "name"), [("latest", "Round 1"), ("pooled", "All rounds pooled")]
)
def test_rounds_by_name(site: Site, fuel: str, which: str, name: str) -> None:
    assert name in words(site.get(f"{fuel}/rounds/{which}").text)


def test_a_round_that_fills_says_so(site: Site, fuel: str) -> None:
    assert "Round 2 so far, not sealed: 8 reports" in words(site.get(f"{fuel}/rounds/2").text)


def test_over_time_explains_the_floor(site: Site, fuel: str) -> None:
    shown = words(site.get(f"{fuel}?value=gas").text)
    assert "not the first-stage noise" in shown
    assert "Numbers for “gas”" in shown
    facts = json.loads(site.get(f"{fuel}.json").body)
    pooled, floor = facts["pooled"]["histogram"][1], facts["floor"][1]
    assert f"Floor, however many rounds ±{100 * floor:.1f} points" in shown
    assert f"{100 * pooled['raw']:.1f} %".replace("-", "−") in shown
    assert [r["round"] for r in facts["rounds"]] == [0, 1]


def test_the_latest_rounds_only(site: Site, fuel: str) -> None:
    shown = json.loads(site.get(f"{fuel}.json?last=1").body)
    assert [r["round"] for r in shown["rounds"]] == [1]
    assert shown["sealed"] == 2


def test_the_strip_says_how_the_service_stands(site: Site) -> None:
    assert 'data-well="no"' in site.get("/").text
    assert "no collector is running" in words(site.get("/").text)


def test_what_is_not_there_is_said_with_what_is(site: Site, campaign: Campaign, fuel: str) -> None:
    for path, told in {
        "/campaigns/nosuch": f"known campaigns: {campaign.name}",
        fuel.replace("fuel", "fule"): "the campaign has: fuel, town, colour",
        fuel.replace("fuel", "fule") + "/rounds/0": "the campaign has: fuel, town, colour",
        f"{fuel}/rounds/9999": "give a number below 1000, latest, pooled or all",
        f"{fuel}/rounds/500": "round 500 has no reports",
        "/nosuch": "There is no such page",
    }.items():
        reply = site.get(path)
        assert reply.status == 404, path
        assert told in words(reply.text), path


def test_a_page_before_there_is_data(tmp_path: Path) -> None:
    with serving(tmp_path) as empty:
        assert empty.get("/").status == 404
        assert "open a campaign first" in words(empty.get("/").text)
        assert empty.get("/planner").status == 200


def test_a_campaign_that_begins_leads_only_where_there_is_something(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with closing(open_store(data)) as store:
        made = store.open_campaign(three_questions(), FIRST)
        with serving(data) as site:
            assert "No reports yet." in words(site.get(f"/campaigns/{made.name}").text)
        store.commit([candidate(made, 1)], [])
    with serving(data) as site:
        page = site.get(f"/campaigns/{made.name}").text
        links = set(re.findall(rf'href="(/campaigns/{made.name}/[^"]+)"', page))
        assert f"/campaigns/{made.name}/attributes/fuel/rounds/0" in links
        assert {site.get(link).status for link in links} == {200}


def test_every_link_of_every_page_leads_somewhere(
    site: Site, campaign: Campaign, fuel: str
) -> None:
    seen: dict[str, int] = {}
    town = fuel.replace("fuel", "town")  # of which no report ever came
    waiting = ["/", f"/campaigns/{campaign.name}", "/planner"]
    waiting += [path for at in (fuel, town) for path in (at, f"{at}/rounds/0", f"{at}/rounds/2")]
    for path in waiting:
        for link in re.findall(r'(?:href|src)="(/[^"#]*)"', site.get(path).text):
            address = html.unescape(link)
            seen[address] = seen.get(address) or site.get(address).status
    assert {address for address, status in seen.items() if status != 200} == set()
    assert len(seen) > 25
