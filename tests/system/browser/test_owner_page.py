"""The owner's page, `show --html`: a file that asks nobody anything and runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol_spec import Manifest
from tests.support.browser.chromium import NARROW, Browser
from tests.support.browser.looks import brightness, grave_findings, sideways
from tests.support.browser.sample import HARM, HOSTILE
from tests.support.campaigns import manifest_text
from tests.support.edge_processes.processes import draw_now, edge, joined

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_finding(browser: Browser, statement: str, scheme: str) -> None:
    browser.open(statement, scheme=scheme)
    assert grave_findings(browser) == []


def test_day_and_night_differ(browser: Browser, statement: str, tmp_path: Path) -> None:
    browser.open(statement)
    light = brightness(browser, tmp_path / "light.png")
    browser.look(NARROW, "dark")
    assert light > 200
    assert brightness(browser, tmp_path / "dark.png") < 60


def test_a_telephone_is_not_scrolled_sideways(browser: Browser, statement: str) -> None:
    browser.open(statement, NARROW)
    assert sideways(browser) == 0
