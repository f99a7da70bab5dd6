"""Everything is reached without a mouse, and where one stands can be seen."""

from __future__ import annotations

from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser.chromium import Browser
from tests.support.browser.served import ServedSample

pytestmark = pytest.mark.slow

# Where the focus is, and every place it comes to from now on.
STANDS = """
const stand = (here) => ({id: here.id, kind: here.className, to: here.getAttribute("href"),
  tag: here.tagName, left: here.getBoundingClientRect().left,
  outline: getComputedStyle(here).outlineStyle === "none" ? 0
    : parseFloat(getComputedStyle(here).outlineWidth)});
"""
HERE = STANDS + "return stand(document.activeElement);"
WATCH = (
    STANDS
    + """
window.stops = [];
document.addEventListener("focusin", (event) => window.stops.push(stand(event.target)));
"""
)


def walk(browser: Browser) -> list[dict[str, Any]]:
    """Where the tabulator leads, from the beginning until it is there again."""
    browser.run(WATCH)
    stops: list[dict[str, Any]] = []
    while len(stops) < 200:
        browser.driver.switch_to.active_element.send_keys(Keys.TAB * 20)
        stops = browser.run("return window.stops")
        if stops[0] in stops[1:]:
            return stops[: stops.index(stops[0], 1)]
    raise AssertionError("the focus never comes round")


def test_the_first_stop_skips_to_the_content(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("campaign"))
    browser.part("body").send_keys(Keys.TAB)
    stop = browser.run(HERE)
    assert stop["kind"] == "skip"
    assert stop["left"] >= 0, "the link is outside of the window"
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.run(HERE)["id"] == "main"


def test_switch_table_and_links_are_reached_in_order(
    browser: Browser, served: ServedSample
) -> None:
    browser.read(served.page("round"))
    stops = [stop["id"] or stop["to"] or stop["kind"] for stop in walk(browser)]
    base = f"/campaigns/{served.sample.simulation}/attributes/heating"
    wanted = ["#main", "/planner", f"{base}/rounds/pooled", "simultaneous", "scroll", "as-csv"]
    assert [stop for stop in stops if stop in wanted] == wanted


@pytest.mark.parametrize("kind", ["home", "campaign", "round", "planner"])
def test_every_stop_is_seen(browser: Browser, served: ServedSample, kind: str) -> None:
    browser.read(served.page(kind))
    stops = walk(browser)
    assert len(stops) > 5
    assert [stop for stop in stops if not stop["outline"] > 1] == []
