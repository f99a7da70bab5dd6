"""Every kind of page opens without a complaint, asks nobody else, and fits a telephone."""

from __future__ import annotations

import pytest

from tests.support.browser.chromium import NARROW, Browser
from tests.support.browser.served import PAGES, ServedSample

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_is_complained_of_and_nobody_else_is_asked(
    browser: Browser, served: ServedSample, kind: str
) -> None:
    browser.read(served.page(kind))
    asked, said = browser.requests(), browser.complaints()
    assert served.page(kind) in asked
    assert [url for url in asked if not url.startswith((f"{served.url}/", "data:,"))] == []
    assert [line for line in said if not line.startswith(served.page("missing"))] == []


@pytest.mark.parametrize("kind", PAGES)
def test_a_telephone_is_not_scrolled_sideways(
    browser: Browser, served: ServedSample, kind: str
) -> None:
    browser.read(served.page(kind), NARROW)
    assert browser.sideways() == 0
