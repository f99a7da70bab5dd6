"""Every kind of page opens without a complaint, asks nobody else, and fits a telephone."""

from __future__ import annotations

import pytest

from tests.support.browser.chromium import NARROW, Browser
from tests.support.browser.served import PAGES, House

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_is_complained_of_and_nobody_else_is_asked(
    browser: Browser, house: House, kind: str
) -> None:
    browser.read(house.page(kind))
    asked, said = browser.requests(), browser.complaints()
    assert house.page(kind) in asked
    assert [url for url in asked if not url.startswith((f"{house.url}/", "data:,"))] == []
    assert [line for line in said if not line.startswith(house.page("missing"))] == []


@pytest.mark.parametrize("kind", PAGES)
def test_a_telephone_is_not_scrolled_sideways(browser: Browser, house: House, kind: str) -> None:
    browser.read(house.page(kind), NARROW)
    assert browser.sideways() == 0
