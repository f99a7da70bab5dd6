"""Numeric questions, comparisons and windows of rounds, as a reader sees them."""

from __future__ import annotations

import json
from datetime import datetime
from urllib.parse import quote

import pytest
from selenium.webdriver.support.select import Select

from tests.support.browser.chromium import Browser
from tests.support.browser.served import ServedSample
from tests.support.collector_cli import facts

pytestmark = pytest.mark.slow

WINDOW_ROWS = [f'#table tr[data-round="{last}"]' for last in (1, 4)]
DRAWN = """
const number = (list) => list ? [...list] : null;
return document.getElementById(arguments[0]).data.map((trace) => ({
  name: trace.name, x: number(trace.x), y: number(trace.y), fill: trace.fill || null}));
"""


def told(served: ServedSample, *words: str) -> dict[str, object]:
    where = ("--data-dir", served.sample.data)
    (found,) = facts("estimate", served.sample.windows, "--attribute", "room", *words, *where)
    assert isinstance(found, dict)
    return found


def test_the_distribution_is_drawn_with_its_band(browser: Browser, served: ServedSample) -> None:
    numbers = json.loads(json.dumps(told(served)["numbers"]))
    browser.read(served.page("numbers"))
    band, share = "95 % band for all edges", "share below"
    drawn = {trace["name"]: trace for trace in browser.run(DRAWN, "cdf") if trace["name"]}
    assert drawn[share]["x"] == numbers["edges"]
    assert drawn[share]["y"] == [100 * f for f in numbers["cdf"]]
    assert drawn[band]["y"] == [100 * f for f in numbers["cdf_high"]]
    assert drawn[band]["fill"] == "tonexty"
    middle = numbers["quantiles"][2]
    assert drawn["median and its interval"]["x"] == [middle["low"], middle["high"]]
    assert browser.complaints() == []


def test_the_switch_turns_differences_too(browser: Browser, served: ServedSample) -> None:
    far = json.loads(json.dumps(told(served)["difference"]))
    browser.read(served.page("numbers"))
    assert browser.text("#smallest").startswith(f"±{100 * far['pair']:.1f} points, two values")
    browser.part("#simultaneous").click()
    assert browser.text("#smallest").startswith(f"±{100 * far['tallest']:.1f} points, any two")
    assert "for all pairs at once" in browser.text("#by-how-much")
    assert "intervals=all" in browser.driver.current_url


def test_two_values_are_compared_without_a_new_page(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("numbers").split("?")[0])
    browser.run("window.same = true")
    Select(browser.part("#b")).select_by_visible_text("20 to 22 °C")
    found = told(served, "--compare", "< 16 °C", "20 to 22 °C")
    assert found["answer"] == "below"
    browser.until(lambda: browser.text("#answer") == "No: < 16 °C is below 20 to 22 °C.")
    assert browser.run("return window.same")
    assert f"b={quote('20')}" in browser.driver.current_url


def test_two_values_are_compared_by_a_form(browser: Browser, served: ServedSample) -> None:
    browser.allow_scripts(False)
    browser.open(served.page("numbers").split("?")[0])
    Select(browser.part("#a")).select_by_visible_text("20 to 22 °C")
    Select(browser.part("#b")).select_by_visible_text("< 16 °C")
    browser.part("#compare button").click()
    browser.until(lambda: browser.text("#answer") == "Yes: 20 to 22 °C is above < 16 °C.")


def test_windows_stand_over_their_rounds(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("windows"))
    chart = browser.chart()
    table = {row[0]: row[1] for row in map(browser.cells, WINDOW_ROWS)}
    begins = {name: datetime.fromisoformat(f"{text}+00:00") for name, text in table.items()}
    period = (begins["2–4"] - begins["0–1"]) / 2
    ends = [begins["0–1"], begins["2–4"], begins["2–4"], begins["2–4"] + 3 * period]
    band = chart["95 % interval of a window"]["x"]
    assert [datetime.fromisoformat(x) for x in band] == ends
    middles = [datetime.fromisoformat(x) for x in chart["median"]["x"]]
    assert middles == [ends[0] + period, ends[2] + 1.5 * period]
    assert "floor of first-stage noise" not in chart
    Select(browser.part("#value")).select_by_visible_text("18 to 20 °C")
    browser.until(lambda: "raw" in browser.chart())
    browser.until(lambda: browser.text("#table-title") == "Numbers for “18 to 20 °C”")
