"""The analyst's page in a real browser: day, night, phone, keyboard, and no script."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.support.browser import (
    HARM,
    JAVASCRIPT,
    NARROW,
    PAGES,
    SEALED,
    WIDE,
    Browser,
    Sample,
    brightness,
    grave_findings,
    sideways,
)

pytestmark = pytest.mark.slow

LIGHT, DARK = 200, 60
SAME = "return window.same === true"


def stay(browser: Browser, url: str) -> None:
    """Open a page and mark it: a page that is loaded again has no mark."""
    browser.read(url)
    browser.run("window.same = true")


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_by_night_by_day_and_on_a_phone(
    browser: Browser, served: Sample, kind: str
) -> None:
    """The console is empty, no other host is contacted, axe-core finds nothing serious, the
    colours follow the reader's choice, and nothing is wider than a phone."""
    browser.read(served.page(kind), scheme="dark")
    assert brightness(browser) < DARK
    assert grave_findings(browser) == []
    browser.look(WIDE, "light")
    assert brightness(browser) > LIGHT
    assert grave_findings(browser) == []
    requested, said = browser.requests(), browser.complaints()
    assert served.page(kind) in requested
    assert [url for url in requested if not url.startswith((f"{served.url}/", "data:,"))] == []
    assert [line for line in said if not line.startswith(served.page("missing"))] == []
    browser.read(served.page(kind), NARROW)
    assert sideways(browser) == 0
    wide = "part.scrollWidth > part.clientWidth"
    assert not browser.run(f"return [...document.querySelectorAll('.scroll')].some(part => {wide})")
    outside = "svg.getBoundingClientRect().right > document.documentElement.clientWidth"
    assert not browser.run(f"return [...document.querySelectorAll('svg')].some((svg) => {outside})")


# --- what is chosen is shown without a new page ---------------------------------------------------


@pytest.mark.parametrize("key", ["", Keys.SPACE, Keys.ENTER], ids=["mouse", "space", "enter"])
def test_the_switch_changes_intervals_and_differences(
    browser: Browser, served: Sample, key: str
) -> None:
    (found,) = served.estimates("room", "pooled", served.windows)
    stay(browser, served.page("numbers"))
    first, far = found["histogram"][0], found["difference"]
    for every in (True, False):
        switch = browser.part("#simultaneous")
        switch.send_keys(key) if key else switch.click()
        browser.until(lambda: browser.part(f'#simultaneous[aria-checked="{str(every).lower()}"]'))  # noqa: B023
        half = far["tallest"] if every else far["pair"]
        assert browser.text("#smallest").startswith(f"±{100 * half:.1f} points")
        end = "_all" if every else ""
        ends = f"{100 * first['low' + end]:.0f} … {100 * first['high' + end]:.0f}"
        assert ends in browser.text("#figure .bar-number")
        assert ("for all pairs at once" in browser.text("#by-how-much")) is every
        assert ("intervals=all" in browser.driver.current_url) is every
        assert browser.run("return document.activeElement.id") == "simultaneous"
    assert browser.run(SAME)


def test_another_value_over_time(browser: Browser, served: Sample) -> None:
    """It begins with the most frequent value, because there is no significant change."""
    pooled = served.estimates("heating", "pooled")[0]["histogram"]
    stay(browser, served.page("over-time"))
    tallest = max(pooled, key=lambda row: row["projected"])["value"]
    assert browser.text("#table-title") == f"Numbers for “{tallest}”"
    Select(browser.part("#value")).select_by_visible_text("wood")
    browser.until(lambda: browser.text("#table-title") == "Numbers for “wood”")
    (last,) = (f for f in served.estimates("heating") if f["round"] == SEALED - 1)
    share = f"{100 * last['histogram'][-1]['projected']:.0f} %"
    assert browser.cells(f'#table tr[data-round="{SEALED - 1}"]')[3] == share
    shown = browser.run(
        "return [...document.querySelectorAll('#figure .dot title')].map(t => t.textContent)"
    )
    assert len(shown) == SEALED
    assert f": {share} (" in shown[-1]
    assert browser.run(SAME)
    assert browser.driver.current_url.endswith("?value=wood&fit=line")
    browser.parts("#panels a")[0].click()
    browser.until(lambda: browser.text("#table-title") == f"Numbers for “{pooled[0]['value']}”")


PLAN = '#plan section[data-plan="attribute-1"]'


@pytest.mark.parametrize("slider", ["n", "eps_inf"])
def test_a_slider_plans_again(browser: Browser, served: Sample, slider: str) -> None:
    """And what is impossible is explained, with the last plan still there."""
    browser.read(served.page("planner"))
    before = browser.part(f"#{slider}").get_property("value")
    browser.part(f'input[type=range][data-for="{slider}"]').send_keys(Keys.ARROW_RIGHT * 4)
    assert browser.part(f"#{slider}").get_property("value") != before
    browser.until(lambda: f"{slider}=" in str(browser.part("#as-json").get_attribute("href")))
    with urlopen(str(browser.part("#as-json").get_attribute("href"))) as answer:  # noqa: S310 - ours
        first = json.load(answer)["attributes"][0]
    half = f"±{100 * first['half_width']:.1f} points"
    browser.until(lambda: browser.text(f"{PLAN} [data-half-width]") == half)
    assert browser.text(f"{PLAN} [data-protocol]") == first["protocol"]
    assert browser.cells(f"{PLAN} [data-pooled] tbody tr")[-1] == f"±{100 * first['floor']:.1f}"
    plan = browser.text("#plan")
    browser.type("#eps_1", "9")
    browser.until(lambda: browser.part("#error").is_displayed())
    assert browser.text("#error").startswith("eps_1 = 9.0: must be smaller")
    assert browser.text("#plan") == plan


# --- without script: every figure is there, and every form works ----------------------------------


def test_without_script(browser: Browser, served: Sample) -> None:
    browser.allow_scripts(False)
    histogram = served.estimates("heating", "latest")[0]["histogram"]
    browser.open(served.page("round"))
    assert browser.parts("html.scripted") == []
    shown = [browser.cells(f'#table tr[data-value="{entry["value"]}"]')[1] for entry in histogram]
    assert shown == [f"{100 * entry['projected']:.0f} %" for entry in histogram]
    browser.part("#for-calculations summary").click()
    raw = browser.cells("#raw tbody tr")[1]
    assert raw == f"{100 * histogram[0]['raw']:.1f} %".replace("-", "−")
    assert len(browser.parts("#figure rect.bar")) == len(histogram) + 1, "and one in the legend"
    Select(browser.part("#a")).select_by_visible_text("gas")
    Select(browser.part("#b")).select_by_visible_text("oil")
    browser.part("#compare button").click()
    browser.until(lambda: browser.text("#answer") == "Yes: gas is above oil.")
    browser.part("#simultaneous").click()
    browser.until(lambda: "for all pairs at once" in browser.text("#by-how-much"))
    browser.open(served.page("over-time"))
    Select(browser.part("#value")).select_by_visible_text("oil")
    browser.part("#value-form button").click()
    browser.until(lambda: browser.text("#table-title") == "Numbers for “oil”")
    assert len(browser.parts("#figure path.dot")) == SEALED
    browser.open(served.page("planner"))
    assert not any(slider.is_displayed() for slider in browser.parts("input[type=range]"))
    browser.type("#k", "64")
    browser.part("#planner button").click()
    browser.until(lambda: browser.text("#plan [data-protocol]") == "L-OSUE")


# --- without a mouse ------------------------------------------------------------------------------

# Where the focus is, and every place it comes to from now on.
STOP = """
const stop = (here) => ({id: here.id, kind: here.className, to: here.getAttribute("href"),
  left: here.getBoundingClientRect().left,
  outline: getComputedStyle(here).outlineStyle === "none" ? 0
    : parseFloat(getComputedStyle(here).outlineWidth)});
"""
HERE = STOP + "return stop(document.activeElement);"
WATCH = f"""{STOP}
window.stops = [];
document.addEventListener("focusin", (event) => window.stops.push(stop(event.target)));
"""


def walk(browser: Browser) -> list[dict[str, Any]]:
    """Where the tab key leads, from the beginning until it is there again."""
    browser.run(WATCH)
    stops: list[dict[str, Any]] = []
    while len(stops) < 200:
        browser.driver.switch_to.active_element.send_keys(Keys.TAB * 20)
        stops = browser.run("return window.stops")
        if stops[0] in stops[1:]:
            return stops[: stops.index(stops[0], 1)]
    raise AssertionError("the focus never returns to the beginning")


@pytest.mark.parametrize("kind", ["home", "campaign", "round", "planner"])
def test_every_stop_of_the_tab_key_is_visible_and_in_order(
    browser: Browser, served: Sample, kind: str
) -> None:
    browser.read(served.page(kind))
    stops = walk(browser)
    assert len(stops) > 5
    assert [stop for stop in stops if not stop["outline"] > 1] == []
    if kind == "round":
        names = [stop["id"] or stop["to"] or stop["kind"] for stop in stops]
        base = f"/campaigns/{served.simulation}/attributes/heating"
        wanted = ["#main", "/planner", f"{base}/rounds/pooled", "simultaneous", "scroll", "as-csv"]
        assert [name for name in names if name in wanted] == wanted
    browser.read(served.page(kind))
    browser.part("body").send_keys(Keys.TAB)
    first = browser.run(HERE)
    assert (first["kind"], first["left"] >= 0) == ("skip", True), "it skips to the content"
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.run(HERE)["id"] == "main"


# --- hostile texts --------------------------------------------------------------------------------

PLACES = {
    "home": "/",
    "campaign": "/campaigns/NAME",
    "round": "/campaigns/NAME/attributes/harm/rounds/latest",
    "over-time": "/campaigns/NAME/attributes/harm",
    "planner": "/planner?campaign=NAME",
}
# What only a text that became more than text could have made.
MADE = "script:not([src]), main img, main b:not(.note b), a[href^='javascript:'], [onerror]"


@pytest.mark.parametrize("place", PLACES)
def test_hostile_texts_stay_texts(browser: Browser, served: Sample, place: str) -> None:
    """Nothing of a manifest runs, links, loads or is set in bold; all is shown as written."""
    browser.read(served.url + PLACES[place].replace("NAME", served.hostile))
    assert browser.run("return typeof window.hurt") == "undefined"
    assert browser.parts(MADE) == []
    assert browser.complaints() == []
    assert [url for url in browser.requests() if "hurt" in url] == []
    if place == "campaign":
        assert browser.text("#title") == HARM[0]
        assert browser.driver.title.startswith(HARM[0])
        assert browser.text(".lead") == HARM[1]
        assert browser.text(".about dd") == f"{HARM[2]}, {JAVASCRIPT}"
    if place == "round":
        for cells in ("#table tbody th", "#figure .bar-name"):
            assert [cell.text for cell in browser.parts(cells)] == [*HARM, JAVASCRIPT]
