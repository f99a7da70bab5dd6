"""`status`, `estimate` and `export`: facts, text, files and watching."""

from __future__ import annotations

import csv
import io
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collector.commands.reading import EVERY_SECONDS, watched
from collector.data_dir import open_store
from collector.health import Heartbeat, Status
from collector.records import Campaign
from collector.results import Results
from collector.results.tables import COLUMNS
from collector.results.trends import COLUMNS as TREND
from collector.results.words import around
from tests.support.collector import HOUR, candidate, seal, three_questions
from tests.support.command_line import Cli, facts_of, mistaken
from tests.support.pages import rooms, store_windows


def test_status(cli: Cli, data: Path, used: Campaign) -> None:
    facts = facts_of(cli("status", "--data-dir", data, "--json"))
    (campaign,) = facts["campaigns"]
    assert (facts["received"], facts["healthy"]) == (180, False)
    assert (campaign["open"], campaign["round"], campaign["sealed"]) == (True, 2, 1)
    assert campaign["filling"] == [
        {"round": 1, "reports": {"fuel": 30, "town": 30, "colour": 30}, "enough": 1}
    ]
    assert campaign["outcomes"] == {"accepted": 180}
    text = cli("status", "heat", "--data-dir", data).stdout
    assert "round 2 of 1000; 1 sealed" in text
    assert "counted in its round" in text


def test_status_names_who_floods_and_counts_requests(cli: Cli, data: Path, used: Campaign) -> None:
    """A2, A8: with the next step."""
    with closing(open_store(data)) as store:
        store.withdraw([(used.id, 1)], repeated=3, invalid=2)
    Heartbeat(data).beat(Status(suspended=21, suspended_names=["kitchen-7", "d" * 32]))
    facts = facts_of(cli("status", "--data-dir", data, "--json"))
    assert facts["requests"] == {"done": 1, "repeated": 3, "invalid": 2}
    assert (facts["suspended"], facts["suspended_names"]) == (21, ["kitchen-7", "d" * 32])
    text = cli("status", "--data-dir", data).stdout
    assert "requests to be forgotten: 1 done, 2 invalid, 3 repeated" in text
    assert "kitchen-7 floods and is suspended until it stops; other devices are counted." in text
    assert f"If it continues: allomfree-collector revoke --data-dir {data} kitchen-7" in text


def test_status_before_the_first_and_after_the_last_round(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        store.open_campaign(three_questions(first=int(time.time()) + HOUR), 0)
        over = store.open_campaign(three_questions(count=1), 0)
        store.commit([candidate(over, 1)], [])
        seal(store, over, 0)
    text = cli("status", "--data-dir", data).stdout
    assert "(not begun): " in text
    assert "no round now" in text
    assert "None" not in text
    assert f"{over.name} (finished): A test\n  all rounds are sealed: 1\n" in text


def test_estimate_by_group(cli: Cli, data: Path) -> None:
    """Each group, each pair, and all by their known sizes; a group of too few is not there."""
    asked = '[[attributes]]\nname = "fuel"\nquestion = "?"\nvalues = ["gas", "oil", "wood"]\n'
    groups = '[groups]\nlabel = "region"\n"values" = ["north", "south"]\n'
    manifest = three_questions(min_reports=30, attributes=asked + groups)
    with closing(open_store(data)) as store:
        campaign = store.open_campaign(manifest, 0)
        north, south, others = campaign.cells(0)
        sizes = {north: (60, 0), south: (40, 2), others: (35, 1)}
        where = [(cell, body) for cell, (n, body) in sizes.items() for _ in range(n)]
        batch = [candidate(campaign, d)._replace(attribute=c) for d, (c, _) in enumerate(where)]
        bodies = [bytes((body,)) for _, body in where]
        store.commit([c._replace(body=body) for c, body in zip(batch, bodies)], [])
        seal(store, campaign, 0)
    words = ("estimate", "--by", "region", "--totals", "north=600,south=400", "--data-dir", data)
    (facts,) = facts_of(cli(*words, "--json"))
    assert [(g["group"], g["n"]) for g in facts["groups"]] == [
        ("north", 60), ("south", 40), ("others", 35),
    ]  # fmt: skip
    raw = [group["histogram"][0]["raw"] for group in facts["groups"]]
    assert len(facts["differences"]) == 3
    gas = facts["differences"][0]["differences"][0]
    assert gas["difference"] == pytest.approx(raw[0] - raw[1])
    assert facts["fleet"]["histogram"][0]["raw"] == pytest.approx(0.6 * raw[0] + 0.4 * raw[1])
    rows = csv.DictReader(io.StringIO(cli("export", "--by", "region", "--data-dir", data).stdout))
    listed = [(row["group"], row["value"], float(row["raw"])) for row in rows]
    python = Results.groups(data, "region")
    assert listed == [(row["group"], row["value"], row["raw"]) for row in python]
    assert [each[2] for each in listed if each[1] == "gas"] == raw
    text = cli(*words).stdout
    assert "  region south: " in text
    assert "between north and south" in text
    wrong = ("--by", "model"), ("--by", "region", "--totals", "east=1"), ("--totals", "a=1")
    for options in wrong:
        assert cli("estimate", *options, "--data-dir", data).exit_code


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [("fuel", None), ("town", None), ("colour", None)]),
        (["--round", "latest", "--attribute", "fuel"], [("fuel", 0)]),
        (["--round", "all", "--attribute", "fuel"], [("fuel", None), ("fuel", 0)]),
        (["--round", "pooled", "--attribute", "town"], [("town", None)]),
    ],
)
def test_estimate(
    cli: Cli,
    data: Path,
    used: Campaign,
    options: list[str],
    expected: list[tuple[str, int | None]],
) -> None:
    facts = facts_of(cli("estimate", "--data-dir", data, *options, "--json"))
    assert [(r["attribute"], r["round"]) for r in facts] == expected
    assert all(len(r["histogram"]) > 1 and r["n"] == 30 for r in facts)
    assert all(r["difference"]["pair"] > 1 for r in facts)
    assert all(r["difference"]["tallest"] > r["difference"]["pair"] for r in facts)
    text = cli("estimate", "--data-dir", data, *options).stdout
    assert all(f"  {r['sentence']}\n" in text for r in facts)
    assert next(iter(facts[0])) == "sentence"
    raw = cli("estimate", "--data-dir", data, *options, "--raw").stdout
    assert f"{100 * facts[0]['histogram'][0]['raw']:.2f}" in raw
    assert "95 % interval" in text
    assert "no two values can be distinguished" in text  # thirty reports


def test_estimate_below_min_reports(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        first = int(time.time()) - 3 * HOUR
        campaign = store.open_campaign(three_questions(first=first, min_reports=200), 0)
        store.commit([candidate(campaign, d) for d in range(37)], [])
        seal(store, campaign, 0)
    text = cli("estimate", "--data-dir", data, "--round", 0, "--attribute", "fuel")
    assert "  Not enough reports for a result: 37 of 200.\n" in text.stdout
    facts = facts_of(cli("estimate", "--data-dir", data, "--round", 0, "--json"))
    assert [(r["withheld"], r["histogram"]) for r in facts] == [(True, [])] * 3


def test_an_open_round_shows_its_reports_in_steps_and_nothing_else(cli: Cli, data: Path) -> None:
    """P1: what is read before and after one report does not isolate it."""
    with closing(open_store(data)) as store:
        first = int(time.time()) - 3 * HOUR
        campaign = store.open_campaign(three_questions(first=first, min_reports=20), 0)
        seen = []
        for devices in (range(20, 30), range(30, 39), range(39, 41)):
            store.commit([candidate(campaign, d, 1, body=d % 4) for d in devices], [])
            words = ("--data-dir", data, "--json")
            (found,) = facts_of(cli("estimate", "--round", 1, "--attribute", "fuel", *words))
            status = facts_of(cli("status", *words))["campaigns"][0]
            rows = parsed(cli("export", "--round", 1, *words[:2]).stdout, "csv")
            seen.append((found, status["filling"], rows))
    before, after, more = seen
    assert before == after, "one report or nine more: the same"
    for (found, filling, rows), n in ((after, 0), (more, 20)):
        assert (found["n"], found["withheld"], found["histogram"]) == (n, True, [])
        assert (found["devices"], found["n_eff"], found["outcomes"]) == (n, n, {})
        assert filling[0]["reports"] == {"fuel": n, "town": 0, "colour": 0}
        assert {row["raw"] + row["count"] for row in rows} == {""}
    text = cli("estimate", "--round", 1, "--attribute", "fuel", "--data-dir", data).stdout
    assert "At least 20 reports so far; the result comes when the round is sealed." in text
    text = cli("status", "--data-dir", data).stdout
    assert "round 1 fills: fuel 20 or more, town fewer than 20, colour fewer than 20 (a" in text


def test_estimate_of_numbers_and_windows(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        store_windows(store, store.open_campaign(rooms("once"), 0))
    text = cli("estimate", "--data-dir", data, "--attribute", "room").stdout
    assert "rounds 0 to 4, 130 reports of 130 devices, GRR, once" in text
    (facts,) = facts_of(cli("estimate", "--data-dir", data, "--attribute", "room", "--json"))
    numbers, middle = facts["numbers"], facts["numbers"]["quantiles"][2]
    low, high = facts["mean_low"], facts["mean_high"]
    assert low < numbers["mean_low"] < numbers["mean_high"] < high, "with the width of bins"
    assert f"mean {numbers['mean']:.1f} °C   {' … '.join(around(low, high))}, with ±" in text
    assert f"median about {middle['value']:.1f} °C, between {middle['low']:g} and" in text
    assert "  The median is between 18 and 22 °C and the mean between " in text
    assert numbers["edges"] == [16, 18, 20, 22, 24]
    assert (facts["first"], facts["last"], facts["n_eff"], facts["warnings"]) == (0, 4, 130, [])
    fills = cli("estimate", "--data-dir", data, "--round", "3", "--attribute", "room").stdout
    assert "rounds 2 to 3, 40 reports of 40 devices, GRR, once" in fills
    assert "Not enough reports for a result: 40 of 50." in fills


@pytest.mark.parametrize("number", ["pooled", "0", "all"])
def test_estimate_compares_two_values(cli: Cli, data: Path, used: Campaign, number: str) -> None:
    pair = ("--value", "gas", "--compare", "oil")
    words = ("estimate", "--data-dir", data, "--round", number, *pair)
    compared = facts_of(cli(*words, "--json"))
    facts = facts_of(cli("estimate", "--data-dir", data, "--round", number, "--json"))
    fuel = [r for r in facts if r["attribute"] == "fuel"]
    assert [c["round"] for c in compared] == [r["round"] for r in fuel]
    for found, result in zip(compared, fuel):
        raw = {row["value"]: row["raw"] for row in result["histogram"]}
        assert found["difference"] == pytest.approx(raw["gas"] - raw["oil"])
        assert found["answer"] == "not shown"
        assert found["low"] < found["difference"] < found["high"]
    text = cli(*words).stdout
    assert text.count("is gas above oil? not shown: gas and oil may be equally") == len(compared)
    assert f"difference {100 * compared[0]['difference']:.1f} points, 95 % interval" in text
    assert "town" not in text


def test_what_cannot_be_compared_or_fitted_is_said(cli: Cli, data: Path, used: Campaign) -> None:
    words = ("estimate", "--data-dir", data)
    for options, message in (
        (("--value", "gas"), "--value gas: name what it is compared with, with --compare"),
        (("--plot", "--raw"), "--plot draws shares, and --raw prints what they are made of"),
        (("--compare", "0", "--round", "all"), "all rounds cannot be compared at once"),
        (("--compare", "0"), "the two results have rounds in common; name two different rounds"),
        (("--compare", "elsewhere"), "elsewhere"),
        (("--trend", used.name), "give line, smooth, or the length of a wave, such as 1d or 52w"),
    ):
        failed = cli(*words, *options)
        assert failed.exit_code in (1, 2)
        assert message in failed.stderr, options
    text = cli(*words, "--trend", "--attribute", "fuel").stdout
    assert "  A trend needs two rounds with enough reports.\n" in text


def test_estimate_compares_rounds_campaigns_and_data_directories(
    cli: Cli, data: Path, tmp_path: Path
) -> None:
    with closing(open_store(data)) as store:
        store_windows(store, store.open_campaign(rooms("once"), 0))
    there = tmp_path / "there"
    with closing(open_store(there)) as store:
        store_windows(store, store.open_campaign(rooms("once", first=1_900_000_000), 0))
    words = ("estimate", "--data-dir", data, "--attribute", "room", "--round")
    for number, other in (("4", "1"), ("pooled", there)):
        options = (*words, number, "--compare", other)
        (found,) = facts_of(cli(*options, "--json"))
        text = cli(*options).stdout
        assert found["sentence"] in text
        assert "No difference can be shown between " in text
        assert f"{found['a']['label']} (" in text
        assert f" reports) less {found['b']['label']} (60 reports)" in text or number == "pooled"
        assert all(row["low_all"] < row["low"] < row["high"] for row in found["differences"])
        assert found["mean"]["low"] < found["mean"]["difference"] < found["mean"]["high"]


def test_trends_are_printed_exported_and_read_in_python(cli: Cli, data: Path, home: Path) -> None:
    with closing(open_store(data)) as store:
        store_windows(store, store.open_campaign(rooms("once"), 0))
    words = ("--data-dir", data, "--attribute", "room", "--trend")
    (facts,) = facts_of(cli("estimate", *words, "line", "--json"))
    mean, *values = facts["trends"]
    assert [mean[name] for name in ("value", "unit", "rounds")] == ["mean", "°C", 2]
    assert mean["per"] == "an hour"
    assert all(len(row["curve"]["low_all"]) == 61 and row["unit"] is None for row in values)
    text = cli("estimate", *words).stdout
    assert facts["sentence"] in text
    assert "mean, °C " in text
    rows = parsed(cli("export", *words).stdout, "csv")
    assert [tuple(row) for row in rows] == [TREND] * len(facts["trends"])
    assert float(rows[0]["low"]) == mean["low"]
    cli("export", *words, "line", "--output", home / "changes.ndjson")
    assert len((home / "changes.ndjson").read_text().splitlines()) == len(rows)
    assert Results.trends(data, attribute="room") == facts["trends"]
    failed = cli("export", *words, "line", "--output", home / "x.parquet")
    assert "--trend writes rows as csv, json or ndjson; nothing was written" in failed.stderr
    assert not (home / "x.parquet").exists()
    cli("export", *words, "line", "--figure", home / "x.svg")
    drawn = (home / "x.svg").read_text()
    assert drawn.count('<polyline class="trend"') == len(rows), "of the mean and of each value"
    assert facts["sentence"][:60] in drawn


# --- export ---------------------------------------------------------------------------------------


def parsed(text: str, form: str) -> list[dict[str, Any]]:
    if form == "csv":
        return list(csv.DictReader(io.StringIO(text)))
    return list(json.loads(text)) if form == "json" else [json.loads(x) for x in text.splitlines()]


@pytest.mark.parametrize("form", ["csv", "json", "ndjson"])
def test_export(cli: Cli, data: Path, home: Path, used: Campaign, form: str) -> None:
    words = ["export", "--data-dir", data, "--format", form, "--attribute", "fuel"]
    text = cli(*words).stdout
    rows = parsed(text, form)
    assert [tuple(row) for row in rows] == [COLUMNS] * 8  # four values, pooled and one round
    assert cli(*words, "--output", home / "out").stdout == ""
    assert (home / "out").read_text() == text


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("x.csv", "campaign,attribute"),
        ("x.JSON", "[\n"),
        ("x.ndjson", '{"campaign"'),
        ("x.jsonl", '{"campaign"'),
        ("x", "campaign,attribute"),
    ],
)
def test_the_extension_of_a_file_selects_its_format(
    cli: Cli, data: Path, home: Path, used: Campaign, name: str, begins: str
) -> None:
    words = ("export", "--data-dir", data, "--output", home / name)
    assert cli(*words).exit_code == 0
    assert (home / name).read_text().startswith(begins)
    assert cli(*words, "--format", "csv").exit_code == 0
    assert (home / name).read_text().startswith("campaign,attribute"), "--format takes precedence"


def test_export_refuses_what_it_cannot_write(
    cli: Cli, data: Path, home: Path, used: Campaign
) -> None:
    words = ("export", "--data-dir", data, "--output")
    for name in ("heat.xlsx", "heat.csv.gz", "heat.2027"):
        error = mistaken(cli, 2, *words, home / name)
        assert "nothing was written" in error
        assert "End its name in .csv, .json, .ndjson, .jsonl or .parquet, or name the" in error
    error = mistaken(cli, 2, *words, home / "x.svg")
    assert f"Draw them with --figure {home / 'x.svg'}" in error
    assert not list(home.glob("heat.[xc2]*")) + list(home.glob("*.svg"))
    error = mistaken(cli, 2, *words, data / "no" / "such.csv")
    assert "cannot be written: No such file or directory" in error
    assert "Name a file" in mistaken(cli, 2, *words[:3], "--format", "parquet")


# --- all three ------------------------------------------------------------------------------------


def test_reading_changes_nothing(cli: Cli, data: Path, used: Campaign) -> None:
    before = (data / "collector.db").read_bytes()
    for command in ("status", "estimate", "export"):
        assert cli(command, "--data-dir", data).exit_code == 0
    assert (data / "collector.db").read_bytes() == before


@pytest.mark.parametrize("command", ["status", "estimate", "export", "seal", "close"])
def test_mistakes_in_what_is_read(
    cli: Cli, home: Path, data: Path, used: Campaign, command: str
) -> None:
    error = mistaken(cli, 1, command, "nosuch", "--data-dir", data)
    assert f"unknown campaign 'nosuch'; known campaigns: {used.name}" in error
    assert "open a campaign first" in mistaken(cli, 1, command, "--data-dir", home / "nosuch")
    assert not (home / "nosuch").exists()
    (data / "collector.db").write_bytes(b"somebody's letters, not a database" * 99)
    assert "cannot be used" in mistaken(cli, 1, command, "--data-dir", data)


@pytest.mark.parametrize("command", ["estimate", "export"])
def test_an_unknown_attribute_or_round(cli: Cli, data: Path, used: Campaign, command: str) -> None:
    error = mistaken(cli, 1, command, "--data-dir", data, "--attribute", "fule")
    assert "unknown attribute 'fule'; the campaign has: fuel, town, colour" in error
    for number in ("-1", "first", "1000", "9" * 5000, "1.5", "²"):
        error = mistaken(cli, 1, command, "--data-dir", data, f"--round={number}")
        assert "give a number below 1000, latest, pooled or all" in error


@pytest.mark.parametrize("as_json", [False, True])
def test_watching_prints_facts_again_only_when_they_change(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, waited = iter([{"n": 1}, {"n": 1}, {"n": 2}, {"n": 2}, {"n": 1}]), list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 5:
            raise KeyboardInterrupt  # which is how Ctrl-C arrives

    watched(lambda: next(seen), as_json, lambda facts: f"n is {facts['n']}", wait)
    lines = capsys.readouterr().out.splitlines()
    assert waited == [EVERY_SECONDS] * 5
    if as_json:
        assert [json.loads(line)["n"] for line in lines] == [1, 2, 1]
    else:
        assert [line for line in lines if line.startswith("n is")] == ["n is 1", "n is 2", "n is 1"]
        assert sum(line.endswith("UTC; Ctrl-C ends") for line in lines) == 3
