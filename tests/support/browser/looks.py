"""What readers see of a page in the browser: findings of axe-core, brightness, width."""

from __future__ import annotations

from base64 import b64decode
from io import BytesIO
from typing import Final

from PIL import Image

from tests.support.browser.chromium import Browser
from tests.support.needs import AXE, need

BESIDE: Final = {"x": 3, "y": 300, "width": 1, "height": 1, "scale": 1}
LOADED: Final = "return typeof axe === 'object'"
FINDINGS: Final = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((found) => done(found.violations.map(
  (v) => `${v.impact}: ${v.id}: ${v.nodes.map((n) => n.target).join(" | ")}`)));
"""


def grave_findings(browser: Browser) -> list[str]:
    """What axe-core calls serious or critical for readers who see, hear or point otherwise."""
    need("axe-core")
    if not browser.run(LOADED):  # by an earlier look at the same page
        browser.run(AXE.read_text(encoding="utf-8"))
    found: list[str] = browser.driver.execute_async_script(FINDINGS)
    return [finding for finding in found if finding.startswith(("serious", "critical"))]


def brightness(browser: Browser) -> int:
    """Takes a picture of the ground beside the content, and says how light it is: 0 to 255. No
    more than that is painted and encoded: whole pages took five times as long."""
    taken = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": BESIDE})
    with Image.open(BytesIO(b64decode(taken["data"]))) as picture:
        shade = picture.convert("L").getpixel((0, 0))
    assert isinstance(shade, int)
    return shade


def sideways(browser: Browser) -> int:
    """How many pixels the page is wider than its window."""
    whole = "document.scrollingElement"
    return int(browser.run(f"return {whole}.scrollWidth - {whole}.clientWidth"))
