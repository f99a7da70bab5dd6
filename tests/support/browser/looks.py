"""What readers see of a page in the browser: findings of axe-core, brightness, width."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PIL import Image

from tests.support.browser.chromium import Browser
from tests.support.needs import AXE, need

BESIDE: Final = (3, 300)  # a point of the ground beside the content
FINDINGS: Final = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((found) => done(found.violations.map(
  (v) => `${v.impact}: ${v.id}: ${v.nodes.map((n) => n.target).join(" | ")}`)));
"""


def grave_findings(browser: Browser) -> list[str]:
    """What axe-core calls serious or critical for readers who see, hear or point otherwise."""
    need("axe-core")
    browser.run(AXE.read_text(encoding="utf-8"))
    found: list[str] = browser.driver.execute_async_script(FINDINGS)
    return [finding for finding in found if finding.startswith(("serious", "critical"))]


def brightness(browser: Browser, file: Path) -> int:
    """Takes a picture; of its ground beside the content, from 0 to 255."""
    assert browser.driver.save_screenshot(str(file))
    with Image.open(file) as picture:
        shade = picture.convert("L").getpixel(BESIDE)
    assert isinstance(shade, int)
    return shade


def sideways(browser: Browser) -> int:
    """How many pixels the page is wider than its window."""
    whole = "document.scrollingElement"
    return int(browser.run(f"return {whole}.scrollWidth - {whole}.clientWidth"))
