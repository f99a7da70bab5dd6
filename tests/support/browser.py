"""A real browser without a window, what readers see in it, and the sample that it shows."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
from PIL import Image
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from collector.data_dir import open_store
from collector.opening import ADDRESS_FILE
from collector.records import Counts, Refusal
from collector.results.facts import write_truth
from protocol_spec import Manifest, Outcome
from tests.support.campaigns import manifest as make_manifest
from tests.support.collector import HOUR, candidate, seal
from tests.support.command_line import facts
from tests.support.harness import AXE, need, path_of
from tests.support.pages import rooms, store_windows

T = TypeVar("T")

PATIENCE: Final = 40.0
BLANK: Final = "about:blank"
WIDE, NARROW = 1280, 390
FLAGS: Final = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


class Browser:
    """Chromium with a fresh profile."""

    def __init__(self, profile: Path) -> None:
        program, driver = path_of("chromium"), path_of("chromedriver")
        options = ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options, ChromeService(executable_path=driver))
        self.driver.set_script_timeout(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()

    def renew(self) -> None:
        """One empty window, no cookies; only what may be kept for ever stays in the cache."""
        first, *others = self.driver.window_handles
        for window in others:
            self.driver.switch_to.window(window)
            self.driver.close()
        self.driver.switch_to.window(first)
        self.driver.get(BLANK)
        self.allow_scripts(True)
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})

    def allow_scripts(self, allowed: bool) -> None:
        """Whether pages may run scripts, as a reader can choose in the settings."""
        value = {"value": not allowed}
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", value)

    def open(self, address: str, width: int = WIDE, scheme: str = "light") -> None:
        """Go there; requests and messages of earlier pages are forgotten."""
        if self.driver.current_url != BLANK:
            self.driver.get(BLANK)
        self.look(width, scheme)
        self._log("browser")
        self._log("performance")
        self.driver.get(address)

    def read(self, address: str, width: int = WIDE, scheme: str = "light") -> None:
        """The same, and wait until the page's script has run."""
        self.open(address, width, scheme)
        scripted = 'document.documentElement.classList.contains("scripted")'
        self.until(lambda: self.run(f'return !document.querySelector("script") || {scripted}'))

    def look(self, width: int, scheme: str) -> None:
        shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == NARROW}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def until(self, condition: Callable[[], T | None]) -> T:
        """Wait for a condition; parts that were replaced meanwhile are looked up again."""
        gone = (NoSuchElementException, StaleElementReferenceException)
        found = WebDriverWait(self.driver, PATIENCE, 0.05, gone).until(lambda _: condition())
        assert found is not None
        return found

    def run(self, script: str, *words: object) -> Any:
        return self.driver.execute_script(script, *words)

    def part(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def parts(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def type(self, selector: str, text: str) -> None:
        """Into a field, instead of what it holds."""
        self.part(selector).send_keys(Keys.CONTROL, "a", Keys.NULL, text)

    def text(self, selector: str) -> str:
        return self.part(selector).text

    def cells(self, row: str) -> list[str]:
        return [cell.text for cell in self.parts(f"{row} > *")]

    def requests(self) -> list[str]:
        """Every address asked for since the page was opened."""
        events = [json.loads(line)["message"] for line in self._log("performance")]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def complaints(self) -> list[str]:
        """Console messages since the page was opened."""
        return self._log("browser")

    def _log(self, kind: str) -> list[str]:
        """What was logged since the last call."""
        entries = self.driver.get_log(kind)  # type: ignore[no-untyped-call]  # theirs has no types
        return [entry["message"] for entry in entries]


# --- what readers see -----------------------------------------------------------------------------

MARGIN: Final = {"x": 3, "y": 300, "width": 1, "height": 1, "scale": 1}
FINDINGS: Final = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((found) => done(found.violations.map(
  (v) => `${v.impact}: ${v.id}: ${v.nodes.map((n) => n.target).join(" | ")}`)));
"""


def grave_findings(browser: Browser) -> list[str]:
    """What axe-core calls serious or critical for readers who see, hear or point otherwise."""
    need("axe-core")
    if not browser.run("return typeof axe === 'object'"):
        browser.run(AXE.read_text(encoding="utf-8"))
    found: list[str] = browser.driver.execute_async_script(FINDINGS)
    return [finding for finding in found if finding.startswith(("serious", "critical"))]


def brightness(browser: Browser) -> int:
    """From 0 to 255, of one pixel of the background: a picture of a whole page takes longer."""
    taken = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": MARGIN})
    with Image.open(BytesIO(b64decode(taken["data"]))) as picture:
        shade = picture.convert("L").getpixel((0, 0))
    assert isinstance(shade, int)
    return shade


def sideways(browser: Browser) -> int:
    """How many pixels the page is wider than its window."""
    whole = "document.scrollingElement"
    return int(browser.run(f"return {whole}.scrollWidth - {whole}.clientWidth"))


# --- the sample: a simulation with every kind of histogram, and a campaign with hostile texts -----

SEALED: Final = 4
VALUES: Final = (1, 1, 1, 2, 0, 4)  # of every six devices
DEVICES: Final = {"rare": 37}  # of 200 that are needed; the others have 1,200
ATTRIBUTES: Final = f"""
[[attributes]]
name = "heating"
question = "What heats your home?"
values = ["district heat", "gas", "heat pump", "oil", "wood"]
[[attributes]]
name = "quiet-hour"
question = "In which hour is your home at its quietest?"
values = {json.dumps([f"{hour:02d}:00" for hour in range(24)])}
[[attributes]]
name = "rare"
question = "Which pet do you keep?"
values = ["cat", "dog", "none"]
"""
# Each would set a mark or ask for an address, if it became more than text.
HARM: Final = (
    "<script>window.hurt=1</script>",
    '"><img src=/hurt onerror="window.hurt=1">',
    '<a href="javascript:window.hurt=1">gas</a>',
    "<b>bold</b> %{x} &amp; ${y}",
)
JAVASCRIPT: Final = "javascript:window.hurt=1"
HOSTILE: Final = f"""
[[attributes]]
name = "harm"
question = {json.dumps(HARM[0])}
values = {json.dumps([*HARM, JAVASCRIPT])}
"""
# Every kind of page by its name; NAME stands for the simulation, WINDOWS for one with `once`.
PAGES: Final = {
    "home": "/",
    "campaign": "/campaigns/NAME",
    "round": "/campaigns/NAME/attributes/heating/rounds/latest",
    "filling": "/campaigns/NAME/attributes/heating/rounds/4",
    "pooled": "/campaigns/NAME/attributes/quiet-hour/rounds/pooled",
    "withheld": "/campaigns/NAME/attributes/rare/rounds/latest",
    "over-time": "/campaigns/NAME/attributes/heating",
    "numbers": "/campaigns/WINDOWS/attributes/room/rounds/pooled?"
    "a=%3C%2016%20%C2%B0C&b=18%20to%2020%20%C2%B0C",
    "windows": "/campaigns/WINDOWS/attributes/room?value=median",
    "planner": "/planner",
    "planner-of-campaign": "/planner?campaign=NAME",
    "missing": "/campaigns/nowhere",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A data directory with the campaigns by their names, and where it is served."""

    data: Path
    simulation: str
    hostile: str
    windows: str
    url: str = ""

    def page(self, kind: str) -> str:
        """The address of a kind of page."""
        path = PAGES[kind].replace("WINDOWS", self.windows)
        return self.url + path.replace("NAME", self.simulation)

    def estimates(self, attribute: str, number: str = "all", campaign: str = "") -> Any:
        """What the command prints."""
        wanted = ("--attribute", attribute, "--round", number, "--data-dir", self.data)
        return facts("estimate", campaign or self.simulation, *wanted)


def honest_bodies(manifest: Manifest, index: int) -> list[list[bytes]]:
    """What devices report, round by round: a memo of the value, and fresh noise over it."""
    drawn, form = manifest.calibrations[index], manifest.body_formats[index]
    n = DEVICES.get(manifest.attributes[index].name, 1200)
    held, rng = np.resize(VALUES, n) % form.k, np.random.default_rng(index)

    def noisy(before: Counts, p: float, q: float) -> Counts:
        if form.unary:
            return (rng.random(before.shape) < np.where(before, p, q)).astype(np.int64)
        other = (before + rng.integers(1, form.k, n)) % form.k
        return np.where(rng.random(n) < p, before, other)

    memos = noisy(np.eye(form.k, dtype=np.int64)[held] if form.unary else held, drawn.p1, drawn.q1)
    rounds = [noisy(memos, drawn.p2, drawn.q2) for _ in range(SEALED + 1)]
    if form.unary:
        return [
            [row.tobytes() for row in np.packbits(bits.astype(bool), axis=1)] for bits in rounds
        ]
    return [[form.from_number(int(value)) for value in values] for values in rounds]


def build(data: Path) -> Sample:
    """Four sealed rounds and one that fills."""
    first = int(time.time()) - HOUR * (SEALED + 2) + HOUR // 2
    store, names = open_store(data), dict[str, str]()
    for slug, attributes in (("demo", ATTRIBUTES), ("harm", HOSTILE)):
        manifest = make_manifest(
            slug=slug, first=first, eps_inf=4.0, eps_1=1.5, min_reports=200, attributes=attributes
        )
        if slug == "harm":
            manifest = replace(manifest, title=HARM[0], purpose=HARM[1])
            manifest = replace(manifest, owner=HARM[2], contact=JAVASCRIPT)
        campaign = store.open_campaign(manifest, int(time.time()))
        names[slug] = campaign.name
        drawn = [honest_bodies(manifest, index) for index in range(len(manifest.attributes))]
        for number in range(SEALED + 1):
            for index, bodies in enumerate(drawn):
                reports = [
                    candidate(campaign, 2000 * index + d, number, index, body)
                    for d, body in enumerate(bodies[number])
                ]
                store.commit(reports, [Refusal(campaign.id, number, Outcome.BAD_LENGTH)])
            if number < SEALED:
                seal(store, campaign, number)
    windows = store.open_campaign(rooms("once", first=first), 0)
    store_windows(store, windows)
    store.close()
    (data / ADDRESS_FILE).write_text("mqtts://broker.example:8883/allomfree")
    write_truth(data, names["demo"], {"heating": [1 / 6, 1 / 2, 1 / 6, 0, 1 / 6]})
    return Sample(data, names["demo"], names["harm"], windows.name)
