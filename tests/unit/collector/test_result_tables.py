"""Is A above B? What a result says is enough to answer exactly, in every way of reporting."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.data_dir import open_shared, open_store
from collector.errors import MissingPackage, UnknownCampaign, UnreadableResults
from collector.records import Campaign, Tally
from collector.results import Results
from collector.results.estimates import Seen, compare, estimate_of, most_interesting
from collector.results.tables import COLUMNS, Format, content, rows
from collector.rounds.results import pooled_result, round_result
from collector.web.live import Limits
from protocol_spec import Manifest, Outcome, Result
from protocol_spec.estimation import Estimate, difference, estimate_window
from tests.support.collector import COLOUR, FIRST, FUEL, random_counts, three_questions
from tests.support.command_line import Cli, mistaken, printed
from tests.support.databases import new_schema
from tests.support.pages import FUEL as NAMED
from tests.support.pages import (
    ROOM,
    SHARES,
    Site,
    filled,
    made_result,
    pooled_estimate,
    rooms,
    round_estimate,
    serving,
    store_windows,
    withheld,
)
from tests.support.pages import rooms as rooms_of

UNEQUAL = ([1, 3, 40], [300, 200, 25])


def of_round(manifest: Manifest, index: int, n: int = 800) -> tuple[Estimate, Result]:
    made, counts = round_estimate(manifest.mechanisms[index], n, SHARES[index])
    return made, made_result(manifest, index, made, counts, n=n)


def of_pooled(manifest: Manifest, index: int) -> tuple[Estimate, Result]:
    made, counts = pooled_estimate(manifest.mechanisms[index], UNEQUAL, SHARES[index])
    n = int(np.dot(*UNEQUAL))
    options = {"n": n, "devices": 525, "rounds": (0, 39), "pooled": True}
    return made, made_result(manifest, index, made, counts, **options)  # type: ignore[arg-type]


def assert_same(found: Estimate, made: Estimate) -> None:
    """In all that sums over bars need."""
    assert found.raw.tolist() == made.raw.tolist()
    assert found.sums_to_one == made.sums_to_one
    for name in ("v0", "slope", "base", "base_slope", "n_eff", "dilution"):
        expected = getattr(made.moments, name)
        assert getattr(found.moments, name) == pytest.approx(expected, rel=1e-9, abs=1e-15), name


@pytest.mark.parametrize("index", [ROOM, NAMED])
@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_the_estimate_of_a_round_comes_back(reporting: str, index: int) -> None:
    manifest = rooms(reporting)
    made, result = of_round(manifest, index)
    assert_same(estimate_of(manifest, result), made)


@pytest.mark.parametrize("index", [ROOM, NAMED])
@pytest.mark.parametrize("reporting", ["memoized", "hashed"])
def test_the_estimate_of_pooled_rounds_comes_back(reporting: str, index: int) -> None:
    """Devices that reported very unequally, whose numbers of reports the result does not hold."""
    manifest = rooms(reporting)
    made, result = of_pooled(manifest, index)
    assert_same(estimate_of(manifest, result), made)


def test_a_unary_protocol_comes_back_too() -> None:
    """Thirty values: L-OSUE, OUE."""
    for reporting in ("memoized", "nested", "once"):
        asked = rooms(reporting)
        many = replace(
            asked.attributes[NAMED], values=tuple(f"v{i}" for i in range(300)), levels=()
        )
        if reporting == "nested":
            many = replace(many, levels=asked.attributes[NAMED].levels)
        manifest = replace(asked, attributes=(many,))
        shares = [0.3, 0.2, *[0.5 / 298] * 298]
        made, counts = round_estimate(manifest.mechanisms[0], 5000, shares)
        assert not made.sums_to_one
        assert_same(estimate_of(manifest, made_result(manifest, 0, made, counts, n=5000)), made)


def test_a_window_with_several_answers_of_a_device() -> None:
    manifest = rooms("once")
    channel = manifest.mechanisms[NAMED].channels[0]
    _, counts = round_estimate(manifest.mechanisms[NAMED], 600, SHARES[NAMED])
    table = np.stack([counts, np.zeros_like(counts)])
    made = estimate_window(table, [600, 0], channel, each=2)
    result = made_result(manifest, NAMED, made, counts, n=600, rounds=(3, 4))
    assert_same(estimate_of(manifest, result), made)
    assert result.n_eff == pytest.approx(300)


def test_the_answer_with_its_interval() -> None:
    manifest = rooms("memoized")
    made, result = of_pooled(manifest, NAMED)
    found = compare(manifest, result, "gas", "oil")
    expected = difference(made, 0, 3)
    assert found["difference"] == pytest.approx(expected.value)
    assert (found["low"], found["high"]) == pytest.approx(expected.interval())
    assert found["half_width_all"] == pytest.approx(
        expected.half_width(comparisons=math.comb(5, 2))
    )
    assert (found["answer"], found["answer_all"]) == ("above", "above")
    assert compare(manifest, result, "oil", "gas")["answer"] == "below"
    back = compare(manifest, result, "oil", "gas")
    assert back["difference"] == pytest.approx(-(found["difference"] or 0.0))


def test_what_a_pair_named_beforehand_shows_may_not_hold_for_all_pairs() -> None:
    manifest = rooms("memoized")
    made, result = of_round(manifest, NAMED, 800)
    apart = difference(made, 0, 3).standard_error() * 2.3  # between z of 1 and of 10 comparisons
    raw = list(result.raw)
    raw[0] = raw[3] + apart
    found = compare(manifest, replace(result, raw=tuple(raw)), "gas", "oil")
    assert (found["answer"], found["answer_all"]) == ("above", "not shown")


def test_a_withheld_result_answers_nothing() -> None:
    manifest = rooms("once")
    found = compare(manifest, withheld(manifest, NAMED, 20, (0, 1)), "gas", "oil")
    assert (found["answer"], found["difference"], found["low"]) == ("withheld", None, None)
    with pytest.raises(ValueError, match="withheld"):
        estimate_of(manifest, withheld(manifest, NAMED, 20, (0, 1)))


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        (("gas", "coal"), "unknown value 'coal'; the attribute has: 'gas', 'heat pump'"),
        (("gas", "gas"), "'gas' is compared with itself; name two values"),
    ],
)
def test_mistakes_are_named(pair: tuple[str, str], told: str) -> None:
    manifest = rooms("memoized")
    with pytest.raises(UnknownCampaign) as refused:
        compare(manifest, of_round(manifest, NAMED)[1], *pair)
    assert told in str(refused.value)


# --- Over time the page begins with what changed beyond chance, else with the most frequent value.


CAMPAIGN = Campaign(1, three_questions(min_reports=50), FIRST, None)


def made(number: int, n: int = 500) -> Result:
    _, counts = random_counts(CAMPAIGN.manifest.body_formats[FUEL], n, seed=number)
    return round_result(CAMPAIGN, number, FUEL, Tally(n, counts), {})


def told(number: int, *raw: float, error: float = 0.01) -> Result:
    errors = (error,) * len(raw)
    zero = (0.0,) * len(raw)
    return replace(made(number), raw=raw, privacy_error=errors, sampling_error=zero)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        (
            [told(3, 0.1, 0.5, 0.4), told(4, 0.3, 0.4, 0.3), told(5, 0.4, 0.3, 0.3)],
            (0, (Seen(3, 0.1), Seen(5, 0.4))),
        ),
        ([told(0, 0.1, 0.9), told(1, 0.2, 0.3)], (1, (Seen(0, 0.9), Seen(1, 0.3)))),
    ],
    ids=["rise", "fall"],
)
def test_the_largest_change_beyond_chance(rounds: list[Result], expected: object) -> None:
    found = most_interesting(rounds, None)
    assert found is not None
    assert (found.place, found.change) == expected


def test_a_change_must_be_beyond_chance_for_every_value_and_pair_of_rounds() -> None:
    """With two values and two rounds the critical value is that of 95 % over two comparisons."""
    apart = 2.2414027 * 0.01 * 2**0.5  # the normal quantile of 1 - 0.05 / 4
    for factor, changed in ((0.999, False), (1.001, True)):
        found = most_interesting([told(0, 0.2, 0.8), told(1, 0.2 + factor * apart, 0.8)], None)
        assert found is not None
        assert (found.change is not None) is changed
    many = [told(i, 0.2, 0.8) for i in range(30)]
    found = most_interesting([*many, told(30, 0.2 + 1.001 * apart, 0.8)], None)
    assert found is not None
    assert found.change is None, "among so many pairs that is chance"


def test_without_a_change_it_is_the_most_frequent_of_the_pooled_result() -> None:
    _, counts = random_counts(CAMPAIGN.manifest.body_formats[FUEL], 1000, seed=1)
    pooled = pooled_result(CAMPAIGN, FUEL, 2, Tally(1000, counts), ([2], [500]), {})
    pooled = replace(pooled, raw=(0.1, 0.2, 0.6, 0.1))
    wide = [told(i, 0.4, 0.3, 0.2, 0.1, error=0.5) for i in range(2)]
    found = most_interesting(wide, pooled)
    assert found is not None
    assert (found.place, found.change) == (2, None)
    found = most_interesting(wide, None)
    assert found is not None
    assert found.place == 0, "of the latest round, where nothing is pooled"


@pytest.mark.parametrize("rounds", [[], [made(0, n=20)]])
def test_nothing_where_everything_is_withheld(rounds: list[Result]) -> None:
    assert most_interesting(rounds, None) is None


# --- Rows with fixed columns: the same in every format, empty where withheld, harmless to open.


OUTCOMES = {Outcome.ACCEPTED: 90, Outcome.DUPLICATE: 3}
NUMBERS = (
    *("count", "raw", "projected", "privacy_error", "sampling_error"),
    *("low", "high", "low_all", "high_all", "device_bound"),
)


def tally(campaign: Campaign, attribute: int, n: int) -> Tally:
    _, counts = random_counts(campaign.manifest.body_formats[attribute], n, seed=n)
    return Tally(n, counts)


def write(campaign: Campaign, found: list[Result], form: Format) -> str:
    return content(campaign, found, form).decode()


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
    made, counts = round_estimate(manifest.mechanisms[ROOM], 900, SHARES[ROOM])
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
    made, counts = round_estimate(campaign.manifest.mechanisms[ROOM], 900, SHARES[ROOM])
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


FORMULAS = [
    '=HYPERLINK("http://evil.example")',
    "+1+cmd|' /C calc'!A0",
    "-1-SUM(A1:A9)",
    "-x",
    "@SUM(1)",
]
HARMLESS = ["-10 to 0 °C", "-5", "-0.5 to 1", "1+1", "a=b", "100 %", "≥ 60 °C"]


@pytest.mark.parametrize(
    ("name", "in_csv"), [*((n, "'" + n) for n in FORMULAS), *((n, n) for n in HARMLESS)]
)
def test_only_a_name_like_a_formula_is_quoted_for_spreadsheets(name: str, in_csv: str) -> None:
    campaign = named(name, "other")
    shown = [round_result(campaign, 0, 0, tally(campaign, 0, 90), OUTCOMES)]
    assert read_csv(write(campaign, shown, "csv"))[0]["value"] == in_csv
    assert json.loads(write(campaign, shown, "json"))[0]["value"] == name


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


# --- Results for analysts: the same table from a directory, a page and a file, with real types.


TIMES = ("opens", "closes")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign with rounds shown and withheld, and one whose rounds are windows."""
    made = tmp_path_factory.mktemp("analysis") / "data"
    with closing(open_store(made)) as store:
        filled(store)
        store_windows(store, store.open_campaign(rooms("once"), 0))
    return made


@pytest.fixture(scope="module")
def site(data: Path) -> Iterator[Site]:
    with serving(data) as served:
        yield served


@pytest.fixture(scope="module")
def names(data: Path) -> tuple[str, str]:
    plain, windows = Results.open(data).campaigns
    return plain, windows


def exported(data: Path, *words: object) -> str:
    return printed("export", *words, "--data-dir", data)


def test_a_directory_holds_what_export_writes(data: Path, names: tuple[str, str]) -> None:
    rows = [row for name in names for row in json.loads(exported(data, name, "--format", "json"))]
    table = list(Results.open(data))
    assert [list(row) for row in table] == [list(COLUMNS)] * len(rows)
    for found, told in zip(table, rows, strict=True):
        times = {name: told[name] and datetime.fromisoformat(told[name]) for name in TIMES}
        assert found == {**told, **times}
    assert Results.open(data).attributes == ["fuel", "town", "colour", "room"]


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_a_file_of_export_gives_the_same_rows(
    data: Path, names: tuple[str, str], tmp_path: Path, form: str
) -> None:
    file = tmp_path / "anything"
    file.write_text(exported(data, names[1], "--format", form))
    assert list(Results.open(file)) == list(Results.open(data, campaign=names[1]))
    assert list(Results.open(str(file), attribute="room")) == list(
        Results.open(data, campaign=names[1], attribute="room")
    )


def test_a_page_gives_the_same_rows(site: Site, data: Path, names: tuple[str, str]) -> None:
    whole = list(Results.open(data))
    assert list(Results.open(site.url)) == whole
    assert list(Results.open(f"{site.url}/campaigns/{names[0]}")) == list(
        Results.open(data, campaign=names[0])
    )
    question = f"{site.url}/campaigns/{names[1]}/attributes/room"
    assert list(Results.open(question)) == [row for row in whole if row["attribute"] == "room"]
    one = list(Results.open(f"{question}/rounds/4"))
    assert {(row["first"], row["last"]) for row in one} == {(2, 4)}


def test_a_page_that_answers_in_parts_is_read_whole(data: Path, names: tuple[str, str]) -> None:
    """Of six values and six rounds at most two rounds are in one answer."""
    with serving(data, limits=Limits(rows=12)) as small:
        read = Results.open(small.url, campaign=names[1])
        answer = json.loads(small.get(f"/campaigns/{names[1]}/attributes/room.json").body)
    assert len(answer["rounds"]) == 2
    assert list(read) == list(Results.open(data, campaign=names[1]))


def test_what_estimate_prints_is_read_too(
    data: Path, names: tuple[str, str], tmp_path: Path
) -> None:
    words = ("estimate", names[0], "--round", "all", "--data-dir", data, "--json")
    (tmp_path / "x.json").write_text(printed(*words))
    shown = [row for row in Results.open(data, campaign=names[0]) if not row["withheld"]]
    read = list(Results.open(tmp_path / "x.json"))
    assert [row for row in read if not row["withheld"]] == shown
    kept = [row for row in read if row["withheld"]]
    assert {row["value"] for row in kept} == {None}, "the names of values are not in it"
    assert {row["raw"] for row in kept} == {None}


def test_pooled_and_rounds_are_told_apart(data: Path, names: tuple[str, str]) -> None:
    every = Results.open(data)
    assert len(every.pooled()) + len(every.rounds()) == len(every)
    plain = Results.open(data, campaign=names[0], attribute="fuel")
    assert {row["round"] for row in plain.pooled()} == {None}
    assert [row["round"] for row in plain.rounds()] == [0] * 4 + [1] * 4
    windows = Results.open(data, campaign=names[1], attribute="room")
    assert {(row["first"], row["last"]) for row in windows.pooled()} == {(0, 4)}
    assert (0, 4) not in {(row["first"], row["last"]) for row in windows.rounds()}
    assert repr(plain.pooled()) == f"<1 results of {names[0]}, 4 rows>"


@pytest.mark.needs("postgres")
def test_a_shared_store_gives_its_rows_too() -> None:
    where = new_schema()
    with closing(open_shared(where)) as store:
        made = filled(store)
    read = Results.open(where.url)
    assert read.campaigns == [made.name]
    assert [row["round"] for row in read.rounds() if row["attribute"] == "fuel"] == [0] * 4 + [
        1
    ] * 4


def test_an_address_of_a_store_that_cannot_be_one() -> None:
    with pytest.raises(UnreadableResults, match="a password must not be in the address"):
        Results.open("postgresql://me:secret@127.0.0.1/data")


# --- as tables -----------------------------------------------------------------------------------


def test_pandas_has_times_whole_numbers_and_nothing_where_nothing_is(data: Path) -> None:
    import pandas  # noqa: PLC0415 - not by every worker that collects

    results = Results.open(data)
    frame = results.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert isinstance(frame["opens"].dtype, pandas.DatetimeTZDtype)
    assert str(frame["opens"].dt.tz) == "UTC"
    assert {str(frame[name].dtype) for name in ("round", "n", "count")} == {"Int64"}
    assert {str(frame[name].dtype) for name in ("raw", "low", "bin_low")} == {"float64"}
    assert frame["withheld"].dtype == bool
    for name in COLUMNS:
        cells = [None if pandas.isna(cell) else cell for cell in frame[name]]
        assert cells == [row[name] for row in results], name


def test_polars_and_arrow_hold_the_same(data: Path) -> None:
    import polars  # noqa: PLC0415 - not by every worker that collects
    import pyarrow  # noqa: PLC0415 - not by every worker that collects

    results = Results.open(data)
    rows = list(results)
    table, frame = results.to_arrow(), results.to_polars()
    assert isinstance(frame, polars.DataFrame)
    assert isinstance(table, pyarrow.Table)
    assert frame.schema["opens"] == polars.Datetime("us", "UTC")
    assert frame.schema["round"] == polars.Int64
    assert table.schema.field("closes").type == pyarrow.timestamp("us", tz="UTC")
    assert frame.to_dicts() == rows
    assert table.to_pylist() == rows


def test_no_rows_are_a_table_too(tmp_path: Path) -> None:
    import polars  # noqa: PLC0415 - not by every worker that collects

    (tmp_path / "empty.json").write_text("[]\n")
    none = Results.open(tmp_path / "empty.json")
    assert len(none) == len(none.to_pandas()) == len(none.to_polars()) == len(none.to_arrow()) == 0
    assert none.to_polars().schema["opens"] == polars.Datetime("us", "UTC")
    assert repr(none.pooled()) == "<0 results of nothing, 0 rows>"


def test_export_writes_parquet(
    cli: Cli, data: Path, names: tuple[str, str], tmp_path: Path
) -> None:
    import pyarrow.parquet  # noqa: PLC0415 - not by every worker that collects

    file = tmp_path / "heat.parquet"
    done = cli("export", names[1], "--data-dir", data, "--output", file)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"wrote {file}\n")
    table = pyarrow.parquet.read_table(file)
    assert table.to_pylist() == list(Results.open(data, campaign=names[1]))


@pytest.mark.parametrize(
    ("package", "call"),
    [("pandas", "to_pandas"), ("polars", "to_polars"), ("pyarrow", "to_arrow")],
)
def test_a_missing_package_is_named_with_the_extra(
    data: Path, monkeypatch: pytest.MonkeyPatch, package: str, call: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=rf"needs {package}, .*extra `analysis`") as failed:
        getattr(Results.open(data), call)()
    assert isinstance(failed.value, ImportError)


def test_export_without_pyarrow_writes_nothing(
    cli: Cli, data: Path, names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    words = ("export", names[0], "--data-dir", data, "--output", tmp_path / "x.parquet")
    told = mistaken(cli, 1, *words)
    assert "a Parquet file needs pyarrow" in told
    assert not (tmp_path / "x.parquet").exists()


def test_the_collector_starts_without_the_analysts_packages() -> None:
    """sqlite-utils would load pandas wherever it is installed."""
    code = "import collector.commands, collector.results, sys; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"pandas", "polars", "pyarrow"} & {*shown.stdout.split()}


# --- what cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("value,raw\n", "does not hold results; give a data directory"),
        ('{"healthy": true}', "does not hold results"),
        ("[1, 2]", "does not hold results"),
        (
            '[{"campaign": "a", "attribute": "b", "value": "c", "raw": "much"}]',
            "column raw holds a str where a number belongs",
        ),
        (
            '[{"campaign": "a", "attribute": "b", "value": "c", "raw": null, "opens": "today"}]',
            "does not hold results",
        ),
        (
            '[{"campaign": "a", "attribute": "b", "value": true, "raw": null}]',
            "column value holds a bool where a text belongs",
        ),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UnreadableResults, match=told) as failed:
        Results.open(tmp_path / "x.json")
    assert "x.json" in str(failed.value)


def test_what_is_not_there_is_said_with_what_is(
    data: Path, names: tuple[str, str], tmp_path: Path, site: Site
) -> None:
    with pytest.raises(UnreadableResults, match="No such file"):
        Results.open(tmp_path / "nowhere.json")
    with pytest.raises(UnknownCampaign, match="no collector's database"):
        Results.open(tmp_path)
    with pytest.raises(UnknownCampaign, match="the campaign has: fuel"):
        Results.open(data, campaign=names[0], attribute="fule")
    with pytest.raises(UnknownCampaign, match="known campaigns"):
        Results.open(site.url, campaign="nosuch")
    with pytest.raises(UnknownCampaign, match="does not ask for fule"):
        Results.open(site.url, campaign=names[0], attribute="fule")
    (tmp_path / "x.json").write_text(exported(data, names[0], "--format", "json"))
    with pytest.raises(UnknownCampaign, match=f"there are: {names[0]} "):
        Results.open(tmp_path / "x.json", attribute="fule")


def test_an_address_that_shows_no_results(site: Site) -> None:
    with pytest.raises(UnreadableResults, match="shows no results"):
        Results.open(f"{site.url}/planner")
    with pytest.raises(UnreadableResults, match="cannot be read: Connection refused"):
        Results.open("http://127.0.0.1:1/")


def test_a_token_goes_to_no_other_address(site: Site) -> None:
    """A page that sends its readers elsewhere is not followed."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", site.url + "/index.json")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            """Nothing is written."""

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(UnreadableResults, match="HTTP status 302"):
            Results.open(f"http://127.0.0.1:{server.server_port}/", token="of-this-test" * 2)


def test_a_token_opens_a_page_that_needs_one(data: Path, names: tuple[str, str]) -> None:
    secret = "of-this-test" * 2
    with serving(data, token=secret) as guarded:
        with pytest.raises(UnreadableResults, match="needs the page's token"):
            Results.open(guarded.url)
        whole = Results.open(data)
        assert list(Results.open(guarded.url, token=secret)) == list(whole)
        assert list(Results.open(f"{guarded.url}/?token={secret}")) == list(whole)
