"""One value over rounds: its band, the pooled line, the floor that pooling cannot go below."""

from __future__ import annotations

import pytest
from selenium.webdriver.support.select import Select

from tests.support.browser.chromium import Browser
from tests.support.browser.sample import SEALED
from tests.support.browser.served import ServedSample

pytestmark = pytest.mark.slow

BAND, FLOOR = "95 % interval of a round", "floor of first-stage noise"


def test_band_floor_pooled_and_truth_are_drawn(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("over-time"))
    chart = browser.chart()
    assert list(chart) == [BAND, "raw", FLOOR, "pooled", "simulated truth"]
    told = {facts["round"]: facts["histogram"][0] for facts in served.estimates("heating")}
    rounds = [told[number] for number in range(SEALED)]
    assert chart["raw"]["x"] == list(range(SEALED))
    assert chart["raw"]["y"] == [100 * entry["raw"] for entry in rounds]
    assert chart[BAND]["y"] == [100 * entry["high"] for entry in rounds]
    assert chart[BAND]["fill"] == "tonexty"
    assert chart["pooled"]["y"] == [100 * told[None]["raw"]] * 2
    assert chart["simulated truth"]["dash"] == "dot"


def test_the_floor_stands_around_the_pooled_line(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("over-time"))
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
    assert browser.cells(f'#table tr[data-round="{SEALED - 1}"]')[2] == f"{raw[-1]:.1f} %"
    assert browser.run("return window.same")
    assert browser.driver.current_url.endswith("?value=wood")
