"""Rows with fixed columns: the same in every format, empty where withheld, harmless to open."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from collector.records import Campaign, Tally
from collector.results.tables import COLUMNS, rows, write
from collector.rounds.results import pooled_result, round_result, summary
from protocol_spec import Outcome, Result
from tests.support.collector_fakes import COLOUR, FIRST, FUEL, random_counts, three_questions
from tests.support.results import ROOM, SHARES, made_result, round_estimate
from tests.support.results import rooms as rooms_of

CAMPAIGN = Campaign(1, three_questions(min_reports=50), FIRST, None)
OUTCOMES = {Outcome.ACCEPTED: 90, Outcome.DUPLICATE: 3}
NUMBERS = (
    *("count", "raw", "projected", "privacy_error", "sampling_error"),
    *("low", "high", "low_all", "high_all", "device_bound"),
)


def tally(campaign: Campaign, attribute: int, n: int) -> Tally:
    _, counts = random_counts(campaign.manifest.body_formats[attribute], n, seed=n)
    return Tally(n, counts)


def results() -> list[Result]:
    """Shown, withheld, and pooled."""
    return [
        round_result(CAMPAIGN, 0, FUEL, tally(CAMPAIGN, FUEL, 90), OUTCOMES),
        round_result(CAMPAIGN, 1, FUEL, tally(CAMPAIGN, FUEL, 49), OUTCOMES),
        pooled_result(CAMPAIGN, COLOUR, 2, tally(CAMPAIGN, COLOUR, 180), ([2], [90]), OUTCOMES),
    ]


def named(*values: str) -> Campaign:
    listed = ", ".join(json.dumps(value) for value in values)
    attributes = f'[[attributes]]\nname = "a"\nquestion = "?"\nvalues = [{listed}]\n'
    return Campaign(1, three_questions(attributes=attributes), FIRST, None)


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_columns_are_a_promise() -> None:
    """A column is only ever added at the end."""
    assert (
        *("campaign", "digest", "attribute", "round", "rounds", "value", "protocol", "n"),
        *("devices", "min_reports", "withheld", "count", "raw", "projected", "privacy_error"),
        *("sampling_error", "confidence", "low", "high", "low_all", "high_all", "device_bound"),
        *("reporting", "first", "last", "n_eff", "difference_pair", "difference_tallest"),
        *("cdf", "cdf_low", "cdf_high", "mean", "mean_low", "mean_high", "mean_bias"),
        *("median", "median_low", "median_high"),
        *("opens", "closes", "bin_low", "bin_high", "unit"),
    ) == COLUMNS
    assert all(tuple(row) == COLUMNS for row in rows(CAMPAIGN, results()))
    assert write(CAMPAIGN, [], "csv") == ",".join(COLUMNS) + "\n"


def test_every_value_has_a_row_in_the_manifests_order() -> None:
    shown = [(row["attribute"], row["round"], row["value"]) for row in rows(CAMPAIGN, results())]
    fuels = ["wood", "gas", "oil", "pump"]
    expected: list[tuple[str, int | None, str]] = [("fuel", n, v) for n in (0, 1) for v in fuels]
    assert shown == expected + [("colour", None, f"c{i}") for i in range(11)]


def test_numbers_are_the_results_own() -> None:
    (shown, _, _) = results()
    for i, row in enumerate(map(dict, rows(CAMPAIGN, [shown]))):
        assert row["count"] == shown.counts[i]
        for name in NUMBERS[1:-1]:
            assert row[name] == getattr(shown, name)[i]
        assert row["device_bound"] == shown.device_bound > 0
        assert (row["n"], row["devices"], row["min_reports"]) == (90, 90, 50)
        assert (row["digest"], row["confidence"]) == (CAMPAIGN.manifest.digest.hex(), 0.95)


def test_a_numeric_attribute_has_its_numbers_in_every_row() -> None:
    manifest = rooms_of("once")
    made, counts = round_estimate(manifest.ways[ROOM], 900, SHARES[ROOM])
    result = made_result(manifest, ROOM, made, counts, n=900, rounds=(3, 9))
    table = list(rows(Campaign(1, manifest, 0, None), [result]))
    numbers = result.numbers
    assert numbers is not None
    assert result.difference is not None
    assert [row["cdf"] for row in table] == [*numbers.cdf, None]
    assert [row["cdf_high"] for row in table] == [*numbers.cdf_high, None]
    for row in table:
        assert (row["reporting"], row["first"], row["last"], row["n_eff"]) == ("once", 3, 9, 900.0)
        assert (row["mean"], row["mean_bias"]) == (numbers.mean, numbers.mean_bias)
        assert row["median"] == numbers.quantiles[2].value
        assert row["difference_tallest"] == result.difference.tallest


def test_a_row_says_when_its_rounds_were() -> None:
    shown, withheld, pooled = (list(rows(CAMPAIGN, [r])) for r in results())
    begins = datetime.fromtimestamp(FIRST, UTC)
    hour = timedelta(seconds=CAMPAIGN.manifest.rounds.period)
    for table, first, last in ((shown, 0, 0), (withheld, 1, 1), (pooled, 0, 1)):
        for row in table:
            assert datetime.fromisoformat(row["opens"] or "") == begins + first * hour
            assert datetime.fromisoformat(row["closes"] or "") == begins + (last + 1) * hour


def test_a_row_of_a_numeric_attribute_says_where_its_bin_ends() -> None:
    campaign = Campaign(1, rooms_of("once"), 0, None)
    made, counts = round_estimate(campaign.manifest.ways[ROOM], 900, SHARES[ROOM])
    result = made_result(campaign.manifest, ROOM, made, counts, n=900, rounds=(3, 9))
    table = [(row["value"], row["bin_low"], row["bin_high"]) for row in rows(campaign, [result])]
    assert table[:2] == [("< 16 °C", None, 16.0), ("16 to 18 °C", 16.0, 18.0)]
    assert table[5] == ("≥ 24 °C", 24.0, None)
    assert {row["unit"] for row in rows(campaign, [result])} == {"°C"}
    assert {row["bin_low"] for row in rows(CAMPAIGN, results())} == {None}


def test_all_formats_say_the_same() -> None:
    table = list(rows(CAMPAIGN, results()))
    as_json: list[dict[str, Any]] = json.loads(write(CAMPAIGN, results(), "json"))
    lines = write(CAMPAIGN, results(), "ndjson").splitlines()
    assert as_json == [json.loads(line) for line in lines] == table
    for row, cells in zip(table, read_csv(write(CAMPAIGN, results(), "csv")), strict=True):
        assert cells == {name: cell(value) for name, value in row.items()}


def cell(value: object) -> str:
    """How a value is written in CSV: floats in full, nothing where there is nothing."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_withheld_rows_say_how_many_came_and_nothing_more(form: Any) -> None:
    withheld = results()[1]
    text = write(CAMPAIGN, [withheld], form)
    parsed: list[dict[str, Any]] = read_csv(text) if form == "csv" else json.loads(text)
    assert len(parsed) == 4
    for row in parsed:
        assert [row[name] for name in NUMBERS] == [("" if form == "csv" else None)] * 10
        assert (int(row["n"]), int(row["min_reports"])) == (49, 50)
        assert row["withheld"] in (True, "true")


RISKY = [
    '=HYPERLINK("http://evil.example")',
    "+1+cmd|' /C calc'!A0",
    "-1+cmd|' /C calc'!A0",
    "-1-SUM(A1:A9)",
    "-x",
    "@SUM(1)",
    "=1+1",
]
HARMLESS = ["-10 to 0 °C", "-5", "-0.5 to 1", "wood", "1+1", "a=b", "100 %", "≥ 60 °C"]


@pytest.mark.parametrize("name", RISKY)
def test_a_name_like_a_formula_is_not_one_in_a_spreadsheet(name: str) -> None:
    campaign = named(name, "other")
    shown = [round_result(campaign, 0, 0, tally(campaign, 0, 90), OUTCOMES)]
    (first, _) = read_csv(write(campaign, shown, "csv"))
    assert first["value"] == "'" + name
    assert json.loads(write(campaign, shown, "json"))[0]["value"] == name


@pytest.mark.parametrize("name", HARMLESS)
def test_an_ordinary_name_stays_as_it_is(name: str) -> None:
    campaign = named(name, "other")
    shown = [round_result(campaign, 0, 0, tally(campaign, 0, 90), OUTCOMES)]
    assert read_csv(write(campaign, shown, "csv"))[0]["value"] == name


def test_negative_estimates_stay_numbers() -> None:
    campaign = named("a", "b", "c", "d", "e", "f")
    _, counts = random_counts(campaign.manifest.body_formats[0], 90, seed=0)
    counts[:] = [90, 0, 0, 0, 0, 0]
    shown = [round_result(campaign, 0, 0, Tally(90, counts), OUTCOMES)]
    cells = read_csv(write(campaign, shown, "csv"))
    assert float(cells[1]["raw"]) == shown[0].raw[1] < 0


def test_commas_quotes_and_other_scripts_survive() -> None:
    names = ['with "quotes", and comma', "grün", "木"]
    campaign = named(*names)
    shown = [round_result(campaign, 0, 0, tally(campaign, 0, 90), OUTCOMES)]
    assert [row["value"] for row in read_csv(write(campaign, shown, "csv"))] == names
    assert "木" in write(campaign, shown, "ndjson")


def test_a_summary_is_one_line_with_all_of_it() -> None:
    for result in results():
        line = json.dumps(summary(CAMPAIGN, result))
        told = json.loads(line)
        assert (told["n"], told["withheld"]) == (result.n, result.withheld)
        assert told["outcomes"] == {"accepted": 90, "duplicate": 3}
        assert len(told["histogram"]) == (0 if result.withheld else told["values"])
        assert [v["raw"] for v in told["histogram"]] == list(result.raw)
