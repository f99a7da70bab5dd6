"""Every page says in plain HTML, without a script, what an analyst needs to read a number."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.routing import Route

from collector.data_dir import open_store
from collector.errors import StorageFailure
from collector.opening import ADDRESS_FILE
from collector.records import Campaign
from collector.results.facts import CAMPAIGN_COLUMNS, ROUND_COLUMNS, read_truth, write_truth
from collector.results.tables import COLUMNS
from collector.web import app, live, server
from collector.web.live import LIMITS, Limits
from collector.web.process import FILE, VARIABLE
from protocol_spec import report_odds
from tests.support.campaigns import manifest_text
from tests.support.collector import ATTRIBUTES, FIRST, candidate, seal, three_questions
from tests.support.command_line import Cli
from tests.support.harness import ROOT
from tests.support.pages import Own, Site, rooms, serving, store_windows, words


def test_the_first_page_lists_campaigns(site: Site, campaign: Campaign) -> None:
    reply = site.get("/")
    assert reply.status == 200
    shown = words(reply.text)
    assert campaign.name in shown
    assert campaign.manifest.title in shown
    assert "Reports counted 36" in shown
    assert "Not counted 6" in shown


def test_a_campaign_shows_who_asks_and_what_it_costs(site: Site, campaign: Campaign) -> None:
    shown = words(site.get(f"/campaigns/{campaign.name}").text)
    manifest = campaign.manifest
    for told in (manifest.purpose, manifest.owner, manifest.contact, manifest.digest.hex()):
        assert told in shown
    for attribute, drawn in zip(manifest.attributes, manifest.calibrations):
        assert attribute.question in shown
        assert drawn.protocol in shown
        odds = report_odds(drawn)
        assert (
            f"says “{attribute.values[0]}” with probability {100 * odds.if_true:.3g} % if that is "
            f"the device's true answer, and {100 * odds.if_false:.3g} % if it is not" in shown
        )
    assert "your" not in shown.replace("What heats your home?", ""), "it speaks to the analyst"
    assert "variance of one answer: L-GRR" in shown
    assert "named in the manifest" in shown


def test_a_campaign_shows_its_rounds_and_outcomes(site: Site, campaign: Campaign) -> None:
    page = site.get(f"/campaigns/{campaign.name}").text
    rows = dict(re.findall(r'<tr data-round="(\d)">(.*?)</tr>', page, re.DOTALL))
    assert rows.keys() == {"0", "1", "2"}
    assert "sealed" in words(rows["0"])
    assert re.search(r"data-received>12<.*data-expected>16<", rows["1"])
    assert re.search(r"data-received>16<.*data-expected>–<", rows["0"])
    shown = words(page)
    assert "bad_length 6 the body has another length than the attribute asks for" in shown


def test_a_round_shows_every_number_in_its_table(site: Site, fuel: str) -> None:
    (facts,) = json.loads(site.get(f"{fuel}/rounds/0.json").body)
    page = site.get(f"{fuel}/rounds/0").text
    for row in facts["histogram"]:
        (line,) = re.findall(rf'<tr data-value="{row["value"]}">(.*?)</tr>', page, re.DOTALL)
        for name in ("raw", "low", "high", "low_all", "high_all", "projected", "privacy_error"):
            assert f"{100 * row[name]:.1f}".replace("-", "−") in line, name
        assert f"{100 * row['sampling_error']:.1f}" in line
    shown = words(page)
    for told in ("Raw", "Projected", "Privacy error", "Sampling error", "For all"):
        assert told in shown
    pair, tallest = facts["difference"]["pair"], facts["difference"]["tallest"]
    assert f"Half-width of a difference ±{100 * pair:.1f} points, two values named" in shown
    every = words(site.get(f"{fuel}/rounds/0?intervals=all").text)
    assert f"Half-width of a difference ±{100 * tallest:.1f} points, any two values" in every


def test_a_round_that_fills_says_so(site: Site, fuel: str) -> None:
    assert "Round 2 so far, not sealed: 8 reports" in words(site.get(f"{fuel}/rounds/2").text)


def test_over_time_explains_the_floor(site: Site, fuel: str) -> None:
    shown = words(site.get(f"{fuel}?value=gas").text)
    assert "not the first-stage noise" in shown
    assert "Numbers for “gas”" in shown
    facts = json.loads(site.get(f"{fuel}.json").body)
    pooled, floor = facts["pooled"]["histogram"][1], facts["floor"][1]
    assert f"Floor, however many rounds ±{100 * floor:.1f} points" in shown
    assert f"{100 * pooled['raw']:.1f} %".replace("-", "−") in shown
    assert [r["round"] for r in facts["rounds"]] == [0, 1]


def test_the_strip_says_how_the_service_stands(site: Site) -> None:
    assert 'data-well="no"' in site.get("/").text
    assert "no collector is running" in words(site.get("/").text)


def test_what_is_not_there_is_said_with_what_is(site: Site, campaign: Campaign, fuel: str) -> None:
    for path, told in {
        "/campaigns/nosuch": f"known campaigns: {campaign.name}",
        fuel.replace("fuel", "fule"): "the campaign has: fuel, town, colour",
        fuel.replace("fuel", "fule") + "/rounds/0": "the campaign has: fuel, town, colour",
        f"{fuel}/rounds/9999": "give a number below 1000, latest, pooled or all",
        f"{fuel}/rounds/500": "round 500 has no reports",
        "/nosuch": "There is no such page",
    }.items():
        reply = site.get(path)
        assert reply.status == 404, path
        assert told in words(reply.text), path


def test_a_page_before_there_is_data(tmp_path: Path) -> None:
    with serving(tmp_path) as empty:
        assert empty.get("/").status == 404
        assert "open a campaign first" in words(empty.get("/").text)
        assert empty.get("/planner").status == 200


def test_a_campaign_that_begins_leads_only_where_there_is_something(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with closing(open_store(data)) as store:
        made = store.open_campaign(three_questions(), FIRST)
        with serving(data) as site:
            assert "No reports yet." in words(site.get(f"/campaigns/{made.name}").text)
        store.commit([candidate(made, 1)], [])
    with serving(data) as site:
        page = site.get(f"/campaigns/{made.name}").text
        links = set(re.findall(rf'href="(/campaigns/{made.name}/[^"]+)"', page))
        assert f"/campaigns/{made.name}/attributes/fuel/rounds/0" in links
        assert {site.get(link).status for link in links} == {200}


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


# --- Page, commands and files say the same: `.json` and `.csv` are byte for byte the commands'.


ROUNDS = ("0", "1", "2", "latest", "pooled")
SAME: list[tuple[str, tuple[str, ...]]] = [
    *((f"/rounds/{n}.json", ("estimate", "--json", "--round", n)) for n in ROUNDS),
    *((f"/rounds/{n}.csv", ("export", "--round", n)) for n in ("0", "pooled")),
    *(
        (
            f"/rounds/{n}.json?a=gas&b=wood",
            ("estimate", "--json", "--round", n, "--compare", "gas", "wood"),
        )
        for n in ("0", "pooled")
    ),
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


def rows(site: Site, path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(site.get(path).text)))


# --- Pictures without a script: bars and lines show what the numbers say, and lead to them.


def bars(page: str) -> dict[str, str]:
    return dict(re.findall(r'<li data-bar="([^"]+)">(.*?)</li>', page, re.DOTALL))


def test_the_first_page_begins_with_a_histogram(site: Site, campaign: Campaign, fuel: str) -> None:
    page = site.get("/").text
    (facts,) = json.loads(site.get(f"{fuel}/rounds/pooled.json").body)
    drawn = bars(page)
    assert list(drawn) == [row["value"] for row in facts["histogram"]]
    lowest = min(0.0, *(row["raw"] for row in facts["histogram"]))
    highest = max(max(row["raw"], row["high"]) for row in facts["histogram"])
    for row in facts["histogram"]:
        bar = drawn[row["value"]]
        assert f"{100 * row['raw']:.1f} %".replace("-", "−") in words(bar)
        (width,) = re.findall(r'class="bar".*? width="([0-9.]+)%"', bar)
        assert float(width) == pytest.approx(100 * abs(row["raw"]) / (highest - lowest), abs=0.02)
    at = page.index("data-bar")
    assert at < page.index("Reports counted"), "before the text"
    assert f'<a href="{fuel}/rounds/pooled">What heats your home?</a>' in page


def test_a_campaign_draws_each_question_that_has_something_to_show(
    site: Site, campaign: Campaign
) -> None:
    page = site.get(f"/campaigns/{campaign.name}").text
    cards = dict(
        re.findall(r'<li class="card" data-attribute="(\w+)">(.*?)\n</li>', page, re.DOTALL)
    )
    assert len(bars(cards["fuel"])) == 4
    assert len(bars(cards["colour"])) == 8, "the largest of eleven"
    assert "the 8 largest of 11 values" in words(cards["colour"])
    assert not bars(cards["town"]), "of which no report ever came"
    assert "data-spark" in cards["fuel"]
    assert "data-spark" not in cards["colour"], "of which one round alone is not withheld"
    (line,) = re.findall(r'<polyline class="line" points="([^"]+)"', cards["fuel"])
    assert [point.split(",")[0] for point in line.split()] == ["60", "180"], "middles of two rounds"


def test_over_time_shows_every_value_and_begins_with_the_most_interesting(
    site: Site, fuel: str
) -> None:
    facts = json.loads(site.get(f"{fuel}.json").body)
    page = site.get(fuel).text
    begin = facts["interesting"]["value"]
    assert facts["interesting"]["change"] is None, "ten reports show no change"
    assert f"No value changed by more than chance explains; the most frequent one is {begin}" in (
        words(page)
    )
    assert f"Numbers for “{begin}”" in words(page)
    raw = {row["value"]: row["raw"] for row in facts["pooled"]["histogram"]}
    assert raw[begin] == max(raw.values())
    panels = dict(re.findall(r'data-panel="(\w+)"(.*?)</a>', page, re.DOTALL))
    assert list(panels) == facts["values"]
    assert [name for name, panel in panels.items() if "aria-current" in panel] == [begin]
    for name, panel in panels.items():
        assert f"{100 * raw[name]:.1f} %".replace("-", "−") in words(f"<a{panel}")
        assert panel.count('class="pooled-band"') == 1
        assert site.get(f"{fuel}?value={name}").status == 200


def test_a_change_beyond_chance_is_said(tmp_path: Path) -> None:
    """All devices hold oil in the first round, and pump in the second."""
    with closing(open_store(tmp_path / "data")) as store:
        made = store.open_campaign(three_questions(), FIRST)
        for number in range(2):
            store.commit([candidate(made, d, number, body=2 + number) for d in range(400)], [])
            seal(store, made, number)
    with serving(tmp_path / "data") as site:
        at = f"/campaigns/{made.name}/attributes/fuel"
        facts = json.loads(site.get(f"{at}.json").body)["interesting"]
        change = facts["change"]
        assert (change["from_round"], change["to_round"]) == (0, 1)
        told = f"{facts['value']}, from {_percent(change['from_raw'])} in round 0 to "
        shown = words(site.get(at).text).replace(" ,", ",")
        assert told in shown
        assert facts["value"] in ("oil", "pump")
        assert f"Numbers for “{facts['value']}”" in shown


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-", "−")


def test_rounds_up_to_one(site: Site, fuel: str) -> None:
    shown = json.loads(site.get(f"{fuel}.json?until=0").body)
    assert [r["round"] for r in shown["rounds"]] == [0]
    assert json.loads(site.get(f"{fuel}.json?until=999").body)["rounds"][-1]["round"] == 1
    assert site.get(f"{fuel}?until=yesterday").status == 400


def test_a_finished_campaign_says_so(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "data")) as store:
        made = store.open_campaign(three_questions(count=2), FIRST)
        for number in range(2):
            store.commit([candidate(made, 1, number)], [])
            seal(store, made, number)
            with serving(tmp_path / "data") as site:
                page, home = site.get(f"/campaigns/{made.name}").text, site.get("/").text
                facts = json.loads(site.get("/index.json").body)["campaigns"][0]
            assert facts["state"] == ("open", "finished")[number]
            for shown in (page, home):
                assert f'data-state="{facts["state"]}"' in shown
                assert ("nothing changes any more" in shown) is (number == 1)
        store.close_campaign(made, FIRST)
    with serving(tmp_path / "data") as site:
        facts = json.loads(site.get("/index.json").body)["campaigns"][0]
        assert (facts["state"], facts["open"]) == ("finished", False)


# --- Numbers, windows, comparisons and the ways of reporting on the page, without a browser.


@pytest.fixture(scope="module")
def windows_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows") / "data"


@pytest.fixture(scope="module")
def campaign_of_windows(windows_data: Path) -> Campaign:
    """One round for life: two windows, and one that fills."""
    with closing(open_store(windows_data)) as store:
        made = store.open_campaign(rooms("once"), FIRST)
        store_windows(store, made)
        return made


@pytest.fixture(scope="module")
def windows(windows_data: Path, campaign_of_windows: Campaign) -> Iterator[Site]:
    with serving(windows_data) as served:
        yield served


@pytest.fixture(scope="module")
def room(campaign_of_windows: Campaign) -> str:
    return f"/campaigns/{campaign_of_windows.name}/attributes/room"


def test_numbers_stand_beside_the_histogram(windows: Site, room: str) -> None:
    (facts,) = json.loads(windows.get(f"{room}/rounds/pooled.json").text)
    numbers, page = facts["numbers"], windows.get(f"{room}/rounds/pooled").text
    shown, middle = words(page), numbers["quantiles"][2]
    assert f"Median {middle['value']:.4g} °C {middle['low']:g} … {middle['high']:g}" in shown
    assert f"Mean {numbers['mean']:.4g} °C" in shown
    assert 'id="figure-cdf"' in page
    for edge, share in zip(numbers["edges"], numbers["cdf"]):
        assert f"{edge:g} {100 * share:.1f} %" in shown
    assert (
        'id="figure-cdf"' not in windows.get(f"{room.removesuffix('room')}fuel/rounds/pooled").text
    )


def test_windows_are_named_by_their_rounds(windows: Site, room: str) -> None:
    shown = words(windows.get(room).text)
    rows = re.findall(r"<tr data-round.*?</tr>", windows.get(room).text, re.DOTALL)
    assert [words(row).split()[0] for row in rows] == ["5", "2–4", "0–1"]
    assert "not enough reports: 10 of 50" in shown
    assert "All released, rounds 0 to 4" in shown
    assert "Violet, and the number: all that was released" in shown
    assert windows.get(room).text.count("data-panel=") == 6
    assert "The bands of different windows are independent" in shown
    assert "first-stage noise" not in shown
    window = words(windows.get(f"{room}/rounds/4").text)
    assert "Rounds 2 to 4 : 70 reports, GRR" in window
    filling = words(windows.get(f"{room}/rounds/3").text)
    assert "Rounds 2 to 3 : 40 reports" in filling
    assert "these rounds go on into a longer window" in filling


@pytest.mark.parametrize("name", ["median", "mean"])
def test_a_number_over_time(windows: Site, room: str, name: str) -> None:
    facts = json.loads(windows.get(f"{room}.json").text)
    numbers = next(r["numbers"] for r in facts["rounds"] if r["last"] == 4)
    value = numbers["mean"] if name == "mean" else numbers["quantiles"][2]["value"]
    page = windows.get(f"{room}?value={name}").text
    (row,) = re.findall(r'<tr data-round="4">.*?</tr>', page, re.DOTALL)
    begins = next(r["opens"] for r in facts["rounds"] if r["last"] == 4)
    moment = begins.replace("T", " ").removesuffix("Z").removesuffix(":00")
    assert f"2–4 {moment} 70 {value:.4g} " in words(row)
    assert f"Numbers for “{name}”" in words(page)
    assert windows.get(f"{room.removesuffix('room')}fuel?value={name}").status == 400


def test_is_a_above_b_by_parameters(windows: Site, room: str) -> None:
    fuel = room.removesuffix("room") + "fuel/rounds/pooled"
    assert 'id="answer"' not in windows.get(fuel).text
    page = windows.get(f"{fuel}?a=gas&b=oil").text
    (told,) = json.loads(windows.get(f"{fuel}.json?a=gas&b=oil").text)
    assert "Yes: gas is above oil" in words(page)
    assert f"The difference is {100 * told['difference']:.1f} points" in words(page)
    assert f"{100 * told['low']:.1f} … {100 * told['high']:.1f}" in words(page)
    assert page.count("<option selected>") == 2
    assert windows.get(f"{fuel}?a=gas&b=coal").status == 404
    assert "unknown value" in words(windows.get(f"{fuel}?a=gas&b=coal").text)


def test_the_address_chooses_the_intervals(windows: Site, room: str) -> None:
    (facts,) = json.loads(windows.get(f"{room}/rounds/pooled.json").text)
    for query, end in (("", ""), ("?intervals=all", "_all")):
        drawn = bars(windows.get(f"{room}/rounds/pooled{query}").text)
        for row in facts["histogram"]:
            ends = f"{100 * row['low' + end]:.1f} … {100 * row['high' + end]:.1f}"
            assert ends in words(drawn[html.escape(row["value"])])


def test_the_way_of_reporting_is_said_with_its_caveat(
    windows: Site, campaign_of_windows: Campaign, room: str
) -> None:
    shown = words(windows.get(f"/campaigns/{campaign_of_windows.name}").text)
    assert "Mechanism once . Each device answers only in rounds that it drew" in shown
    assert "a device answers in 1 of 60 rounds" in shown
    assert "trends may be fitted" in words(windows.get(f"{room}/rounds/pooled").text)
    assert "data-warning" not in windows.get(f"{room}/rounds/pooled").text


@pytest.mark.parametrize("reporting", ["memoized", "hashed", "nested"])
def test_every_way_has_its_pages(tmp_path: Path, reporting: str) -> None:
    with closing(open_store(tmp_path)) as store:
        made = store.open_campaign(rooms(reporting), FIRST)
    with serving(tmp_path) as site:
        shown = words(site.get(f"/campaigns/{made.name}").text)
        assert f"Mechanism {reporting} ." in shown
        assert ("Careful: room may change" in shown) == (reporting != "hashed")
        assert site.get(f"/planner?campaign={made.name}").status == 200


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_the_planner_plans_every_way(site: Site, reporting: str) -> None:
    query = f"n=5000&k=8&reporting={reporting}&rounds=100&changes=yes"
    planned = json.loads(site.get(f"/planner.json?{query}").text)
    assert (planned["reporting"], planned["rounds"]) == (reporting, 100)
    page = words(site.get(f"/planner?{query}").text)
    (attribute,) = planned["attributes"]
    for judged in attribute["verdict"]:
        assert judged["sentence"] in page
    for way in attribute["mechanisms"]:
        assert way["hides"] in page
    assert ("Careful:" in page) == (reporting in ("memoized", "nested"))
    rows = site.get(f"/planner.csv?{query}").text.splitlines()
    assert rows[0].endswith(",reporting,changes,difference,difference_all,target,verdict")


# --- A simulation's true frequencies are shown, and nothing is called a simulation that is none.


TRUE = {"fuel": [0.5, 0.25, 0.125, 0.125]}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_truth(tmp_path, "demo-1") is None
    write_truth(tmp_path, "demo-1", {"fuel": (1, 0.5)})
    write_truth(tmp_path, "demo-1", TRUE)
    assert read_truth(tmp_path, "demo-1") == TRUE
    assert read_truth(tmp_path, "demo-2") is None
    assert [path.name for path in tmp_path.iterdir()] == ["truth-demo-1.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"fuel": 1}', '{"fuel": ["x"]}', "\0"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "truth-demo-1.json").write_text(content)
    with pytest.raises(StorageFailure, match="does not hold a simulation's true frequencies"):
        read_truth(tmp_path, "demo-1")


def test_a_real_campaign_is_no_simulation(site: Site, campaign: Campaign, fuel: str) -> None:
    for path in (f"/campaigns/{campaign.name}", fuel, f"{fuel}/rounds/0"):
        assert "imulat" not in site.get(path).text
    assert json.loads(site.get(f"{fuel}.json").text)["truth"] is None


def test_a_simulation_says_so_and_shows_the_truth(own: Own) -> None:
    write_truth(own.data, own.campaign.name, TRUE)
    with serving(own.data) as site:
        page = site.get(f"{own.fuel}/rounds/0").text
        over_time = json.loads(site.get(f"{own.fuel}.json").text)
        campaign = json.loads(site.get(f"/campaigns/{own.campaign.name}.json").text)
    assert 'id="simulation"' in page
    assert "simulated truth 12.5 %" in page
    assert '<td class="number">50.0 %</td></tr>' in page
    assert over_time["truth"] == TRUE["fuel"]
    assert campaign["simulation"] is True
    write_truth(own.data, own.campaign.name, {"fuel": [1.0]})  # of another length: not drawn
    with serving(own.data) as site:
        reply = site.get(f"{own.fuel}/rounds/0")
    assert (reply.status, "simulated truth" in reply.text) == (200, False)


# --- Too few reports: the sentence, and no number of a histogram in any form of the page.


@pytest.fixture
def colour(fuel: str) -> str:
    return fuel.replace("fuel", "colour")


def test_a_round_with_too_few_reports_has_a_sentence_and_no_bars(site: Site, colour: str) -> None:
    for number, came in ((1, 3), (2, 0)):  # sealed, and filling
        page = site.get(f"{colour}/rounds/{number}").text
        assert f"not enough reports: {came} of 4" in page
        assert 'data-withheld="yes"' in page
        assert "data-value=" not in page
        assert "Half-width of a difference" not in page
    (facts,) = json.loads(site.get(f"{colour}/rounds/1.json").text)
    assert (facts["withheld"], facts["histogram"]) == (True, [])
    rows = site.get(f"{colour}/rounds/1.csv").text.splitlines()[1:]
    assert all(",true,,,,,," in row for row in rows)


def test_over_time_goes_on_with_the_others(site: Site, colour: str) -> None:
    page = site.get(colour).text
    assert '<tr data-round="0">' in page
    assert page.count("not enough reports") == 1
    assert "Pooled over " in page


# --- A campaign's page shows the link by which owners join, and its QR code.


ADDRESS = "mqtts://broker.example:8883/allomfree"


def test_the_code_is_the_link_with_the_whole_digest(own: Own) -> None:
    (own.data / ADDRESS_FILE).write_text(ADDRESS)
    campaign = own.campaign
    with serving(own.data) as site:
        page = site.get(f"/campaigns/{campaign.name}").text
        facts = json.loads(site.get(f"/campaigns/{campaign.name}.json").body)
    link = f"{ADDRESS}/{campaign.manifest.full_name}"
    assert campaign.manifest.digest.hex() in link.replace("-", "")
    assert f"allomfree-edge join {link}" in page
    assert page.count("QR code of the join link") == 1
    assert facts["join"] == link
    own.store.close_campaign(campaign, 1)
    with serving(own.data) as site:
        assert "join-title" not in site.get(f"/campaigns/{campaign.name}").text


@pytest.mark.parametrize("address", [None, "", "mqtt://127.0.0.1:1883/allomfree", "<script>"])
def test_without_an_address_for_others_there_is_none(own: Own, address: str | None) -> None:
    if address is not None:
        (own.data / ADDRESS_FILE).write_text(address)
    with serving(own.data) as site:
        page = site.get(f"/campaigns/{own.campaign.name}").text
        facts = json.loads(site.get(f"/campaigns/{own.campaign.name}.json").body)
    assert "join-title" not in page
    assert facts["join"] is None


# --- What the page's documentation promises is what the code does.


PAGE = ROOT / "docs" / "page.md"
TEXT = " ".join(PAGE.read_text(encoding="utf-8").split())


def test_every_parameter_is_documented() -> None:
    (told,) = re.findall(r"Parameters: (.*?)An answer", TEXT)
    assert set(app.PARAMETERS) == set(re.findall(r"`([a-z_0-9]+)`", told))


def test_every_address_is_documented(tmp_path: Path) -> None:
    names = {
        "{campaign:name}": "CAMPAIGN",
        "{attribute:name}": "ATTRIBUTE",
        "{round:name}": "ROUND",
    }
    for route in app.Pages(tmp_path).application().routes:
        assert isinstance(route, Route)
        path = route.path.removesuffix("{form:form}")
        for pattern, name in names.items():
            path = path.replace(pattern, name)
        if not path.startswith(("/static", "/index")):
            assert f"`{path}`" in TEXT, path


def test_every_limit_is_documented() -> None:
    assert f"from 1 to {app.MOST_SHOWN} rounds to show ({app.SHOWN})" in TEXT
    assert f"longer than {server.LONGEST_ADDRESS} characters with 414" in TEXT
    assert f"at most {LIMITS.rows:,} rows" in TEXT
    assert f"with 4,096 values the latest {LIMITS.rows // 4096} rounds" in TEXT
    assert f"At most {live.MOST_BYTES >> 20} MiB of answers are kept" in TEXT
    assert f"At most {LIMITS.readers} readers get live events" in TEXT
    assert f"(nice {server.NICE})" in TEXT
    assert f"`{VARIABLE}`" in TEXT
    assert f"`{FILE}` in the data directory, mode 0600" in TEXT
    assert (LIMITS.cache_seconds, live.CACHE_FACTOR) == (1.0, 10.0)
    assert "up to a second old, or ten times the processor time that it took to make" in TEXT
