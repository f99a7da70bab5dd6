"""Page, commands and files say the same: `.json` and `.csv` are byte for byte the commands'."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from collector.records import Campaign
from collector.results.facts import CAMPAIGN_COLUMNS, ROUND_COLUMNS
from collector.results.tables import COLUMNS
from collector.web.live import Limits
from tests.support.campaigns import manifest_text
from tests.support.collector_fakes import ATTRIBUTES, FIRST
from tests.support.command_line import Cli
from tests.support.site import Site, serving


@pytest.mark.parametrize("which", ["0", "1", "2", "latest", "pooled"])
def test_a_round_is_what_estimate_prints(
    cli: Cli, site: Site, data: Path, fuel: str, which: str
) -> None:
    words = ("estimate", "--attribute", "fuel", "--round", which, "--data-dir", data, "--json")
    assert site.get(f"{fuel}/rounds/{which}.json").text == cli(*words).stdout


@pytest.mark.parametrize("which", ["0", "pooled"])
def test_a_rounds_rows_are_those_of_export(
    cli: Cli, site: Site, data: Path, fuel: str, which: str
) -> None:
    words = ("export", "--attribute", "fuel", "--round", which, "--data-dir", data)
    reply = site.get(f"{fuel}/rounds/{which}.csv")
    assert reply.text == cli(*words).stdout
    assert reply.headers["content-type"] == "text/csv; charset=utf-8"


def test_over_time_has_the_rows_of_export(cli: Cli, site: Site, data: Path, fuel: str) -> None:
    shown = site.get(f"{fuel}.csv").text
    assert shown == cli("export", "--attribute", "fuel", "--data-dir", data).stdout
    assert shown.splitlines()[0] == ",".join(COLUMNS)


def test_over_time_holds_what_estimate_prints(cli: Cli, site: Site, data: Path, fuel: str) -> None:
    words = ("estimate", "--attribute", "fuel", "--round", "all", "--data-dir", data, "--json")
    shown = json.loads(site.get(f"{fuel}.json").text)
    assert [shown["pooled"], *shown["rounds"]] == json.loads(cli(*words).stdout)


def test_over_time_shows_no_more_rounds_than_fit_and_says_so(
    site: Site, data: Path, fuel: str
) -> None:
    assert 'id="cut"' not in site.get(f"{fuel}?last=2").text
    with serving(data, limits=Limits(rows=7)) as small:  # four values: one round
        shown = json.loads(small.get(f"{fuel}.json?last=1000").text)
        assert ([r["round"] for r in shown["rounds"]], shown["cut"]) == ([1], True)
        assert shown["pooled"]["rounds"] == 2
        assert {row["round"] for row in rows(small, f"{fuel}.csv?last=999")} == {"", "1"}
        told = "With 4 values no more rounds fit into one answer"
        assert told in small.get(f"{fuel}?last=9").text
        assert json.loads(small.get(f"{fuel}.json?last=1").text)["cut"] is False


def test_the_first_page_is_what_status_prints(
    cli: Cli, site: Site, data: Path, campaign: Campaign
) -> None:
    printed = json.loads(cli("status", "--data-dir", data, "--json").stdout)
    assert printed.pop("suspended_names") == [], "which is for the operator alone"
    assert json.loads(site.get("/index.json").text) == printed
    (row,) = rows(site, "/index.csv")
    assert tuple(row) == CAMPAIGN_COLUMNS
    assert (row["campaign"], row["accepted"], row["refused"]) == (campaign.name, "36", "6")


def test_a_campaigns_rounds_as_rows(site: Site, campaign: Campaign) -> None:
    shown = rows(site, f"/campaigns/{campaign.name}.csv")
    assert tuple(shown[0]) == ROUND_COLUMNS
    received = {(row["round"], row["attribute"]): row["received"] for row in shown}
    assert len(received) == 9
    assert (received["1", "fuel"], received["1", "colour"], received["0", "town"]) == (
        "9",
        "3",
        "0",
    )


@pytest.mark.parametrize("query", ["n=5000", "n=20000&f=0.3&precision=0.01"])
def test_the_planner_is_what_plan_prints(
    cli: Cli, site: Site, campaign: Campaign, tmp_path: Path, query: str
) -> None:
    file = tmp_path / "manifest.toml"
    text = manifest_text(first=FIRST, grace=3600, attributes=ATTRIBUTES)
    needed = f"min_reports = {campaign.manifest.min_reports}"
    file.write_text(text.replace("min_reports = 1", needed))
    given = dict(part.split("=") for part in query.split("&"))
    flags = {"n": "--devices", "f": "--frequency", "precision": "--precision"}
    words = [word for name, value in given.items() for word in (flags[name], value)]
    shown = site.get(f"/planner.json?campaign={campaign.name}&{query}").text
    assert shown == cli("plan", file, *words, "--json").stdout


def test_the_planner_without_a_campaign(site: Site) -> None:
    query = "n=10000&k=30&d=2&eps_inf=2&eps_1=0.6"
    shown = json.loads(site.get(f"/planner.json?{query}").text)
    assert [a["k"] for a in shown["attributes"]] == [30, 30]
    assert (shown["attributes"][0]["devices"], shown["attributes"][0]["protocol"]) == (
        5000,
        "L-OSUE",
    )
    first, second = rows(site, f"/planner.csv?{query}")
    assert float(first["half_width_pooled_30"]) == shown["attributes"][0]["half_width_pooled"]["30"]
    assert (first["name"], second["name"]) == ("attribute-1", "attribute-2")


@pytest.mark.parametrize("which", ["0", "pooled"])
def test_a_comparison_is_what_estimate_prints(
    cli: Cli, site: Site, data: Path, fuel: str, which: str
) -> None:
    words = ("estimate", "--attribute", "fuel", "--round", which, "--data-dir", data, "--json")
    told = cli(*words, "--compare", "gas", "wood").stdout
    assert site.get(f"{fuel}/rounds/{which}.json?a=gas&b=wood").text == told


def rows(site: Site, path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(site.get(path).text)))
