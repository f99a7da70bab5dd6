"""A real browser without a window, and what it did: requests, complaints, what is on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.needs import path_of

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

DRAWN: Final = """
const number = (list) => list ? [...list] : null;
return document.getElementById("chart").data.map((trace) => ({
  name: trace.name, x: number(trace.x), y: number(trace.y), fill: trace.fill || null,
  dash: trace.line ? trace.line.dash || null : null}));
"""


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
        """The same, and wait until the page's script has run and its chart is drawn."""
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

    def chart(self) -> dict[str, dict[str, Any]]:
        """What the chart library was given, by the names in the legend."""
        return {trace["name"]: trace for trace in self.run(DRAWN) if trace["name"]}

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
const chart = document.getElementById("chart"), withheld = document.getElementById("withheld");
const still = !document.querySelector("script");
return still || document.documentElement.classList.contains("scripted")
  && (!chart || withheld !== null || Number(chart.dataset.drawn) > 0);
"""
