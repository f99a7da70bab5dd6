"""Results for analysts: the same table from a directory, a page and a file, with real types."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from collector.data_dir import open_shared, open_store
from collector.errors import MissingPackage, UnknownCampaign, UnreadableResults
from collector.results import Results
from collector.results.tables import COLUMNS
from collector.web.live import Limits
from tests.support.collector_cli import cli, home, mistaken, printed
from tests.support.command_line import Cli
from tests.support.page_data import filled
from tests.support.postgres import new_schema
from tests.support.results import rooms, store_windows
from tests.support.site import Site, serving

__all__ = ["cli", "home"]  # fixtures

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


def test_a_file_of_an_earlier_version_lacks_only_what_is_new(data: Path, tmp_path: Path) -> None:
    rows = json.loads(exported(data, "--format", "json", *Results.open(data).campaigns[:1]))
    old = [{k: v for k, v in row.items() if k not in (*TIMES, "bin_low", "unit")} for row in rows]
    (tmp_path / "old.json").write_text(json.dumps(old))
    read = list(Results.open(tmp_path / "old.json"))
    assert [row["raw"] for row in read] == [row["raw"] for row in rows]
    assert {row["opens"] for row in read} == {None}


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
