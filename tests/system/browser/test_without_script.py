"""With scripts forbidden the page is whole: every number is in its tables, every form works."""

from __future__ import annotations

import pytest
from selenium.webdriver.support.select import Select

from tests.support.browser.chromium import Browser
from tests.support.browser.sample import SEALED
from tests.support.browser.served import ServedSample

pytestmark = pytest.mark.slow


@pytest.fixture
def still(browser: Browser) -> Browser:
    browser.allow_scripts(False)
    return browser


def test_a_round_has_its_table_and_no_dead_controls(still: Browser, served: ServedSample) -> None:
    told = served.estimate("heating", "latest")["histogram"]
    still.open(served.page("round"))
    assert still.parts("html.scripted") == []
    shown = [still.cells(f'#table tr[data-value="{entry["value"]}"]')[1] for entry in told]
    assert shown == [f"{100 * entry['raw']:.1f} %".replace("-", "−") for entry in told]
    assert not still.part("#simultaneous").is_displayed()


def test_a_value_over_time_is_chosen_by_a_form(still: Browser, served: ServedSample) -> None:
    still.open(served.page("over-time"))
    Select(still.part("#value")).select_by_visible_text("oil")
    still.part("#value-form button").click()
    still.until(lambda: still.text("#table-title") == "Numbers for “oil”")
    assert len(still.parts("#table tbody tr")) == SEALED


def test_a_plan_is_made_by_a_form(still: Browser, served: ServedSample) -> None:
    still.open(served.page("planner"))
    assert not any(slider.is_displayed() for slider in still.parts("input[type=range]"))
    still.type("#k", "64")
    still.part("#planner button").click()
    still.until(lambda: still.text("#plan [data-protocol]") == "L-OSUE")
