"""A real browser without a window, and what it did: requests, complaints, what is on the page."""

from __future__ import annotations

import json
import random
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from PIL import Image
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from collector.data_dir import open_store
from collector.opening import ADDRESS_FILE as ADDRESS
from collector.records import Campaign, Candidate, Refusal
from collector.results.facts import write_truth
from collector.rounds import sealing as rounds
from collector.store import Store
from protocol_spec import Manifest, Outcome, Randomiser
from tests.support.campaigns import manifest_text
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
        """Go there, as a fresh reader: what was requested and complained of before is forgotten."""
        if self.driver.current_url != BLANK:
            self.driver.get(BLANK)
        self.look(width, scheme)
        self._log("browser")
        self._log("performance")
        self.driver.get(address)

    def read(self, address: str, width: int = WIDE, scheme: str = "light") -> None:
        """The same, and wait until the page's script has run."""
        self.open(address, width, scheme)
        self.until(lambda: self.run(SETTLED))

    def look(self, width: int, scheme: str) -> None:
        """Through a window of that width, by day or by night."""
        shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == NARROW}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def save_into(self, place: Path) -> None:
        """Where files go that a link offers."""
        behaviour = {"behavior": "allow", "downloadPath": str(place)}
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)

    def until(self, condition: Callable[[], T | None]) -> T:
        """Wait until something is so; parts that were replaced meanwhile are looked up again."""
        gone = (NoSuchElementException, StaleElementReferenceException)
        found = WebDriverWait(self.driver, PATIENCE, 0.05, gone).until(lambda _: condition())
        assert found is not None
        return found

    def run(self, script: str, *words: object) -> Any:
        return self.driver.execute_script(script, *words)

    def part(self, selector: str) -> WebElement:
        """What is there now."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def parts(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def type(self, selector: str, text: str) -> None:
        """Into a field, instead of what it holds."""
        self.part(selector).send_keys(Keys.CONTROL, "a", Keys.NULL, text)

    def text(self, selector: str) -> str:
        return self.part(selector).text

    def cells(self, row: str) -> list[str]:
        """The texts of a table's row."""
        return [cell.text for cell in self.parts(f"{row} > *")]

    def requests(self) -> list[str]:
        """Every address asked for since the page was opened."""
        events = [json.loads(line)["message"] for line in self._log("performance")]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def complaints(self) -> list[str]:
        """What the console says since the page was opened."""
        return self._log("browser")

    def _log(self, kind: str) -> list[str]:
        """What was logged since this was asked last."""
        entries = self.driver.get_log(kind)  # type: ignore[no-untyped-call]  # theirs has no types
        return [entry["message"] for entry in entries]


SETTLED: Final = """
return !document.querySelector("script")
  || document.documentElement.classList.contains("scripted");
"""


# --- What readers see of a page in the browser: findings of axe-core, brightness, width.


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


# --- Data for the page: a simulation with every kind of histogram, and a campaign that means harm.


SEED: Final = 20_240_607
HOUR: Final = 3600
ENOUGH, FEW = 200, 37
SEALED: Final = 4
DEVICES: Final = {"heating": 400, "quiet-hour": 400, "rare": FEW, "harm": 400}
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


@dataclass(frozen=True, slots=True)
class Sample:
    """A data directory with the campaigns, by their names."""

    data: Path
    manifest: Path
    simulation: str
    hostile: str
    windows: str


def build(data: Path) -> Sample:
    """Four sealed rounds and one that fills, drawn by the devices' own code from a fixed seed."""
    store, chance = open_store(data), random.Random(SEED)
    file = data / "demo.toml"
    file.write_text(_text("demo", ATTRIBUTES))
    simulation = store.open_campaign(Manifest.from_file(file), int(time.time()))
    truth = _collect(store, simulation, chance)
    plain = Manifest.from_toml(_text("harm", HOSTILE))
    harmful = replace(plain, title=HARM[0], purpose=HARM[1], owner=HARM[2], contact=JAVASCRIPT)
    hostile = store.open_campaign(harmful, int(time.time()))
    _collect(store, hostile, chance)
    windows = store.open_campaign(rooms("once", first=hostile.manifest.rounds.first), 0)
    store_windows(store, windows)
    store.close()
    (data / ADDRESS).write_text("mqtts://broker.example:8883/allomfree")
    write_truth(data, simulation.name, truth)
    return Sample(data, file, simulation.name, hostile.name, windows.name)


def _text(slug: str, attributes: str) -> str:
    first = int(time.time()) - HOUR * (SEALED + 2) + HOUR // 2
    text = manifest_text(slug=slug, first=first, eps_inf=4.0, eps_1=1.5, attributes=attributes)
    return text.replace("min_reports = 1", f"min_reports = {ENOUGH}")


def _collect(store: Store, campaign: Campaign, chance: random.Random) -> dict[str, list[float]]:
    """Every device reports once a round; what they hold is returned as frequencies."""
    manifest, truth = campaign.manifest, {}
    devices: list[tuple[int, Randomiser, bytes]] = []
    for i, attribute in enumerate(manifest.attributes):
        draw = Randomiser(manifest.calibrations[i], chance.randbytes)
        held = [d * d % attribute.k for d in range(DEVICES[attribute.name])]
        devices += [(i, draw, draw.memoize(value)) for value in held]
        truth[attribute.name] = [held.count(v) / len(held) for v in range(attribute.k)]
    for number in range(SEALED + 1):
        reports = [
            Candidate(campaign.id, number, d + 1, i, 0, d, draw.report(memo))
            for d, (i, draw, memo) in enumerate(devices)
        ]
        store.commit(reports, [Refusal(campaign.id, number, Outcome.BAD_LENGTH)] * 2)
        if number < SEALED:
            rounds.seal(store, campaign, number, manifest.rounds.deadline(number))
    return truth


# --- The sample as it is served, and where each kind of page is.


# Every kind of page by its name; NAME stands for the simulation, WINDOWS for one round for life.
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
class ServedSample:
    """An address, and the data behind it."""

    url: str
    sample: Sample

    def page(self, kind: str) -> str:
        """The address of a kind of page, of the simulation."""
        path = PAGES[kind].replace("WINDOWS", self.sample.windows)
        return self.url + path.replace("NAME", self.sample.simulation)

    def attribute(self, name: str, rest: str = "", campaign: str | None = None) -> str:
        return f"{self.url}/campaigns/{campaign or self.sample.simulation}/attributes/{name}{rest}"

    def estimates(self, attribute: str, number: str = "all") -> Any:
        """What the command prints of an attribute of the simulation."""
        wanted = ("--attribute", attribute, "--round", number, "--data-dir", self.sample.data)
        return facts("estimate", self.sample.simulation, *wanted)

    def estimate(self, attribute: str, number: str) -> Any:
        """The same of one histogram."""
        (found,) = self.estimates(attribute, number)
        return found
