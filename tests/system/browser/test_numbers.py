"""The numbers on a round's page, in its table and in its chart, are those of `estimate --json`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.browser.chromium import Browser
from tests.support.browser.sample import ENOUGH, FEW
from tests.support.browser.served import ServedSample

pytestmark = pytest.mark.slow

HISTOGRAMS = [("heating", "latest"), ("heating", "4"), ("quiet-hour", "pooled")]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-", "−")


def points(*shares: float) -> str:
    return " … ".join(f"{100 * share:.1f}".replace("-", "−") for share in shares)


def row(entry: dict[str, Any]) -> list[str]:
    """A row of the table, without the simulated truth at its end."""
    errors = [points(entry["privacy_error"]), points(entry["sampling_error"])]
    return [
        entry["value"],
        percent(entry["raw"]),
        points(entry["low"], entry["high"]),
        points(entry["low_all"], entry["high_all"]),
        percent(entry["projected"]),
        *errors,
        f"{entry['count']:,}",
    ]


@pytest.mark.parametrize(("attribute", "number"), HISTOGRAMS)
def test_the_table_says_what_the_command_says(
    browser: Browser, served: ServedSample, attribute: str, number: str
) -> None:
    told = served.estimate(attribute, number)
    browser.read(served.attribute(attribute, f"/rounds/{number}"))
    assert browser.text("#reports") == f"{told['n']:,}"
    for entry in told["histogram"]:
        assert browser.cells(f'#table tr[data-value="{entry["value"]}"]')[:-1] == row(entry)
    assert len(browser.parts("#table tbody tr")) == len(told["histogram"])


@pytest.mark.parametrize(("attribute", "number"), HISTOGRAMS)
def test_the_chart_draws_what_the_command_says(
    browser: Browser, served: ServedSample, attribute: str, number: str
) -> None:
    entries = served.estimate(attribute, number)["histogram"]
    browser.read(served.attribute(attribute, f"/rounds/{number}"))
    chart = browser.chart()
    for name in ("raw", "projected"):
        assert chart[name]["y"] == [entry["value"] for entry in entries]
        assert chart[name]["x"] == [100 * entry[name] for entry in entries]
    ends = chart["95 % interval"]["x"]
    assert ends[0::3] == [100 * entry["low"] for entry in entries]
    assert ends[1::3] == [100 * entry["high"] for entry in entries]


def test_the_simulated_truth_is_dotted(browser: Browser, served: ServedSample) -> None:
    browser.read(served.attribute("heating", "/rounds/latest"))
    truth = browser.chart()["simulated truth"]
    assert truth["dash"] == "dot"
    ends = truth["x"][1::3]  # a dotted line from zero to each
    assert sum(ends) == pytest.approx(100)
    assert browser.text("#simulation") == "simulation"
    assert browser.cells("#table tr[data-value=gas]")[-1] == percent(ends[1] / 100)


def test_a_real_campaign_has_no_truth(browser: Browser, served: ServedSample) -> None:
    browser.read(served.attribute("harm", "/rounds/latest", served.sample.hostile))
    assert "raw" in browser.chart()
    assert "simulated truth" not in browser.chart()
    assert browser.parts("#simulation") == []


def test_too_few_reports_show_a_sentence_and_no_chart(
    browser: Browser, served: ServedSample
) -> None:
    assert served.estimate("rare", "latest")["withheld"]
    browser.read(served.page("withheld"))
    assert browser.text("#withheld") == f"not enough reports: {FEW} of {ENOUGH}"
    assert not browser.part("#figure").is_displayed()
    assert browser.parts("#table") == []
