"""Every kind of page, by day, by night and on a telephone: nothing is wrong with any of them."""

from __future__ import annotations

import pytest

from tests.support.browser.chromium import NARROW, WIDE, Browser
from tests.support.browser.looks import brightness, grave_findings, sideways
from tests.support.browser.served import PAGES, ServedSample

pytestmark = pytest.mark.slow

LIGHT, DARK = 200, 60


@pytest.mark.parametrize("kind", PAGES)
def test_by_night_and_by_day(browser: Browser, served: ServedSample, kind: str) -> None:
    """Nothing is complained of, nobody else is asked, axe-core finds no serious fault, and the
    colours follow the reader's choice, also while the page is open."""
    browser.read(served.page(kind), scheme="dark")
    assert brightness(browser) < DARK
    assert grave_findings(browser) == []
    browser.look(WIDE, "light")
    assert brightness(browser) > LIGHT
    assert grave_findings(browser) == []
    asked, said = browser.requests(), browser.complaints()
    assert served.page(kind) in asked
    assert [url for url in asked if not url.startswith((f"{served.url}/", "data:,"))] == []
    assert [line for line in said if not line.startswith(served.page("missing"))] == []


@pytest.mark.parametrize("kind", PAGES)
def test_on_a_telephone(browser: Browser, served: ServedSample, kind: str) -> None:
    """It is not scrolled sideways, and its colours follow the reader's choice."""
    browser.read(served.page(kind), NARROW)
    assert sideways(browser) == 0
    assert brightness(browser) > LIGHT
    browser.look(NARROW, "dark")
    assert brightness(browser) < DARK
