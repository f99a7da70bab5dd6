"""The owner's page, `show --html`: a file that asks nobody anything and runs nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from edge_client.agent import DeviceState
from edge_client.language import LANGUAGES, in_language
from edge_client.page import statement_page
from protocol_spec import Manifest
from tests.support.agents import EDGE, draw_now, edge, joined
from tests.support.browser import (
    HARM,
    HOSTILE,
    NARROW,
    WIDE,
    Browser,
    brightness,
    grave_findings,
    sideways,
)
from tests.support.campaigns import manifest_text, second_manifest
from tests.support.edge import FakeClock, daily, draw_rounds, joined_agent
from tests.support.processes import environment

pytestmark = pytest.mark.slow

NOWHERE = "mqtt://127.0.0.1:9"


@pytest.fixture(scope="module")
def statement(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a device that has drawn one report, for a campaign whose every word means harm."""
    place = tmp_path_factory.mktemp("device")
    config = joined(place / "state", Manifest.from_toml(manifest_text(attributes=HOSTILE)), NOWHERE)
    draw_now(place / "state", HARM[0])
    file: Path = place / "statement.html"
    done = edge("show", "--html", file, "--config", config)
    assert done.returncode == 0, done.stderr
    return file.as_uri()


def test_it_asks_nobody_and_nothing_runs(browser: Browser, statement: str) -> None:
    browser.open(statement)
    assert browser.requests() == [statement]
    assert browser.complaints() == []
    assert browser.run("return typeof window.hurt") == "undefined"
    assert HARM[0] in browser.text("body")


def test_no_serious_finding(browser: Browser, statement: str) -> None:
    browser.open(statement)
    assert grave_findings(browser) == []
    browser.look(WIDE, "dark")
    assert grave_findings(browser) == []


def test_day_and_night_differ(browser: Browser, statement: str) -> None:
    browser.open(statement)
    light = brightness(browser)
    browser.look(NARROW, "dark")
    assert light > 200
    assert brightness(browser) < 60


def test_a_telephone_is_not_scrolled_sideways(browser: Browser, statement: str) -> None:
    browser.open(statement, NARROW)
    assert sideways(browser) == 0


# --- after many reports ---------------------------------------------------------------------------

SHORT = 3_200  # pixels: less than four screens of a telephone
OPENED = "document.querySelectorAll('details').forEach((part) => { part.open = true; });"
OVERFLOWING = """
return [...document.querySelectorAll("main *:not(svg *)")].filter(
  (part) => part.getBoundingClientRect().right > document.documentElement.clientWidth
).map((part) => part.outerHTML.slice(0, 90));
"""


@pytest.fixture(scope="module", params=LANGUAGES)
def long_statement(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a device that has reported twelve times and more, in each language."""
    place, clock = tmp_path_factory.mktemp("long"), FakeClock()
    agent = joined_agent(place / "state", clock, daily(count=365))
    draw_rounds(agent, 15)
    agent.store.close()
    with DeviceState(place / "state", clock=clock) as device, in_language(request.param):
        file = place / "statement.html"
        file.write_text(statement_page(device, device.memberships()), encoding="utf-8")
    return file.as_uri()


def test_a_telephone_shows_it_in_a_few_screens(browser: Browser, long_statement: str) -> None:
    """The newest reports with all of their bytes; the others are opened by a touch."""
    browser.open(long_statement, NARROW)
    assert int(browser.run("return document.scrollingElement.scrollHeight")) < SHORT
    shown = [part for part in browser.parts(".bytes") if part.is_displayed()]
    assert len(shown) == 3
    assert all(re.fullmatch("([0-9a-f]{2} ?){17,}", " ".join(part.text.split())) for part in shown)
    browser.run(OPENED)
    assert len([part for part in browser.parts(".bytes") if part.is_displayed()]) == 12
    assert browser.run(OVERFLOWING) == []
    assert sideways(browser) == 0


def test_nothing_serious_is_found_when_all_is_open(browser: Browser, long_statement: str) -> None:
    browser.open(long_statement, NARROW)
    browser.run(OPENED)
    assert grave_findings(browser) == []
    browser.look(NARROW, "dark")
    assert grave_findings(browser) == []


def test_the_served_page(browser: Browser, tmp_path: Path) -> None:
    """The same, from `allomfree-edge page`: nothing else is asked for, and nothing is wrong."""
    config = joined(tmp_path / "state", second_manifest(), NOWHERE)
    words = (*EDGE, "page", "--port", "0", "--config", str(config))
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found
            browser.open(found[0], NARROW)
            assert "What heats your home?" in browser.text("body")
            icon = found[0].rpartition("/")[0].rpartition("/")[0] + "/favicon.ico"
            assert set(browser.requests()) - {icon} == {found[0]}
            assert grave_findings(browser) == []
        finally:
            server.terminate()
