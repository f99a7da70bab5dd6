"""By day and by night, for every reader: colours follow the wish, and axe-core finds no fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser.chromium import NARROW, WIDE, Browser
from tests.support.browser.served import PAGES, ServedSample

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("kind", PAGES)
def test_dark_and_light(
    browser: Browser, served: ServedSample, tmp_path: Path, kind: str, width: int
) -> None:
    browser.read(served.page(kind), width, "light")
    light = browser.brightness(tmp_path / f"{kind}-{width}-light.png")
    browser.look(width, "dark")
    assert light > 200
    assert browser.brightness(tmp_path / f"{kind}-{width}-dark.png") < 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", PAGES)
def test_no_serious_finding(browser: Browser, served: ServedSample, kind: str, scheme: str) -> None:
    browser.read(served.page(kind), scheme=scheme)
    assert browser.grave_findings() == []
