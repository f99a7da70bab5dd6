"""`status`, `estimate` and `export` show what was counted and change nothing."""

from __future__ import annotations

import csv
import io
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collector.data_dir import open_store
from collector.records import Campaign
from collector.show.tables import COLUMNS
from tests.support.collector_cli import mistaken
from tests.support.collector_fakes import HOUR, candidate, seal, three_questions
from tests.support.command_line import Cli, facts_of


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


def test_status_before_the_first_round(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        store.open_campaign(three_questions(first=int(time.time()) + HOUR), 0)
    shown = cli("status", "--data-dir", data)
    assert shown.exit_code == 0
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
    assert "the smallest difference this can show" in text.stdout


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


def test_results_before_the_first_sealing(cli: Cli, data: Path, file: Path) -> None:
    cli("open", file, "--data-dir", data)
    told = mistaken(cli, 1, "estimate", "--data-dir", data)
    assert "no round is sealed yet" in told


def test_an_output_that_cannot_be_written(cli: Cli, data: Path, used: Campaign) -> None:
    told = mistaken(cli, 2, "export", "--data-dir", data, "--output", data / "no" / "such.csv")
    assert "cannot be written: No such file or directory" in told
