"""The planner's sliders and fields give the numbers that `allomfree-collector plan` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser.chromium import Browser
from tests.support.browser.served import ServedSample
from tests.support.campaigns import manifest_text
from tests.support.collector_cli import facts

pytestmark = pytest.mark.slow

LAST = '#plan section[data-plan="attribute-1"]'


def planned(place: Path, browser: Browser) -> Any:
    """What the command prints for what the fields say."""
    fields = ("n", "k", "d", "eps_inf", "eps_1", "f")
    said = {name: float(str(browser.part(f"#{name}").get_property("value"))) for name in fields}
    values = json.dumps([f"v{i}" for i in range(int(said["k"]))])
    attributes = "".join(
        f'[[attributes]]\nname = "a{i}"\nquestion = "?"\nvalues = {values}\n'
        for i in range(int(said["d"]))
    )
    file = place / "campaign.toml"
    file.write_text(
        manifest_text(attributes=attributes, eps_inf=said["eps_inf"], eps_1=said["eps_1"])
    )
    return facts("plan", file, "--devices", str(int(said["n"])), "--frequency", str(said["f"]))


def assert_shown(browser: Browser, plan: Any) -> None:
    first = plan["attributes"][0]
    half, pooled = first["half_width"], first["half_width_pooled"]
    browser.until(lambda: browser.text(f"{LAST} [data-half-width]") == f"±{100 * half:.1f} points")
    assert browser.text(f"{LAST} [data-protocol]") == first["protocol"]
    chart = browser.chart()
    assert chart["half-width"]["x"] == list(pooled)
    assert chart["half-width"]["y"] == [100 * width for width in pooled.values()]
    assert chart["floor"]["y"] == [100 * first["floor"]] * len(pooled)
    assert browser.cells(f"{LAST} [data-pooled] tbody tr")[-1] == f"±{100 * first['floor']:.1f}"


@pytest.mark.parametrize(
    ("slider", "keys"),
    [
        ("n", Keys.END),
        ("k", Keys.PAGE_UP * 4),
        ("eps_inf", Keys.ARROW_RIGHT * 9),
        ("eps_1", Keys.ARROW_LEFT * 3),
        ("d", Keys.ARROW_RIGHT * 4),
        ("f", Keys.PAGE_UP),
    ],
    ids=lambda word: word if word.isascii() else "",
)
def test_a_slider(
    browser: Browser, served: ServedSample, tmp_path: Path, slider: str, keys: str
) -> None:
    browser.read(served.page("planner"))
    before = browser.part(f"#{slider}").get_property("value")
    drawn = browser.part("#chart").get_attribute("data-drawn")
    browser.part(f'input[type=range][data-for="{slider}"]').send_keys(keys)
    assert browser.part(f"#{slider}").get_property("value") != before
    browser.until(lambda: browser.part("#chart").get_attribute("data-drawn") != drawn)
    assert_shown(browser, planned(tmp_path, browser))


def test_many_values_are_answered_by_another_protocol(
    browser: Browser, served: ServedSample, tmp_path: Path
) -> None:
    browser.read(served.page("planner"))
    assert browser.text(f"{LAST} [data-protocol]") == "L-GRR"
    browser.type("#k", "64")
    browser.until(lambda: browser.text(f"{LAST} [data-protocol]") == "L-OSUE")
    assert_shown(browser, planned(tmp_path, browser))


def test_what_cannot_be_is_said_and_forgotten(browser: Browser, served: ServedSample) -> None:
    browser.read(served.page("planner"))
    shown = browser.text("#plan")
    browser.type("#eps_1", "9")
    browser.until(lambda: browser.part("#planner-error").is_displayed())
    assert browser.text("#planner-error").startswith("eps_1 = 9.0: must be smaller")
    assert browser.text("#plan") == shown
    browser.type("#eps_1", "0.6")
    browser.until(lambda: not browser.part("#planner-error").is_displayed())


def test_the_questions_of_a_campaign(browser: Browser, served: ServedSample) -> None:
    told = facts("plan", served.sample.manifest, "--devices", "10000")
    browser.read(served.page("planner-of-campaign"))
    for attribute in told["attributes"]:
        section = f'#plan section[data-plan="{attribute["name"]}"]'
        half = f"±{100 * attribute['half_width']:.1f} points"
        assert browser.text(f"{section} [data-half-width]") == half
        assert browser.text(f"{section} [data-protocol]") == attribute["protocol"]
        for judged in attribute["verdict"]:
            assert judged["sentence"] in browser.text(f"{section} [data-verdict]")
