"""Whatever a manifest says stays text: nothing of it runs, links, loads or is set in bold."""

from __future__ import annotations

import pytest

from tests.support.browser.chromium import Browser
from tests.support.browser.sample import HARM, JAVASCRIPT
from tests.support.browser.served import ServedSample

pytestmark = pytest.mark.slow

PLACES = {
    "home": "/",
    "campaign": "/campaigns/NAME",
    "round": "/campaigns/NAME/attributes/harm/rounds/latest",
    "over-time": "/campaigns/NAME/attributes/harm",
    "planner": "/planner?campaign=NAME",
}
# What only a text that became more than text could have made.
MADE = "script:not([src]), main img, main b:not(.note b), a[href^='javascript:'], [onerror]"
TICKS = "return [...document.querySelectorAll('#chart .ytick text')].map((t) => t.textContent)"
MARKUP = "return document.querySelectorAll('#chart text a, #chart text tspan[style]').length"


@pytest.mark.parametrize("place", PLACES)
def test_nothing_runs_links_or_loads(browser: Browser, served: ServedSample, place: str) -> None:
    browser.read(served.url + PLACES[place].replace("NAME", served.sample.hostile))
    assert browser.run("return typeof window.hurt") == "undefined"
    assert browser.parts(MADE) == []
    assert browser.complaints() == []
    assert [url for url in browser.requests() if "hurt" in url] == []


def test_title_purpose_and_owner_are_shown_as_written(
    browser: Browser, served: ServedSample
) -> None:
    browser.read(f"{served.url}/campaigns/{served.sample.hostile}")
    assert browser.text("#title") == HARM[0]
    assert browser.driver.title.startswith(HARM[0])
    assert browser.text(".lead") == HARM[1]
    assert browser.text(".about dd") == f"{HARM[2]}, {JAVASCRIPT}"


def test_values_are_shown_as_written(browser: Browser, served: ServedSample) -> None:
    browser.read(served.attribute("harm", "/rounds/latest", served.sample.hostile))
    shown = [cell.text for cell in browser.parts("#table tbody th")]
    assert shown == [*HARM, JAVASCRIPT]


def test_values_in_the_chart_are_shown_as_written(browser: Browser, served: ServedSample) -> None:
    browser.read(served.attribute("harm", "/rounds/latest", served.sample.hostile))
    assert set(browser.run(TICKS)) == {*HARM, JAVASCRIPT}
    assert browser.run(MARKUP) == 0
