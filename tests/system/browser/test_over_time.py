"""One value over time: its band, the pooled one, the floor, and all values beside each other."""

from __future__ import annotations

from datetime import datetime

import pytest
from selenium.webdriver.support.select import Select

from tests.support.browser.chromium import Browser
from tests.support.browser.sample import SEALED
from tests.support.browser.served import ServedSample

pytestmark = pytest.mark.slow

BAND, FLOOR = "95 % interval of a round", "floor of first-stage noise"
POOLED_BAND = "95 % interval, pooled"
FIRST_VALUE = "?value=district%20heat"


def test_bands_floor_pooled_and_truth_are_drawn(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("over-time") + FIRST_VALUE)
    chart = browser.chart()
    assert list(chart) == [POOLED_BAND, BAND, "raw", FLOOR, "pooled", "simulated truth"]
    told = {facts["round"]: facts["histogram"][0] for facts in served.estimates("heating")}
    rounds = [told[number] for number in range(SEALED)]
    assert [moment(x) for x in chart["raw"]["x"]] == [
        moment(facts["opens"]) + (moment(facts["closes"]) - moment(facts["opens"])) / 2
        for facts in served.estimates("heating")
        if facts["round"] is not None
    ]
    assert chart["raw"]["y"] == [100 * entry["raw"] for entry in rounds]
    assert chart[BAND]["y"] == [100 * entry["high"] for entry in rounds]
    assert chart[BAND]["fill"] == "tonexty"
    assert chart["pooled"]["y"] == [100 * told[None]["raw"]] * 2
    assert {*chart[POOLED_BAND]["y"]} == {100 * told[None]["low"], 100 * told[None]["high"]}
    assert chart["simulated truth"]["dash"] == "dot"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_the_floor_stands_around_the_pooled_line(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("over-time") + FIRST_VALUE)
    pooled = served.estimate("heating", "pooled")["histogram"][0]
    low, high = min(browser.chart()[FLOOR]["y"]), max(browser.chart()[FLOOR]["y"])
    assert (low + high) / 2 == pytest.approx(100 * pooled["raw"])
    assert browser.text("#floor") == f"±{(high - low) / 2:.1f} points"
    assert 100 * pooled["low"] < low < high < 100 * pooled["high"]


def test_another_value_is_shown_without_a_new_page(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("over-time"))
    browser.run("window.same = true")
    Select(browser.part("#value")).select_by_visible_text("wood")
    told = {facts["round"]: facts["histogram"][-1] for facts in served.estimates("heating")}
    raw = [100 * told[number]["raw"] for number in range(SEALED)]
    browser.until(lambda: browser.chart()["raw"]["y"] == raw)
    browser.until(lambda: browser.text("#table-title") == "Numbers for “wood”")
    assert browser.cells(f'#table tr[data-round="{SEALED - 1}"]')[3] == f"{raw[-1]:.1f} %"
    assert browser.run("return window.same")
    assert browser.driver.current_url.endswith("?value=wood")


def test_all_values_stand_beside_each_other_and_lead_to_one(
    browser: Browser, served: ServedSample
) -> None:
    """It begins with the most frequent one, because nothing changed here beyond chance."""
    browser.read(served.page("over-time"))
    pooled = served.estimate("heating", "pooled")["histogram"]
    tallest = max(pooled, key=lambda row: row["raw"])["value"]
    assert browser.text("#table-title") == f"Numbers for “{tallest}”"
    panels = browser.parts("#panels a")
    assert [panel.get_attribute("data-panel") for panel in panels] == [r["value"] for r in pooled]
    assert len({panel.size["height"] for panel in browser.parts("#panels svg")}) == 1
    panels[-1].click()
    browser.until(lambda: browser.text("#table-title") == f"Numbers for “{pooled[-1]['value']}”")
    current = browser.until(lambda: browser.part("#panels a[aria-current]"))
    assert current.get_attribute("data-panel") == pooled[-1]["value"]
