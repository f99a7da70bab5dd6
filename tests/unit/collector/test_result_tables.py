"""Results for readers: comparisons of two values, rows in every format, and `Results.open`."""

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

import numpy as np
import pytest

from collector.data_dir import open_shared, open_store
from collector.errors import MissingPackage, UnknownCampaign, UnreadableResults
from collector.records import Campaign, RoundSum, Tally
from collector.results import Results
from collector.results.estimates import Seen, compare, estimate_of, most_interesting
from collector.results.tables import COLUMNS, Format, content, rows
from collector.rounds.results import pooled_result, round_result, window_result
from collector.web.live import Limits
from protocol_spec import Manifest, Result
from protocol_spec.estimation import (
    Estimate,
    difference,
    estimate,
    estimate_levels,
    estimate_pooled,
)
from tests.support.collector import COLOUR, FIRST, FUEL, random_counts, three_questions
from tests.support.command_line import Cli, mistaken, printed
from tests.support.databases import new_schema
from tests.support.pages import FUEL as NAMED
from tests.support.pages import (
    ROOM,
    SHARES,
    Site,
    expected_tally,
    filled,
    rooms,
    serving,
    store_windows,
)

# --- Is A above B? A result contains enough to answer exactly, with every mechanism ---------------

UNEQUAL = ([1, 3, 40], [300, 200, 25])


def of_round(
    manifest: Manifest, index: int, n: int = 800, shares: tuple[float, ...] = ()
) -> tuple[Estimate, Result]:
    mechanism = manifest.mechanisms[index]
    tally = expected_tally(mechanism, n, shares or SHARES[index])
    result = round_result(Campaign(1, manifest, 0, None), 0, index, tally, {})
    if mechanism.reporting == "nested":
        table = tally.counts.reshape(len(mechanism.channels), -1)
        return estimate_levels(table[:, 1:], table[:, 0], mechanism.channels), result
    return estimate(tally.counts, tally.n, mechanism.channels[0]), result


def of_pooled(manifest: Manifest, index: int) -> tuple[Estimate, Result]:
    """Devices that reported very unequally, whose numbers of reports the result does not hold."""
    mechanism, n = manifest.mechanisms[index], int(np.dot(*UNEQUAL))
    tally = expected_tally(mechanism, n, SHARES[index])
    made = estimate_pooled(tally.counts, *UNEQUAL, mechanism.channels[0], weights="reports")
    return made, pooled_result(Campaign(1, manifest, 0, None), index, 40, tally, UNEQUAL, {})


def assert_same(found: Estimate, made: Estimate) -> None:
    """In all that sums over bars need."""
    assert found.raw.tolist() == made.raw.tolist()
    assert found.sums_to_one == made.sums_to_one
    for name in ("v0", "slope", "base", "base_slope", "n_eff", "dilution"):
        expected = getattr(made.moments, name)
        assert getattr(found.moments, name) == pytest.approx(expected, rel=1e-9, abs=1e-15), name


@pytest.mark.parametrize("index", [ROOM, NAMED])
@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_the_estimate_is_recovered_from_the_result(reporting: str, index: int) -> None:
    manifest = rooms(reporting)
    made, result = of_round(manifest, index)
    assert_same(estimate_of(manifest, result), made)
    if reporting in ("memoized", "hashed"):
        made, result = of_pooled(manifest, index)
        assert_same(estimate_of(manifest, result), made)


@pytest.mark.parametrize("reporting", ["memoized", "nested", "once"])
def test_the_estimate_of_a_unary_protocol_is_recovered(reporting: str) -> None:
    asked = rooms(reporting)
    levels = asked.attributes[NAMED].levels if reporting == "nested" else ()
    values = tuple(f"v{i}" for i in range(300))
    protocol = "L-OSUE" if reporting == "memoized" else "OUE"
    many = replace(asked.attributes[NAMED], values=values, levels=levels, protocol=protocol)
    manifest = replace(asked, attributes=(many,))
    made, result = of_round(manifest, 0, 5000, (0.3, 0.2, *[0.5 / 298] * 298))
    assert not made.sums_to_one
    assert_same(estimate_of(manifest, result), made)


def test_a_comparison_is_the_difference_with_its_interval() -> None:
    manifest = rooms("memoized")
    made, result = of_pooled(manifest, NAMED)
    found, back = (compare(manifest, result, *pair) for pair in (("gas", "oil"), ("oil", "gas")))
    expected = difference(made, 0, 3)
    assert found["difference"] == pytest.approx(expected.value)
    assert (found["low"], found["high"]) == pytest.approx(expected.interval())
    over_all = expected.half_width(comparisons=math.comb(5, 2))
    assert found["half_width_all"] == pytest.approx(over_all)
    assert (found["answer"], found["answer_all"], back["answer"]) == ("above", "above", "below")
    assert back["difference"] == pytest.approx(-(found["difference"] or 0.0))


def test_a_pair_that_was_picked_afterwards_must_hold_among_all_pairs() -> None:
    manifest = rooms("memoized")
    made, result = of_round(manifest, NAMED)
    apart = difference(made, 0, 3).standard_error * 2.3  # between z of 1 and of 10 comparisons
    raw = (result.raw[3] + apart, *result.raw[1:])
    found = compare(manifest, replace(result, raw=raw), "gas", "oil")
    assert (found["answer"], found["answer_all"]) == ("above", "not shown")


def test_comparisons_that_cannot_be_made() -> None:
    manifest = rooms("once")
    _, few = of_round(manifest, NAMED, 20)
    found = compare(manifest, few, "gas", "oil")
    assert (found["answer"], found["difference"], found["low"]) == ("withheld", None, None)
    with pytest.raises(ValueError, match="withheld"):
        estimate_of(manifest, few)
    _, result = of_round(manifest, NAMED)
    with pytest.raises(UnknownCampaign, match="unknown value 'coal'; the attribute has: 'gas', 'h"):
        compare(manifest, result, "gas", "coal")
    with pytest.raises(UnknownCampaign, match="'gas' is compared with itself; name two values"):
        compare(manifest, result, "gas", "gas")


# --- Over time the page begins with the largest significant change, else with the top value -------

CAMPAIGN = Campaign(1, three_questions(min_reports=50), FIRST, None)


def counted(n: int, seed: int, attribute: int = FUEL, campaign: Campaign = CAMPAIGN) -> Tally:
    return Tally(n, random_counts(campaign.manifest.body_formats[attribute], n, seed=seed)[1])


def shares(number: int, *raw: float, error: float = 0.01) -> Result:
    result = round_result(CAMPAIGN, number, FUEL, counted(500, number), {})
    errors, zero = (error,) * len(raw), (0.0,) * len(raw)
    return replace(result, raw=raw, privacy_error=errors, sampling_error=zero)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([(0.1, 0.5, 0.4), (0.3, 0.4, 0.3), (0.4, 0.3, 0.3)], (0, (Seen(0, 0.1), Seen(2, 0.4)))),
        ([(0.1, 0.9), (0.2, 0.3)], (1, (Seen(0, 0.9), Seen(1, 0.3)))),
    ],
    ids=["rise", "fall"],
)
def test_the_largest_significant_change(rounds: list[tuple[float, ...]], expected: object) -> None:
    found = most_interesting([shares(i, *raw) for i, raw in enumerate(rounds)], None)
    assert found is not None
    assert (found.place, found.change) == expected


def test_a_change_must_be_significant_over_every_value_and_pair_of_rounds() -> None:
    """With two values and two rounds the critical value is that of 95 % over two comparisons."""
    apart = 2.2414027 * 0.01 * 2**0.5  # the normal quantile of 1 - 0.05 / 4
    many = [shares(i, 0.2, 0.8) for i in range(30)]
    for earlier, factor, changed in ((many[:1], 0.999, False), (many[:1], 1.001, True)):
        found = most_interesting([*earlier, shares(30, 0.2 + factor * apart, 0.8)], None)
        assert found is not None
        assert (found.change is not None) is changed
    found = most_interesting([*many, shares(30, 0.2 + 1.001 * apart, 0.8)], None)
    assert found is not None
    assert found.change is None


def test_without_a_change_it_is_the_most_frequent_of_the_pooled_or_else_the_latest() -> None:
    pooled = pooled_result(CAMPAIGN, FUEL, 2, counted(1000, 1), ([2], [500]), {})
    wide = [shares(i, 0.4, 0.3, 0.2, 0.1, error=0.5) for i in range(2)]
    found = most_interesting(wide, replace(pooled, raw=(0.1, 0.2, 0.6, 0.1)))
    assert found is not None
    assert (found.place, found.change) == (2, None)
    found = most_interesting(wide, None)
    assert found is not None
    assert found.place == 0
    withheld = round_result(CAMPAIGN, 0, FUEL, counted(20, 0), {})
    assert most_interesting([], None) is most_interesting([withheld], None) is None


# --- Rows with fixed columns: the same in every format, empty where withheld, harmless to open ----

NUMBERS = (
    *("count", "raw", "projected", "privacy_error", "sampling_error"),
    *("low", "high", "low_all", "high_all"),
)
SHOWN = round_result(CAMPAIGN, 0, FUEL, counted(90, 90), {})
WITHHELD = round_result(CAMPAIGN, 1, FUEL, counted(49, 49), {})
POOLED = pooled_result(CAMPAIGN, COLOUR, 2, counted(180, 1, COLOUR), ([2], [90]), {})
RESULTS = [SHOWN, WITHHELD, POOLED]


def write(found: list[Result], form: Format, campaign: Campaign = CAMPAIGN) -> str:
    return content(campaign, found, form).decode()


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_columns_are_a_promise() -> None:
    assert (
        *("campaign", "attribute", "round", "rounds", "first", "last", "opens", "closes"),
        *("protocol", "n", "devices", "n_eff", "withheld"),
        *("value", "bin_low", "bin_high", "unit", "count", "raw", "projected"),
        *("privacy_error", "sampling_error", "low", "high", "low_all", "high_all"),
        *("mean", "mean_low", "mean_high", "median", "median_low", "median_high"),
    ) == COLUMNS
    assert all(tuple(row) == COLUMNS for row in rows(CAMPAIGN, RESULTS))
    assert write([], "csv") == ",".join(COLUMNS) + "\n"


def test_every_value_has_a_row_with_the_results_own_numbers_and_times() -> None:
    table = list(rows(CAMPAIGN, RESULTS))
    fuels = ["wood", "gas", "oil", "pump"]
    expected: list[tuple[str, int | None, str]] = [("fuel", n, v) for n in (0, 1) for v in fuels]
    expected += [("colour", None, f"c{i}") for i in range(11)]
    assert [(row["attribute"], row["round"], row["value"]) for row in table] == expected
    for i, row in enumerate(map(dict, table[:4])):
        assert row["count"] == SHOWN.counts[i]
        for name in NUMBERS[1:]:
            assert row[name] == getattr(SHOWN, name)[i]
        assert (row["n"], row["devices"], row["n_eff"]) == (90, 90, 90.0)
    begins = datetime.fromtimestamp(FIRST, UTC)
    hour = timedelta(seconds=CAMPAIGN.manifest.rounds.period)
    for row, first, last in ((table[0], 0, 0), (table[4], 1, 1), (table[8], 0, 1)):
        assert datetime.fromisoformat(row["opens"] or "") == begins + first * hour
        assert datetime.fromisoformat(row["closes"] or "") == begins + (last + 1) * hour
    assert {row["bin_low"] for row in table} == {None}


def test_a_numeric_attribute_has_its_numbers_and_bins_in_every_row() -> None:
    campaign = Campaign(1, rooms("once"), 0, None)
    tally = expected_tally(campaign.manifest.mechanisms[ROOM], 900, SHARES[ROOM])
    result = window_result(campaign, ROOM, RoundSum(3, 9, 7, tally), ([1], [900]), {})
    table, numbers = list(rows(campaign, [result])), result.numbers
    assert numbers is not None
    for row in table:
        assert (row["first"], row["last"], row["n_eff"]) == (3, 9, 900.0)
        wider = (numbers.mean_low or 0) - (numbers.mean_bias or 0)
        assert (row["mean"], row["mean_low"]) == (numbers.mean, wider), "with the width of bins"
        assert row["median"] == numbers.quantiles[2].value
        assert row["unit"] == "°C"
    bins = [(row["value"], row["bin_low"], row["bin_high"]) for row in table]
    assert bins[:2] == [("< 16 °C", None, 16.0), ("16 to 18 °C", 16.0, 18.0)]
    assert bins[5] == ("≥ 24 °C", 24.0, None)


def test_all_formats_have_the_same_cells() -> None:
    def cell(value: object) -> str:
        """Floats in full, nothing where there is nothing."""
        if value is None:
            return ""
        return str(value).lower() if isinstance(value, bool) else str(value)

    table = list(rows(CAMPAIGN, RESULTS))
    lines = write(RESULTS, "ndjson").splitlines()
    assert json.loads(write(RESULTS, "json")) == [json.loads(line) for line in lines] == table
    for row, cells in zip(table, read_csv(write(RESULTS, "csv")), strict=True):
        assert cells == {name: cell(value) for name, value in row.items()}


def test_withheld_rows_have_the_number_of_reports_and_no_other_number() -> None:
    found = list(map(dict, rows(CAMPAIGN, [WITHHELD])))
    assert len(found) == 4
    for row in found:
        assert [row[name] for name in NUMBERS] == [None] * 9
        assert (row["n"], row["withheld"]) == (49, True)


FORMULAS = ['=LINK("http://evil.example")', "+1+cmd|' /C'!A0", "-1-SUM(A1:A9)", "-x", "@SUM(1)"]
HARMLESS = ["-10 to 0 °C", "-5", "-0.5 to 1", "1+1", "a=b", "100 %", "≥ 60 °C", 'a "b", c', "木"]


def test_only_a_name_like_a_formula_is_quoted_for_spreadsheets() -> None:
    listed = ", ".join(json.dumps(value) for value in FORMULAS + HARMLESS)
    attributes = f'[[attributes]]\nname = "a"\nquestion = "?"\nvalues = [{listed}]\n'
    campaign = Campaign(1, three_questions(attributes=attributes), FIRST, None)
    counts = np.zeros(len(FORMULAS + HARMLESS), dtype=np.int64)
    counts[0] = 90
    found = [round_result(campaign, 0, 0, Tally(90, counts), {})]
    cells = read_csv(write(found, "csv", campaign))
    assert [row["value"] for row in cells] == ["'" + name for name in FORMULAS] + HARMLESS
    named = [row["value"] for row in json.loads(write(found, "json", campaign))]
    assert named == FORMULAS + HARMLESS
    assert float(cells[1]["raw"]) == found[0].raw[1] < 0, "a negative estimate stays a number"


# --- Results for analysts: the same table from a directory, a page and a file, with real types ----


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
    facts = [row for name in names for row in json.loads(exported(data, name, "--format", "json"))]
    table = list(Results.open(data))
    for found, row in zip(table, facts, strict=True):
        times = {t: row[t] and datetime.fromisoformat(row[t]) for t in ("opens", "closes")}
        assert found == {**row, **times}
    assert Results.open(data).attributes == ["fuel", "town", "colour", "room"]


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_a_file_of_export_gives_the_same_rows(
    data: Path, names: tuple[str, str], tmp_path: Path, form: str
) -> None:
    file = tmp_path / "anything"
    file.write_text(exported(data, names[1], "--format", form))
    chosen = {"campaign": names[1], "attribute": "room"}
    assert list(Results.open(file)) == list(Results.open(data, campaign=names[1]))
    assert list(Results.open(str(file), attribute="room")) == list(Results.open(data, **chosen))


def test_a_page_gives_the_same_rows(site: Site, data: Path, names: tuple[str, str]) -> None:
    whole = list(Results.open(data))
    assert list(Results.open(site.url)) == whole
    found = list(Results.open(f"{site.url}/campaigns/{names[0]}"))
    assert found == list(Results.open(data, campaign=names[0]))
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


def test_pooled_results_and_rounds_are_separated(data: Path, names: tuple[str, str]) -> None:
    every = Results.open(data)
    assert len(every.pooled()) + len(every.rounds()) == len(every)
    plain = Results.open(data, campaign=names[0], attribute="fuel")
    assert {row["round"] for row in plain.pooled()} == {None}
    assert [row["round"] for row in plain.rounds()] == [0] * 4 + [1] * 4
    windows = Results.open(data, campaign=names[1], attribute="room")
    assert {(row["first"], row["last"]) for row in windows.pooled()} == {(0, 4)}
    assert (0, 4) not in {(row["first"], row["last"]) for row in windows.rounds()}


@pytest.mark.needs("postgres")
def test_a_shared_store_gives_its_rows_too() -> None:
    where = new_schema()
    with closing(open_shared(where)) as store:
        made = filled(store)
    read = Results.open(where.url, attribute="fuel")
    assert read.campaigns == [made.name]
    assert [row["round"] for row in read.rounds()] == [0] * 4 + [1] * 4


def test_pandas_has_times_whole_numbers_and_missing_values(data: Path) -> None:
    import pandas  # noqa: PLC0415 - not by every worker that collects

    results = Results.open(data)
    frame = results.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert str(frame["opens"].dt.tz) == "UTC"
    assert {str(frame[name].dtype) for name in ("round", "n", "count")} == {"Int64"}
    assert {str(frame[name].dtype) for name in ("raw", "low", "bin_low")} == {"float64"}
    assert frame["withheld"].dtype == bool
    for name in COLUMNS:
        cells = [None if pandas.isna(cell) else cell for cell in frame[name]]
        assert cells == [row[name] for row in results], name


def test_polars_and_arrow_hold_the_same_also_without_rows(data: Path, tmp_path: Path) -> None:
    import polars  # noqa: PLC0415 - not by every worker that collects
    import pyarrow  # noqa: PLC0415 - not by every worker that collects

    results = Results.open(data)
    table, frame = results.to_arrow(), results.to_polars()
    assert frame.schema["opens"] == polars.Datetime("us", "UTC")
    assert frame.schema["round"] == polars.Int64
    assert table.schema.field("closes").type == pyarrow.timestamp("us", tz="UTC")
    assert frame.to_dicts() == table.to_pylist() == list(results)
    (tmp_path / "empty.json").write_text("[]\n")
    none = Results.open(tmp_path / "empty.json")
    assert len(none) == len(none.to_pandas()) == len(none.to_polars()) == len(none.to_arrow()) == 0
    assert none.to_polars().schema["opens"] == polars.Datetime("us", "UTC")


def test_export_writes_parquet_where_pyarrow_is_installed(
    cli: Cli, data: Path, names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet  # noqa: PLC0415 - not by every worker that collects

    file = tmp_path / "heat.parquet"
    words = ("export", names[1], "--data-dir", data, "--output", file)
    done = cli(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"wrote {file}\n")
    table = pyarrow.parquet.read_table(file)
    assert table.to_pylist() == list(Results.open(data, campaign=names[1]))
    file.unlink()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "a Parquet file needs pyarrow" in mistaken(cli, 1, *words)
    assert not file.exists()
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingPackage, match=r"needs polars, .*extra `analysis`"):
        Results.open(data).to_polars()


def test_the_collector_starts_without_the_analysts_packages() -> None:
    """sqlite-utils would load pandas wherever it is installed."""
    code = "import collector.commands, collector.results, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"pandas", "polars", "pyarrow"} & {*done.stdout.split()}


ROW = '{"campaign": "a", "attribute": "b", "value": '


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("value,raw\n", "does not hold results; give a data directory"),
        ('{"healthy": true}', "does not hold results"),
        ("[1, 2]", "does not hold results"),
        (f'[{ROW}"c", "raw": "much"}}]', "column raw holds a str where a number belongs"),
        (f'[{ROW}"c", "raw": null, "opens": "today"}}]', "does not hold results"),
        (f'[{ROW}true, "raw": null}}]', "column value holds a bool where a text belongs"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UnreadableResults, match=message) as failed:
        Results.open(tmp_path / "x.json")
    assert "x.json" in str(failed.value)


def test_errors_name_what_is_missing_and_what_there_is(
    data: Path, names: tuple[str, str], tmp_path: Path, site: Site
) -> None:
    file = tmp_path / "x.json"
    file.write_text(exported(data, names[0], "--format", "json"))
    cases: list[tuple[type[Exception], str, str | Path, str | None, str | None]] = [
        (UnreadableResults, "No such file", tmp_path / "nowhere.json", None, None),
        (UnknownCampaign, "no collector's database", tmp_path, None, None),
        (UnknownCampaign, "the campaign has: fuel", data, names[0], "fule"),
        (UnknownCampaign, "known campaigns", site.url, "nosuch", None),
        (UnknownCampaign, "does not ask for fule", site.url, names[0], "fule"),
        (UnknownCampaign, f"there are: {names[0]} ", file, None, "fule"),
        (UnreadableResults, "shows no results", f"{site.url}/planner", None, None),
        (
            UnreadableResults,
            "cannot be read: Connection refused",
            "http://127.0.0.1:1/",
            None,
            None,
        ),
        (UnreadableResults, "a password must not be in", "postgresql://a:b@c/d", None, None),
    ]
    for kind, message, source, campaign, attribute in cases:
        with pytest.raises(kind, match=message):
            Results.open(source, campaign=campaign, attribute=attribute)


QUESTION = '"attributes": [{"name": "b"}]'
TOO_LARGE = f'{{"histogram": [{{"value": "x", "raw": {10**400}}}]}}'


@pytest.mark.parametrize(
    "content",
    [
        '{"campaigns": [3]}',
        '{"campaigns": [{}]}',
        '{"campaigns": [{"campaign": "a"}], "attributes": 7}',
        f'{{"campaigns": [{{"campaign": "a"}}], {QUESTION}, "rounds": [5]}}',
        f'{{"campaigns": [{{"campaign": "a"}}], {QUESTION}, "rounds": [{{"last": {10**15}}}]}}',
        f'{{"campaigns": [{{"campaign": "a"}}], {QUESTION}, "rounds": [{{"last": Infinity}}]}}',
        f'{{"campaigns": [{{"campaign": "a"}}], {QUESTION}, "rounds": [{{"last": 60000}}]}}',
        f'{{"campaigns": [{{"campaign": "a"}}], {QUESTION}, "rounds": [], "pooled": {"[" * 9000}',
        f'{{"campaigns": [{{"campaign": "a"}}], {QUESTION}, "rounds": {"[" * 900}{"]" * 900}}}',
        f'{{"campaigns": [{{"campaign": "a"}}], {QUESTION}, "rounds": [], "pooled": {TOO_LARGE}}}',
    ],
)
def test_a_page_that_is_none_is_refused_after_few_requests(content: str) -> None:
    """Whatever it answers: neither another exception, nor requests without end."""
    asked: list[str] = []

    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_words: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(UnreadableResults):
            Results.open(f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
    assert len(asked) <= 4


def test_a_token_goes_to_no_other_address(site: Site) -> None:
    """A page that sends its readers elsewhere is not followed."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", site.url + "/index.json")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(UnreadableResults, match="HTTP status 302"):
            Results.open(f"http://127.0.0.1:{server.server_port}/", token="of-this-test" * 2)


def test_a_token_opens_a_page_that_needs_one(data: Path) -> None:
    secret = "of-this-test" * 2
    with serving(data, token=secret) as guarded:
        with pytest.raises(UnreadableResults, match="needs the page's token"):
            Results.open(guarded.url)
        whole = list(Results.open(data))
        assert list(Results.open(guarded.url, token=secret)) == whole
        assert list(Results.open(f"{guarded.url}/?token={secret}")) == whole
