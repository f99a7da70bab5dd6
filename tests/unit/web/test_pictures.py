"""Pictures without a script: bars and lines show what the numbers say, and lead to them."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import open_store
from collector.records import Campaign
from tests.support.collector_fakes import FIRST, candidate, seal, three_questions
from tests.support.results import rooms, store_windows
from tests.support.site import Site, serving, words


def bars(page: str) -> dict[str, str]:
    return dict(re.findall(r'<li data-bar="([^"]+)">(.*?)</li>', page, re.DOTALL))


def test_the_first_page_begins_with_a_histogram(site: Site, campaign: Campaign, fuel: str) -> None:
    page = site.get("/").text
    (facts,) = json.loads(site.get(f"{fuel}/rounds/pooled.json").body)
    drawn = bars(page)
    assert list(drawn) == [row["value"] for row in facts["histogram"]]
    lowest = min(0.0, *(row["raw"] for row in facts["histogram"]))
    highest = max(max(row["raw"], row["high"]) for row in facts["histogram"])
    for row in facts["histogram"]:
        bar = drawn[row["value"]]
        assert f"{100 * row['raw']:.1f} %".replace("-", "−") in words(bar)
        (width,) = re.findall(r'class="bar".*? width="([0-9.]+)%"', bar)
        assert float(width) == pytest.approx(100 * abs(row["raw"]) / (highest - lowest), abs=0.02)
    at = page.index("data-bar")
    assert at < page.index("Reports counted"), "before the text"
    assert f'<a href="{fuel}/rounds/pooled">What heats your home?</a>' in page


def test_a_campaign_draws_each_question_that_has_something_to_show(
    site: Site, campaign: Campaign
) -> None:
    page = site.get(f"/campaigns/{campaign.name}").text
    cards = dict(
        re.findall(r'<li class="card" data-attribute="(\w+)">(.*?)\n</li>', page, re.DOTALL)
    )
    assert len(bars(cards["fuel"])) == 4
    assert len(bars(cards["colour"])) == 8, "the largest of eleven"
    assert "the 8 largest of 11 values" in words(cards["colour"])
    assert not bars(cards["town"]), "of which no report ever came"
    assert "data-spark" in cards["fuel"]
    assert "data-spark" not in cards["colour"], "of which one round alone is not withheld"
    (line,) = re.findall(r'<polyline class="line" points="([^"]+)"', cards["fuel"])
    assert [point.split(",")[0] for point in line.split()] == ["0.0", "100.0"]


def test_over_time_shows_every_value_and_begins_with_the_most_interesting(
    site: Site, fuel: str
) -> None:
    facts = json.loads(site.get(f"{fuel}.json").body)
    page = site.get(fuel).text
    begin = facts["interesting"]["value"]
    assert facts["interesting"]["change"] is None, "ten reports show no change"
    assert f"No value changed by more than chance explains; the most frequent one is {begin}" in (
        words(page)
    )
    assert f"Numbers for “{begin}”" in words(page)
    raw = {row["value"]: row["raw"] for row in facts["pooled"]["histogram"]}
    assert raw[begin] == max(raw.values())
    panels = dict(re.findall(r'data-panel="(\w+)"(.*?)</a>', page, re.DOTALL))
    assert list(panels) == facts["values"]
    assert [name for name, panel in panels.items() if "aria-current" in panel] == [begin]
    for name, panel in panels.items():
        assert f"{100 * raw[name]:.1f} %".replace("-", "−") in words(f"<a{panel}")
        assert panel.count('class="pooled-band"') == 1
        assert site.get(f"{fuel}?value={name}").status == 200


def test_a_change_beyond_chance_is_said(tmp_path: Path) -> None:
    """All devices hold oil in the first round, and pump in the second."""
    with closing(open_store(tmp_path / "data")) as store:
        made = store.open_campaign(three_questions(), FIRST)
        for number in range(2):
            store.commit([candidate(made, d, number, body=2 + number) for d in range(400)], [])
            seal(store, made, number)
    with serving(tmp_path / "data") as site:
        at = f"/campaigns/{made.name}/attributes/fuel"
        facts = json.loads(site.get(f"{at}.json").body)["interesting"]
        change = facts["change"]
        assert (change["from_round"], change["to_round"]) == (0, 1)
        told = f"{facts['value']}, from {_percent(change['from_raw'])} in round 0 to "
        shown = words(site.get(at).text).replace(" ,", ",")
        assert told in shown
        assert facts["value"] in ("oil", "pump")
        assert f"Numbers for “{facts['value']}”" in shown


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-", "−")


def test_rounds_up_to_one(site: Site, fuel: str) -> None:
    shown = json.loads(site.get(f"{fuel}.json?until=0").body)
    assert [r["round"] for r in shown["rounds"]] == [0]
    assert json.loads(site.get(f"{fuel}.json?until=999").body)["rounds"][-1]["round"] == 1
    assert site.get(f"{fuel}?until=yesterday").status == 400


def test_a_finished_campaign_says_so(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "data")) as store:
        made = store.open_campaign(three_questions(count=2), FIRST)
        for number in range(2):
            store.commit([candidate(made, 1, number)], [])
            seal(store, made, number)
            with serving(tmp_path / "data") as site:
                page, home = site.get(f"/campaigns/{made.name}").text, site.get("/").text
                facts = json.loads(site.get("/index.json").body)["campaigns"][0]
            assert facts["state"] == ("open", "finished")[number]
            for shown in (page, home):
                assert f'data-state="{facts["state"]}"' in shown
                assert ("nothing changes any more" in shown) is (number == 1)
        store.close_campaign(made, FIRST)
    with serving(tmp_path / "data") as site:
        facts = json.loads(site.get("/index.json").body)["campaigns"][0]
        assert (facts["state"], facts["open"]) == ("finished", False)


def test_windows_are_drawn_too(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "data")) as store:
        made = store.open_campaign(rooms("once"), 0)
        store_windows(store, made)
    with serving(tmp_path / "data") as site:
        page = site.get(f"/campaigns/{made.name}/attributes/room").text
        assert page.count("data-panel=") == 6
        assert "Violet, and the number: all that was released" in words(page)
