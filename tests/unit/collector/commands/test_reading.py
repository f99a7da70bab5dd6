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
from collector.results.tables import COLUMNS
from tests.support.collector import HOUR, candidate, seal, three_questions
from tests.support.command_line import Cli, facts_of, mistaken
from tests.support.pages import rooms, store_windows


def test_status(cli: Cli, data: Path, used: Campaign) -> None:
    told = facts_of(cli("status", "--data-dir", data, "--json"))
    (campaign,) = told["campaigns"]
    assert (told["received"], told["healthy"]) == (180, False)
    assert (campaign["open"], campaign["round"], campaign["sealed"]) == (True, 2, 1)
    assert campaign["filling"] == [
        {"round": 1, "reports": {"fuel": 30, "town": 30, "colour": 30}, "enough": 1}
    ]
    assert campaign["outcomes"] == {"accepted": 180}
    text = cli("status", "heat", "--data-dir", data)
    assert text.exit_code == 0
    assert "round 2 of 1000; 1 sealed" in text.stdout
    assert "counted in its round" in text.stdout


def test_status_names_who_floods_and_counts_requests(cli: Cli, data: Path, used: Campaign) -> None:
    """A2, A8: with the next step."""
    with closing(open_store(data)) as store:
        store.withdraw([(used.id, 1)], repeated=3, invalid=2)
    Heartbeat(data).beat(Status(suspended=21, suspended_names=["kitchen-7", "d" * 32]))
    told = facts_of(cli("status", "--data-dir", data, "--json"))
    assert told["requests"] == {"done": 1, "repeated": 3, "invalid": 2}
    assert (told["suspended"], told["suspended_names"]) == (21, ["kitchen-7", "d" * 32])
    text = cli("status", "--data-dir", data).stdout
    assert "requests to be forgotten: 1 done, 2 invalid, 3 repeated" in text
    assert "kitchen-7 floods and is suspended until it stops; other devices are counted." in text
    assert f"If it continues: allomfree-collector revoke --data-dir {data} kitchen-7" in text


def test_status_before_the_first_round(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        store.open_campaign(three_questions(first=int(time.time()) + HOUR), 0)
    shown = cli("status", "--data-dir", data)
    assert shown.exit_code == 0
    assert "(not begun): " in shown.stdout
    assert "no round now" in shown.stdout
    assert "None" not in shown.stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [("fuel", None), ("town", None), ("colour", None)]),
        (["--round", "latest", "--attribute", "fuel"], [("fuel", 0)]),
        (["--round", "0", "--attribute", "colour"], [("colour", 0)]),
        (["--round", "1", "--attribute", "fuel"], [("fuel", 1)]),
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
    told = facts_of(cli("estimate", "--data-dir", data, *options, "--json"))
    assert [(r["attribute"], r["round"]) for r in told] == expected
    assert all(len(r["histogram"]) > 1 and r["n"] == 30 for r in told)
    text = cli("estimate", "--data-dir", data, *options)
    assert text.exit_code == 0
    assert "95 % interval" in text.stdout
    assert "no two values can be distinguished" in text.stdout  # thirty reports
    assert all(r["difference"]["pair"] == r["smallest_visible"] > 1 for r in told)
    assert all(r["difference"]["tallest"] > r["difference"]["pair"] for r in told)


def test_estimate_below_min_reports(cli: Cli, data: Path, home: Path) -> None:
    with closing(open_store(data)) as store:
        first = int(time.time()) - 3 * HOUR
        campaign = store.open_campaign(three_questions(first=first, min_reports=200), 0)
        store.commit([candidate(campaign, d) for d in range(37)], [])
        seal(store, campaign, 0)
    text = cli("estimate", "--data-dir", data, "--round", 0, "--attribute", "fuel")
    assert "not enough reports: 37 of 200; withheld" in text.stdout
    told = facts_of(cli("estimate", "--data-dir", data, "--round", 0, "--json"))
    assert [(r["withheld"], r["histogram"]) for r in told] == [(True, [])] * 3


def parsed(text: str, form: str) -> list[dict[str, Any]]:
    if form == "csv":
        return list(csv.DictReader(io.StringIO(text)))
    lines = [text] if form == "json" else text.splitlines()
    read_lines = [json.loads(line) for line in lines]
    return list(read_lines[0]) if form == "json" else read_lines


@pytest.mark.parametrize("form", ["csv", "json", "ndjson"])
def test_export(cli: Cli, data: Path, home: Path, used: Campaign, form: str) -> None:
    words = ["export", "--data-dir", data, "--format", form, "--attribute", "fuel"]
    shown = cli(*words)
    assert shown.exit_code == 0
    table = parsed(shown.stdout, form)
    assert [tuple(row) for row in table] == [COLUMNS] * 8  # four values, pooled and one round
    wrote = cli(*words, "--output", home / "out")
    assert (wrote.exit_code, wrote.stdout) == (0, "")
    assert (home / "out").read_text() == shown.stdout


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("x.csv", "campaign,digest"),
        ("x.JSON", "[\n"),
        ("x.ndjson", '{"campaign"'),
        ("x", "campaign,"),
        ("x.jsonl", '{"campaign"'),
        ("x", "campaign,digest"),
    ],
)
def test_the_ending_of_a_file_says_its_format(
    cli: Cli, data: Path, home: Path, used: Campaign, name: str, begins: str
) -> None:
    words = ("export", "--data-dir", data, "--output", home / name)
    assert cli(*words).exit_code == 0
    assert (home / name).read_text().startswith(begins)
    assert cli(*words, "--format", "csv").exit_code == 0
    assert (home / name).read_text().startswith("campaign,digest"), "unless it was named"


def test_rows_are_no_picture_and_parquet_is_no_text(
    cli: Cli, data: Path, home: Path, used: Campaign
) -> None:
    told = mistaken(cli, 2, "export", "--data-dir", data, "--output", home / "x.svg")
    assert f"Draw them with --figure {home / 'x.svg'}" in told
    assert "Name a file" in mistaken(cli, 2, "export", "--data-dir", data, "--format", "parquet")
    assert not (home / "x.svg").exists()


def test_a_finished_campaign(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        made = store.open_campaign(three_questions(count=1), 0)
        store.commit([candidate(made, 1)], [])
        seal(store, made, 0)
    shown = cli("status", "--data-dir", data).stdout
    assert f"{made.name} (finished): A test\n  all rounds are sealed: 1\n" in shown
    assert facts_of(cli("status", "--data-dir", data, "--json"))["campaigns"][0]["state"] == (
        "finished"
    )


def test_reading_changes_nothing(cli: Cli, data: Path, used: Campaign) -> None:
    before = (data / "collector.db").read_bytes()
    for command in ("status", "estimate", "export"):
        assert cli(command, "--data-dir", data).exit_code == 0
    assert (data / "collector.db").read_bytes() == before


@pytest.mark.parametrize("command", ["status", "estimate", "export"])
def test_no_data_at_all(cli: Cli, data: Path, command: str) -> None:
    told = mistaken(cli, 1, command, "--data-dir", data)
    assert "open a campaign first" in told
    assert not data.exists()


@pytest.mark.parametrize("command", ["status", "estimate", "export", "seal", "close"])
def test_a_file_that_is_not_a_database(cli: Cli, data: Path, command: str) -> None:
    data.mkdir(mode=0o700)
    (data / "collector.db").write_bytes(b"somebody's letters, not a database" * 99)
    assert "cannot be used" in mistaken(cli, 1, command, "--data-dir", data)


@pytest.mark.parametrize("command", ["status", "estimate", "export", "seal", "close"])
def test_an_unknown_campaign(cli: Cli, data: Path, used: Campaign, command: str) -> None:
    told = mistaken(cli, 1, command, "nosuch", "--data-dir", data)
    assert f"unknown campaign 'nosuch'; known campaigns: {used.name}" in told


@pytest.mark.parametrize("command", ["estimate", "export"])
def test_an_unknown_attribute(cli: Cli, data: Path, used: Campaign, command: str) -> None:
    told = mistaken(cli, 1, command, "--data-dir", data, "--attribute", "fule")
    assert "unknown attribute 'fule'; the campaign has: fuel, town, colour" in told


@pytest.mark.parametrize("command", ["estimate", "export"])
@pytest.mark.parametrize("number", ["-1", "first", "1000", "9" * 20, "9" * 5000, "1.5", "²"])
def test_an_unknown_round(cli: Cli, data: Path, used: Campaign, command: str, number: str) -> None:
    told = mistaken(cli, 1, command, "--data-dir", data, f"--round={number}")
    assert "give a number below 1000, latest, pooled or all" in told


def test_a_round_without_reports(cli: Cli, data: Path, used: Campaign) -> None:
    told = mistaken(cli, 1, "estimate", "--data-dir", data, "--round", 500)
    assert "round 500 has no reports; see allomfree-collector status" in told


def test_an_output_that_cannot_be_written(cli: Cli, data: Path, used: Campaign) -> None:
    told = mistaken(cli, 2, "export", "--data-dir", data, "--output", data / "no" / "such.csv")
    assert "cannot be written: No such file or directory" in told


@pytest.mark.parametrize("number", ["pooled", "0", "1", "all"])
def test_estimate_compares_two_values(cli: Cli, data: Path, used: Campaign, number: str) -> None:
    words = ("estimate", "--data-dir", data, "--round", number, "--compare", "gas", "oil")
    told = facts_of(cli(*words, "--json"))
    shown = facts_of(cli("estimate", "--data-dir", data, "--round", number, "--json"))
    fuel = [r for r in shown if r["attribute"] == "fuel"]
    assert [c["round"] for c in told] == [r["round"] for r in fuel]
    for found, result in zip(told, fuel):
        raw = {row["value"]: row["raw"] for row in result["histogram"]}
        assert found["difference"] == pytest.approx(raw["gas"] - raw["oil"])
        assert found["answer"] == "not shown"
        assert found["low"] < found["difference"] < found["high"]
    text = cli(*words).stdout
    if len(told) == 1:
        assert "is gas above oil? not shown: gas and oil may be equally frequent" in text
        assert f"difference {100 * told[0]['difference']:.1f} points, 95 % interval" in text
    assert "town" not in text


def test_comparisons_of_several_rounds_are_columns(cli: Cli, data: Path, used: Campaign) -> None:
    words = ("estimate", "--data-dir", data, "--round", "all", "--compare", "gas", "oil")
    told = facts_of(cli(*words, "--json"))
    head, asked, columns, *rows, note = cli(*words).stdout.splitlines()
    assert head == "fuel: What heats your home?"
    assert asked == "  is gas above oil? gas minus oil, in points"
    assert len(rows) == len(told) == 2
    for name in ("reports", "difference", "answer", "if picked"):
        assert columns.index(name) > 0
    for row, found in zip(rows, told):
        assert row[: columns.index("reports")].strip() in ("1 round", "round 0")
        end = columns.index("difference") + len("difference")
        assert float(row[:end].split()[-1]) == round(100 * found["difference"], 1)
        assert row[columns.index("answer") :].split("  ")[0] == "not shown"
        assert row[columns.index("if picked") :] == "not shown"
    assert note.startswith("  if picked: ")


def test_estimate_says_numbers_windows_and_the_way(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        store_windows(store, store.open_campaign(rooms("once"), 0))
    text = cli("estimate", "--data-dir", data, "--attribute", "room").stdout
    assert "rounds 0 to 4, 130 reports of 130 devices, GRR, once" in text
    (told,) = facts_of(cli("estimate", "--data-dir", data, "--attribute", "room", "--json"))
    numbers, middle = told["numbers"], told["numbers"]["quantiles"][2]
    assert f"mean {numbers['mean']:.4g} °C   {numbers['mean_low']:.4g} …" in text
    assert f"median {middle['value']:.4g} °C   {middle['low']:g} … {middle['high']:g}" in text
    assert numbers["edges"] == [16, 18, 20, 22, 24]
    assert (told["first"], told["last"], told["n_eff"], told["warnings"]) == (0, 4, 130, [])
    fills = cli("estimate", "--data-dir", data, "--round", "3", "--attribute", "room").stdout
    assert "rounds 2 to 3, 40 reports of 40 devices, GRR, once" in fills
    assert "not enough reports: 40 of 50; withheld" in fills


def test_estimate_warns_of_values_that_change(cli: Cli, data: Path) -> None:
    edges = '[[attributes]]\nname = "t"\nquestion = "?"\nedges = [0, 1, 2]\n'
    with closing(open_store(data)) as store:
        campaign = store.open_campaign(three_questions(attributes=edges), 0)
        store.commit([candidate(campaign, d) for d in range(9)], [])
        seal(store, campaign, 0)
    assert 'choose reporting = "once"' in cli("estimate", "--data-dir", data).stdout
    (told,) = facts_of(cli("estimate", "--data-dir", data, "--json"))
    assert told["warnings"][0].startswith("t may change over time")


@pytest.mark.parametrize("name", ["heat.xlsx", "heat.txt", "heat.csv.gz", "heat.2027"])
def test_an_ending_that_is_no_format(
    cli: Cli, home: Path, data: Path, used: Campaign, name: str
) -> None:
    words = ("export", "--output", home / name, "--data-dir", data)
    told = mistaken(cli, 2, *words)
    assert "nothing was written" in told
    assert "End its name in .csv, .json, .ndjson, .jsonl or .parquet, or name the --format" in told
    assert not (home / name).exists()
    assert cli(*words, "--format", "csv").exit_code == 0
    assert (home / name).read_text().startswith("campaign,")


# --- Facts are shown again when they change, and only then.


@pytest.mark.parametrize("as_json", [False, True])
def test_what_did_not_change_is_not_said_again(
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
