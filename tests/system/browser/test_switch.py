"""One switch, by mouse or keyboard, between intervals of each value and of all at once."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser.chromium import Browser
from tests.support.browser.served import ServedSample

pytestmark = pytest.mark.slow

EACH, ALL = "95 % interval", "95 % interval for all at once"


def ends(entries: list[dict[str, float]], low: str, high: str) -> list[float | None]:
    """What the chart connects: from low to high, then a gap."""
    found: list[float | None] = []
    for entry in entries:
        found += [100 * entry[low], 100 * entry[high], None]
    return found


def test_the_mouse_turns_it_on_and_off(browser: Browser, served: ServedSample) -> None:
    entries = served.estimate("heating", "latest")["histogram"]
    browser.read(served.page("round"))
    switch = browser.part("#simultaneous")
    assert switch.get_attribute("aria-checked") == "false"
    switch.click()
    assert switch.get_attribute("aria-checked") == "true"
    assert browser.chart()[ALL]["x"] == ends(entries, "low_all", "high_all")
    assert "all intervals hold" in browser.text("#interval-name")
    switch.click()
    assert switch.get_attribute("aria-checked") == "false"
    assert browser.chart()[EACH]["x"] == ends(entries, "low", "high")


@pytest.mark.parametrize("key", [Keys.SPACE, Keys.ENTER], ids=["space", "enter"])
def test_the_keyboard_turns_it(browser: Browser, served: ServedSample, key: str) -> None:
    browser.read(served.page("round"))
    switch = browser.part("#simultaneous")
    switch.send_keys(key)
    assert switch.get_attribute("aria-checked") == "true"
    assert ALL in browser.chart()


def test_an_address_may_ask_for_it(browser: Browser, served: ServedSample) -> None:
    browser.read(f"{served.page('round')}?intervals=all")
    assert browser.part("#simultaneous").get_attribute("aria-checked") == "true"
    assert ALL in browser.chart()
