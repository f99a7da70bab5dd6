"""Every page shows in plain HTML, without a script, what an analyst needs to read a number."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from collector.data_dir import open_store
from collector.errors import StorageFailure
from collector.opening import ADDRESS_FILE
from collector.records import Campaign
from collector.results.facts import read_truth, write_truth
from collector.results.tables import COLUMNS
from collector.results.words import bias_text
from collector.web import app, server
from collector.web.live import LIMITS, Limits
from collector.web.process import FILE, VARIABLE
from protocol_spec import report_odds
from protocol_spec.estimation.reliability import lie_shift, share_for_shift
from tests.support.campaigns import manifest_text
from tests.support.collector import (
    ATTRIBUTES,
    COLOUR,
    FIRST,
    candidate,
    seal,
    three_questions,
)
from tests.support.command_line import Cli
from tests.support.harness import ROOT
from tests.support.pages import Own, Site, rooms, serving, store_windows, words


def facts_at(site: Site, path: str) -> Any:
    return json.loads(site.get(path).body)


def rows_at(site: Site, path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(site.get(path).text)))


def bars(page: str) -> dict[str, str]:
    return dict(re.findall(r'<li data-bar="([^"]+)">(.*?)</li>', page, re.DOTALL))


def test_the_first_page_lists_campaigns_and_begins_with_a_histogram(
    site: Site, campaign: Campaign, fuel: str
) -> None:
    page = site.get("/").text
    text = words(page)
    for shown in (campaign.name, campaign.manifest.title, "Reports counted 36", "Not counted 6"):
        assert shown in text
    assert 'data-well="no"' in page
    assert "no collector is running" in text
    (facts,) = facts_at(site, f"{fuel}/rounds/pooled.json")
    drawn = bars(page)
    assert list(drawn) == [row["value"] for row in facts["histogram"]]
    assert facts["sentence"] in text
    for row in facts["histogram"]:
        bar = drawn[row["value"]]
        assert f"{100 * row['projected']:.0f} %" in words(bar)
        (width,) = re.findall(r'class="bar".*? width="([0-9.]+)%"', bar)
        assert float(width) == pytest.approx(100 * row["projected"], abs=0.02), "one ends at 100 %"
    assert page.index("data-bar") < page.index("Reports counted"), "before the text"
    assert f'<a href="{fuel}/rounds/pooled">What heats your home?</a>' in page


def test_a_campaign_shows_who_asks_what_it_costs_and_how_rounds_went(
    site: Site, campaign: Campaign
) -> None:
    page = site.get(f"/campaigns/{campaign.name}").text
    text, manifest = words(page), campaign.manifest
    for part in (manifest.purpose, manifest.owner, manifest.contact, manifest.digest.hex()):
        assert part in text
    for attribute, drawn in zip(manifest.attributes, manifest.calibrations):
        assert attribute.question in text
        assert drawn.protocol in text
        odds = report_odds(drawn)
        assert (
            f"says “{attribute.values[0]}” with probability {100 * odds.if_true:.3g} % if that is "
            f"the device's true answer, and {100 * odds.if_false:.3g} % if it is not" in text
        )
    assert "over all values: L-" in text
    assert "named in the manifest" in text
    rows = dict(re.findall(r'<tr data-round="(\d)">(.*?)</tr>', page, re.DOTALL))
    assert rows.keys() == {"0", "1", "2"}
    assert "sealed" in words(rows["0"])
    assert words(rows["1"]).endswith("9 0 3 12 16")
    assert words(rows["0"]).endswith("10 0 6 16 –")
    assert words(rows["2"]).endswith("8+ – – 8+ 16"), "not sealed: in steps of four (P1)"
    assert "bad_length 6 the body has another length than the attribute asks for" in text


def test_a_round_shows_every_number_in_its_table(site: Site, fuel: str) -> None:
    (facts,) = facts_at(site, f"{fuel}/rounds/0.json")
    page = site.get(f"{fuel}/rounds/0").text
    text = words(page)
    assert text.index(facts["sentence"]) < text.index("Round 0 : 10 reports")
    names = ("raw", "low", "high", "low_all", "high_all", "privacy_error", "sampling_error")
    shown, for_calculations = page.split("<details")
    for row in facts["histogram"]:
        (line,) = re.findall(rf'<tr data-value="{row["value"]}">(.*?)</tr>', shown, re.DOTALL)
        assert words(line).startswith(f"{row['value']} {100 * row['projected']:.0f} %")
        (line,) = re.findall(rf'<th scope="row">{row["value"]}</th>(.*?)</tr>', for_calculations)
        for name in names:
            assert f"{100 * row[name]:.1f}".replace("-", "−") in line, name
    pair, tallest = facts["difference"]["pair"], facts["difference"]["tallest"]
    assert f"Half-width of a difference ±{100 * pair:.1f} points, two values named" in text
    every = words(site.get(f"{fuel}/rounds/0?intervals=all").text)
    assert f"Half-width of a difference ±{100 * tallest:.1f} points, any two values" in every
    filling = words(site.get(f"{fuel}/rounds/2").text)
    assert "At least 8 reports so far; the result comes when the round is sealed." in filling


def test_over_time_shows_every_value_and_the_most_frequent_first(site: Site, fuel: str) -> None:
    facts, page = facts_at(site, f"{fuel}.json"), site.get(fuel).text
    assert [r["round"] for r in facts["rounds"]] == [0, 1]
    begin = facts["interesting"]["value"]
    assert facts["interesting"]["change"] is None, "ten reports show no change"
    text = words(page)
    assert f"The most frequent value is {begin}" in text
    assert f"Numbers for “{begin}”" in text
    assert facts["pooled"]["sentence"] in text
    share = {row["value"]: row["projected"] for row in facts["pooled"]["histogram"]}
    assert share[begin] == max(share.values())
    panels = dict(re.findall(r'data-panel="(\w+)"(.*?)</a>', page, re.DOTALL))
    assert list(panels) == facts["values"]
    assert [name for name, panel in panels.items() if "aria-current" in panel] == [begin]
    for name, panel in panels.items():
        assert f"{100 * share[name]:.0f} %" in words(f"<a{panel}")
        assert panel.count('class="pooled-band"') == 1
    chosen = words(site.get(f"{fuel}?value=gas").text)
    assert "not the first-stage noise" in chosen
    assert f"Pooled over 2 rounds {100 * share['gas']:.0f} % 0 … 100" in chosen


def test_errors_name_what_there_is(
    site: Site, campaign: Campaign, fuel: str, tmp_path: Path
) -> None:
    for path, message in {
        "/campaigns/nosuch": f"known campaigns: {campaign.name}",
        fuel.replace("fuel", "fule") + "/rounds/0": "the campaign has: fuel, town, colour",
        f"{fuel}/rounds/9999": "give a number below 1000, latest, pooled or all",
        "/nosuch": "There is no such page",
    }.items():
        reply = site.get(path)
        assert reply.status == 404, path
        assert message in words(reply.text), path
    with serving(tmp_path) as empty:
        assert empty.get("/").status == 404
        assert "open a campaign first" in words(empty.get("/").text)
        assert empty.get("/planner").status == 200


def test_a_campaign_from_its_opening_to_its_end(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        made = store.open_campaign(three_questions(count=2), FIRST)
        path = f"/campaigns/{made.name}"
        with serving(tmp_path) as site:
            assert "No reports yet." in words(site.get(path).text)
        for number in range(2):
            store.commit([candidate(made, 1, number)], [])
            with serving(tmp_path) as site:
                page = site.get(path).text
                links = set(re.findall(rf'href="({path}/[^"]+)"', page))
                assert (f"{path}/attributes/fuel/rounds/latest" in links) == (number > 0)
                assert {site.get(link).status for link in links} <= {200}
            seal(store, made, number)
        store.close_campaign(made, FIRST)
    with serving(tmp_path) as site:
        facts = facts_at(site, "/index.json")["campaigns"][0]
        assert (facts["state"], facts["open"]) == ("finished", False)
        for page in (site.get(path).text, site.get("/").text):
            assert 'data-state="finished"' in page
            assert "nothing changes any more" in page


def test_every_link_of_every_page_leads_somewhere(
    site: Site, campaign: Campaign, fuel: str
) -> None:
    seen: dict[str, int] = {}
    town = fuel.replace("fuel", "town")  # of which no report ever came
    waiting = ["/", f"/campaigns/{campaign.name}", "/planner"]
    waiting += [path for at in (fuel, town) for path in (at, f"{at}/rounds/0", f"{at}/rounds/2")]
    for path in waiting:
        for link in re.findall(r'(?:href|src)="(/[^"#]*)"', site.get(path).text):
            address = html.unescape(link)
            seen[address] = seen.get(address) or site.get(address).status
    assert {address for address, status in seen.items() if status != 200} == set()
    assert len(seen) > 25


# --- Files are what the commands print, byte for byte ---------------------------------------------

ESTIMATE = ("estimate", "--json", "--round")
SAME: list[tuple[str, tuple[str, ...]]] = [
    *((f"/rounds/{n}.json", (*ESTIMATE, n)) for n in ("0", "2", "latest", "pooled")),
    *((f"/rounds/{n}.csv", ("export", "--round", n)) for n in ("0", "pooled")),
    ("/rounds/0.json?a=gas&b=wood", (*ESTIMATE, "0", "--value", "gas", "--compare", "wood")),
    ("/rounds/2.json?with=0", (*ESTIMATE, "2", "--compare", "0")),
    (".csv", ("export",)),
]


@pytest.mark.parametrize(("path", "command"), SAME, ids=[path for path, _ in SAME])
def test_a_file_is_what_the_command_prints(
    cli: Cli, site: Site, data: Path, fuel: str, path: str, command: tuple[str, ...]
) -> None:
    reply = site.get(fuel + path)
    assert reply.text == cli(*command, "--attribute", "fuel", "--data-dir", data).stdout
    if path.endswith(".csv"):
        assert reply.headers["content-type"] == "text/csv; charset=utf-8"
        assert reply.text.splitlines()[0] == ",".join(COLUMNS)


def test_the_pages_files_are_what_status_and_estimate_print(
    cli: Cli, site: Site, data: Path, campaign: Campaign, fuel: str
) -> None:
    printed = json.loads(cli("status", "--data-dir", data, "--json").stdout)
    assert printed.pop("suspended_names") == [], "which is for the operator alone"
    assert facts_at(site, "/index.json") == printed
    facts = facts_at(site, f"/campaigns/{campaign.name}.json")
    reports = {row["round"]: row["reports"] for row in facts["latest_rounds"]}
    assert reports[1] == {"fuel": 9, "town": 0, "colour": 3}
    assert reports[2] == {"fuel": 8, "town": 0, "colour": 0}
    command = ("estimate", "--attribute", "fuel", "--round", "all", "--data-dir", data, "--json")
    shown = facts_at(site, f"{fuel}.json")
    assert [shown["pooled"], *shown["rounds"]] == json.loads(cli(*command).stdout)


def test_the_address_limits_the_rounds_and_so_does_the_page(
    site: Site, data: Path, fuel: str
) -> None:
    assert [r["round"] for r in facts_at(site, f"{fuel}.json?until=0")["rounds"]] == [0]
    assert facts_at(site, f"{fuel}.json?until=999")["rounds"][-1]["round"] == 1
    assert site.get(f"{fuel}?until=yesterday").status == 400
    assert 'id="cut"' not in site.get(f"{fuel}?last=2").text
    more = '<option value="1000">the latest 1,000</option>'
    assert [more in site.get(f"{fuel}?last={n}").text for n in (1, 2)] == [True, False]
    with serving(data, limits=Limits(rows=7)) as small:  # four values: one round
        shown = facts_at(small, f"{fuel}.json?last=1000")
        assert ([r["round"] for r in shown["rounds"]], shown["cut"]) == ([1], True)
        assert shown["pooled"]["rounds"] == 2
        assert {row["round"] for row in rows_at(small, f"{fuel}.csv?last=999")} == {"", "1"}
        message = "With 4 values no more rounds fit into one answer"
        assert message in small.get(f"{fuel}?last=9").text
        assert facts_at(small, f"{fuel}.json?last=1")["cut"] is False


# --- the planner ----------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["n=5000", "n=20000&f=0.3&precision=0.01"])
def test_the_planner_is_what_plan_prints(
    cli: Cli, site: Site, campaign: Campaign, tmp_path: Path, query: str
) -> None:
    file = tmp_path / "manifest.toml"
    enough = campaign.manifest.min_reports
    text = manifest_text(first=FIRST, grace=3600, min_reports=enough, attributes=ATTRIBUTES)
    file.write_text(text)
    given = dict(part.split("=") for part in query.split("&"))
    flags = {"n": "--devices", "f": "--frequency", "precision": "--precision"}
    options = [word for name, value in given.items() for word in (flags[name], value)]
    shown = site.get(f"/planner.json?campaign={campaign.name}&{query}").text
    assert shown == cli("plan", file, *options, "--json").stdout


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_the_planner_plans_every_mechanism(site: Site, reporting: str) -> None:
    query = f"n=10000&k=30&d=2&reporting={reporting}&rounds=100&changes=yes"
    planned = facts_at(site, f"/planner.json?{query}")
    assert (planned["reporting"], planned["rounds"]) == (reporting, 100)
    text = words(site.get(f"/planner?{query}").text)
    attribute, _ = planned["attributes"]
    assert (attribute["k"], attribute["devices"]) == (30, 5000)
    assert all(judged["sentence"] in text for judged in attribute["verdict"])
    assert all(mechanism["hides"] in text for mechanism in attribute["mechanisms"])
    assert ("Careful:" in text) == (reporting in ("memoized", "nested"))


# --- numbers, windows, comparisons and mechanisms -------------------------------------------------


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    """`once`: two windows, and one that fills; and where the campaign's pages begin."""
    data = tmp_path_factory.mktemp("windows") / "data"
    with closing(open_store(data)) as store:
        made = store.open_campaign(rooms("once"), FIRST)
        store_windows(store, made)
    with serving(data) as served:
        yield served, f"/campaigns/{made.name}"


def test_numbers_are_next_to_the_histogram(windows: tuple[Site, str]) -> None:
    site, path = windows
    room = f"{path}/attributes/room/rounds/pooled"
    (facts,) = facts_at(site, f"{room}.json")
    numbers, page = facts["numbers"], site.get(room).text
    text, middle = words(page), numbers["quantiles"][2]
    assert (
        f"Median {middle['value']:.1f} °C between {middle['low']:g} and {middle['high']:g}" in text
    )
    assert f"Mean {numbers['mean']:.1f} °C" in text
    assert f"with {bias_text(facts)}" in text
    assert 'id="figure-cdf"' in page
    for edge, share in zip(numbers["edges"], numbers["cdf"]):
        assert f"{edge:g} {100 * share:.0f} %" in text
    assert 'id="figure-cdf"' not in site.get(f"{path}/attributes/fuel/rounds/pooled").text
    for query, end in (("", ""), ("?intervals=all", "_all")):
        drawn = bars(site.get(f"{room}{query}").text)
        for row in facts["histogram"]:
            ends = f"{100 * row['low' + end]:.0f} … {100 * row['high' + end]:.0f}"
            assert ends in words(drawn[html.escape(row["value"])])


def test_a_fit_is_drawn_and_said_without_a_script(windows: tuple[Site, str]) -> None:
    site, path = windows
    room = f"{path}/attributes/room"
    trend = facts_at(site, f"{room}.json")["trend"]
    for value, query in (
        ("mean", "?value=mean"),
        ("18 to 20 °C", "?value=18+to+20+%C2%B0C&fit=line"),
    ):
        page = site.get(room + query).text
        row = next(row for row in trend["trends"] if row["value"] == value)
        assert row["sentence"] in words(page)
        assert 'class="trend"' in page
        assert 'class="trend-band"' in page
        assert "95 % band of the fit, all moments at once" in words(page)
    without = site.get(f"{room}?fit=none").text
    assert 'class="trend"' not in without
    assert 'id="trend"' not in without
    assert "needs at least 7 rounds or windows" in words(site.get(f"{room}?fit=smooth").text)
    assert site.get(f"{room}?fit=often").status == 400


def test_results_are_compared_on_the_page(windows: tuple[Site, str]) -> None:
    site, path = windows
    at = f"{path}/attributes/fuel/rounds/4"
    assert '<option value="1">round 1</option>' in site.get(at).text
    (facts,) = facts_at(site, f"{at}.json?with=1")
    page = words(site.get(f"{at}?with=1").text)
    assert facts["sentence"] in page
    assert f"gas {100 * facts['differences'][0]['difference']:.1f}".replace("-", "−") in page


def test_windows_are_named_by_their_rounds(windows: tuple[Site, str]) -> None:
    site, path = windows
    room = f"{path}/attributes/room"
    page = site.get(room).text
    rows = re.findall(r"<tr data-round.*?</tr>", page, re.DOTALL)
    assert [words(row).split()[0] for row in rows] == ["5", "2–4", "0–1"]
    text = words(page)
    assert "Not enough reports for a result: 10 of 50." in text
    assert "All released, rounds 0 to 4" in text
    assert "The bands of different windows are independent" in text
    assert "first-stage noise" not in text
    assert "Rounds 2 to 4 : 70 reports, GRR" in words(site.get(f"{room}/rounds/4").text)
    assert "go on into a longer window" in words(site.get(f"{room}/rounds/3").text)


def test_is_a_above_b_by_parameters(windows: tuple[Site, str]) -> None:
    site, path = windows
    fuel = f"{path}/attributes/fuel/rounds/pooled"
    assert 'id="answer"' not in site.get(fuel).text
    page = site.get(f"{fuel}?a=gas&b=oil").text
    (facts,) = facts_at(site, f"{fuel}.json?a=gas&b=oil")
    assert "Yes: gas is above oil" in words(page)
    assert f"The difference is {100 * facts['difference']:.1f} points" in words(page)
    assert f"{100 * facts['low']:.1f} … {100 * facts['high']:.1f}" in words(page)
    assert page.count("<option selected>") == 2
    wrong = site.get(f"{fuel}?a=gas&b=coal")
    assert wrong.status == 404
    assert "unknown value" in words(wrong.text)


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_the_mechanism_is_shown_with_its_caveat(
    tmp_path: Path, windows: tuple[Site, str], reporting: str
) -> None:
    with closing(open_store(tmp_path)) as store:
        made = store.open_campaign(rooms(reporting), FIRST)
    with serving(tmp_path) as site:
        text = words(site.get(f"/campaigns/{made.name}").text)
        assert site.get(f"/planner?campaign={made.name}").status == 200
    assert f"Mechanism {reporting} ." in text
    assert ("Careful: room may change" in text) == (reporting in ("memoized", "nested"))
    if reporting == "once":
        assert "Each device answers only in rounds that it drew" in text
        assert "a device answers in 1 of 60 rounds" in words(windows[0].get(windows[1]).text)
        page = windows[0].get(f"{windows[1]}/attributes/room/rounds/pooled").text
        assert "trends may be fitted" in words(page)
        assert "data-warning" not in page


# --- A simulation's true frequencies are shown, and nothing else is called a simulation -----------

TRUE = {"fuel": [0.5, 0.25, 0.125, 0.125]}


def test_the_truth_that_is_written_is_read_and_another_file_refused(tmp_path: Path) -> None:
    assert read_truth(tmp_path, "demo-1") is None
    write_truth(tmp_path, "demo-1", {"fuel": (1, 0.5)})
    write_truth(tmp_path, "demo-1", TRUE)
    assert read_truth(tmp_path, "demo-1") == TRUE
    assert read_truth(tmp_path, "demo-2") is None
    (file,) = tmp_path.iterdir()
    for content in ("", "[]", '{"fuel": 1}', '{"fuel": ["x"]}', "\0"):
        file.write_text(content)
        with pytest.raises(StorageFailure, match="does not hold a simulation's true frequencies"):
            read_truth(tmp_path, "demo-1")


def test_only_a_simulation_shows_the_truth(site: Site, fuel: str, own: Own) -> None:
    for path in (fuel, f"{fuel}/rounds/0"):
        assert "imulat" not in site.get(path).text
    write_truth(own.data, own.campaign.name, TRUE)
    with serving(own.data) as simulated:
        page = simulated.get(f"{own.fuel}/rounds/0").text
        assert 'id="simulation"' in page
        assert "simulated truth 12 %" in page
        assert facts_at(simulated, f"{own.fuel}.json")["truth"] == TRUE["fuel"]
        assert facts_at(simulated, f"/campaigns/{own.campaign.name}.json")["simulation"] is True
    write_truth(own.data, own.campaign.name, {"fuel": [1.0]})  # of another length: not drawn
    with serving(own.data) as simulated:
        reply = simulated.get(f"{own.fuel}/rounds/0")
    assert (reply.status, "simulated truth" in reply.text) == (200, False)


# --- implausible and withheld results, and the join link ------------------------------------------


def test_what_honest_devices_hardly_send_is_marked_everywhere(own: Own, cli: Cli) -> None:
    """L3: 200 reports in which not one bit is set, where half of each should be."""
    silent = [candidate(own.campaign, d, 2, COLOUR, body=0) for d in range(1000, 1200)]
    own.store.commit(silent, [])
    seal(own.store, own.campaign, 2)
    printed = cli("estimate", "--round", "2", "--data-dir", own.data).stdout
    with serving(own.data) as site:
        colour = own.fuel.replace("fuel", "colour")
        (facts,) = facts_at(site, f"{colour}/rounds/2.json")
        page, metrics = words(site.get(f"{colour}/rounds/2").text), site.get("/metrics").text
        (good,) = facts_at(site, f"{own.fuel}/rounds/2.json")
    (warning,) = facts["warnings"]
    assert (facts["plausible"], good["plausible"], good["warnings"]) == (False, True, [])
    assert re.search(
        r"estimates sum to −\d+\.\d %, \d+\.\d standard errors from 100 %, and", warning
    )
    assert f"Careful: {warning}" in page
    assert f"careful: {warning}" in printed
    odd = dict(re.findall(r'implausible_results{attribute="(\w+)".*} ([\d.]+)', metrics))
    assert odd == {"fuel": "0.0", "town": "0.0", "colour": "1.0"}
    lies, channels = facts["lies"], own.campaign.manifest.mechanisms[COLOUR].channels
    assert (lies["share"], lies["shift"]) == (0.01, lie_shift(channels, 0.01))
    assert lies["share_for_error"] == share_for_shift(channels, lies["error"])
    assert f"If 1 % of the devices lied together ±{100 * lies['shift']:.1f} points" in page
    assert (
        f"a bar could be off by {100 * lies['shift']:.1f} points; to stay within 5 points"
        in printed
    )


def test_too_few_reports_are_a_sentence_and_no_number_of_a_histogram(site: Site, fuel: str) -> None:
    colour = fuel.replace("fuel", "colour")
    sentences = ("Not enough reports for a result: 3 of 4.", "Fewer than 4 reports so far;")
    for number, sentence in zip((1, 2), sentences):  # sealed, and filling
        page = site.get(f"{colour}/rounds/{number}").text
        assert sentence in page
        assert 'data-withheld="yes"' in page
        assert "data-value=" not in page
        assert "Half-width of a difference" not in page
    (facts,) = facts_at(site, f"{colour}/rounds/1.json")
    assert (facts["withheld"], facts["histogram"]) == (True, [])
    rows = site.get(f"{colour}/rounds/1.csv").text.splitlines()[1:]
    assert all(",true,c" in row and row.endswith(",," + "," * 12) for row in rows)
    over_time = site.get(colour).text
    assert '<tr data-round="0">' in over_time
    assert over_time.count("Not enough reports") == 1
    assert "Pooled over " in over_time


ADDRESS = "mqtts://broker.example:8883/allomfree"


@pytest.mark.parametrize(
    "address", [ADDRESS, None, "", "mqtt://127.0.0.1:1883/allomfree", "<script>"]
)
def test_an_open_campaign_shows_the_link_to_join_that_others_can_use(
    own: Own, address: str | None
) -> None:
    if address is not None:
        (own.data / ADDRESS_FILE).write_text(address)
    path = f"/campaigns/{own.campaign.name}"
    with serving(own.data) as site:
        page, facts = site.get(path).text, facts_at(site, f"{path}.json")
    if address != ADDRESS:
        assert ("join-title" in page, facts["join"]) == (False, None)
        return
    link = f"{ADDRESS}/{own.campaign.manifest.full_name}"
    assert f"allomfree-edge join {link}" in page
    assert page.count("QR code of the join link") == 1
    assert facts["join"] == link
    own.store.close_campaign(own.campaign, 1)
    with serving(own.data) as site:
        assert "join-title" not in site.get(path).text


# --- the documentation ----------------------------------------------------------------------------

TEXT = " ".join((ROOT / "docs" / "page.md").read_text(encoding="utf-8").split())


def test_every_parameter_and_address_is_documented(tmp_path: Path) -> None:
    (listed,) = re.findall(r"Parameters: (.*?)All readers", TEXT)
    assert set(app.PARAMETERS) == set(re.findall(r"`([a-z_0-9]+)`", listed))
    for route in app.Pages(tmp_path).application().routes:
        assert isinstance(route, Route)
        path = re.sub(r"\{file_format:\w+\}$", "", route.path)
        path = re.sub(r"\{(\w+):name\}", lambda found: found[1].upper(), path)
        if not path.startswith(("/static", "/index")):
            assert f"`{path}`" in TEXT, path


def test_every_limit_is_documented() -> None:
    assert f"from 1 to {app.MOST_SHOWN} rounds to show ({app.SHOWN})" in TEXT
    assert f"longer than {server.LONGEST_ADDRESS} characters with 414" in TEXT
    assert f"at most {LIMITS.rows:,} rows" in TEXT
    assert f"At most {LIMITS.readers} readers get live events" in TEXT
    assert f"`{VARIABLE}`" in TEXT
    assert f"`{FILE}` in the data directory, mode 0600" in TEXT
