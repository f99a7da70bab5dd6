"""Results as rows: one row per value, the same columns in CSV, JSON and NDJSON.

The columns are documented in docs/results.md; a column is only ever added at the end.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, get_type_hints

from collector.errors import MissingPackage
from collector.records import Campaign
from protocol_spec import Attribute, Manifest, Numbers, Reporting, Result, ResultQuantile
from protocol_spec.programs.output import quoted
from protocol_spec.programs.settings import SettingsError

Format = Literal["csv", "json", "ndjson"]
FORMATS: Final[tuple[Format, ...]] = ("csv", "json", "ndjson")


class RowHead(TypedDict):
    """What a row says whether or not its histogram is withheld; `round` is None for pooled."""

    campaign: str
    digest: str
    attribute: str
    round: int | None
    rounds: int
    value: str
    protocol: str
    n: int
    devices: int
    min_reports: int
    withheld: bool


class Row(RowHead):
    """One value of a histogram; frequencies and errors are shares of 1."""

    count: int
    raw: float
    projected: float
    privacy_error: float
    sampling_error: float
    confidence: float
    low: float
    high: float
    low_all: float
    high_all: float
    device_bound: float
    reporting: Reporting
    first: int | None
    last: int | None
    n_eff: float
    difference_pair: float | None
    difference_tallest: float | None
    cdf: float | None
    cdf_low: float | None
    cdf_high: float | None
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    mean_bias: float | None
    median: float | None
    median_low: float | None
    median_high: float | None
    opens: str | None
    closes: str | None
    bin_low: float | None
    bin_high: float | None
    unit: str


class WithheldRow(RowHead):
    """One value of a histogram that has too few reports to be shown."""

    count: None
    raw: None
    projected: None
    privacy_error: None
    sampling_error: None
    confidence: float
    low: None
    high: None
    low_all: None
    high_all: None
    device_bound: None
    reporting: Reporting
    first: int | None
    last: int | None
    n_eff: float
    difference_pair: None
    difference_tallest: None
    cdf: None
    cdf_low: None
    cdf_high: None
    mean: None
    mean_low: None
    mean_high: None
    mean_bias: None
    median: None
    median_low: None
    median_high: None
    opens: str | None
    closes: str | None
    bin_low: float | None
    bin_high: float | None
    unit: str


COLUMNS: Final = tuple(Row.__annotations__)
NO_NUMBERS: Final = Numbers(
    *(None, None, None, None), (), (), (), (ResultQuantile(0.5, None, None, None),)
)


def rows(campaign: Campaign, results: Iterable[Result]) -> Iterator[Row | WithheldRow]:
    """One row per value; numbers are None where the histogram is withheld."""
    for result in results:
        yield from (
            _withheld_rows(campaign, result) if result.withheld else histogram(campaign, result)
        )


def histogram(campaign: Campaign, result: Result) -> Iterator[Row]:
    """One row per value of a result that is not withheld."""
    difference, numbers = result.difference, result.numbers or NO_NUMBERS
    if difference is None:
        raise ValueError("a withheld result has no histogram")
    middle = next(q for q in numbers.quantiles if q.tau == 0.5)
    asked, (opens, closes) = _attribute(campaign.manifest, result), times(campaign, result)
    for i, value in enumerate(asked.values):
        low, high = bin_ends(asked, i)
        yield {
            **_head(campaign, result, value),
            "count": result.counts[i],
            "raw": result.raw[i],
            "projected": result.projected[i],
            "privacy_error": result.privacy_error[i],
            "sampling_error": result.sampling_error[i],
            "confidence": result.confidence,
            "low": result.low[i],
            "high": result.high[i],
            "low_all": result.low_all[i],
            "high_all": result.high_all[i],
            "device_bound": result.device_bound,
            "reporting": result.reporting,
            "first": result.first,
            "last": result.last,
            "n_eff": result.n_eff,
            "difference_pair": difference.pair,
            "difference_tallest": difference.tallest,
            "cdf": _place(numbers.cdf, i),
            "cdf_low": _place(numbers.cdf_low, i),
            "cdf_high": _place(numbers.cdf_high, i),
            "mean": numbers.mean,
            "mean_low": numbers.mean_low,
            "mean_high": numbers.mean_high,
            "mean_bias": numbers.mean_bias,
            "median": middle.value,
            "median_low": middle.low,
            "median_high": middle.high,
            "opens": opens,
            "closes": closes,
            "bin_low": low,
            "bin_high": high,
            "unit": asked.unit,
        }


def _withheld_rows(campaign: Campaign, result: Result) -> Iterator[WithheldRow]:
    asked, (opens, closes) = _attribute(campaign.manifest, result), times(campaign, result)
    for i, value in enumerate(asked.values):
        low, high = bin_ends(asked, i)
        yield {
            **_head(campaign, result, value),
            "count": None,
            "raw": None,
            "projected": None,
            "privacy_error": None,
            "sampling_error": None,
            "confidence": result.confidence,
            "low": None,
            "high": None,
            "low_all": None,
            "high_all": None,
            "device_bound": None,
            "reporting": result.reporting,
            "first": result.first,
            "last": result.last,
            "n_eff": result.n_eff,
            "difference_pair": None,
            "difference_tallest": None,
            "cdf": None,
            "cdf_low": None,
            "cdf_high": None,
            "mean": None,
            "mean_low": None,
            "mean_high": None,
            "mean_bias": None,
            "median": None,
            "median_low": None,
            "median_high": None,
            "opens": opens,
            "closes": closes,
            "bin_low": low,
            "bin_high": high,
            "unit": asked.unit,
        }


def _place(series: tuple[float, ...], i: int) -> float | None:
    """The share up to and with a bin; none behind the last of them, or for what is no number."""
    return series[i] if i < len(series) else None


def _head(campaign: Campaign, result: Result, value: str) -> RowHead:
    return {
        "campaign": campaign.name,
        "digest": result.digest.hex(),
        "attribute": result.attribute,
        "round": result.round,
        "rounds": result.rounds,
        "value": value,
        "protocol": result.protocol,
        "n": result.n,
        "devices": result.devices,
        "min_reports": result.min_reports,
        "withheld": result.withheld,
    }


def _attribute(manifest: Manifest, result: Result) -> Attribute:
    return next(a for a in manifest.attributes if a.name == result.attribute)


def times(campaign: Campaign, result: Result) -> tuple[str, str]:
    """When the first of a result's rounds begins and the last ends."""
    rounds = campaign.manifest.rounds
    return instant(rounds.opens(result.first)), instant(rounds.closes(result.last))


def bin_ends(attribute: Attribute, i: int) -> tuple[float | None, float | None]:
    """The numbers between which a bin lies; none where it has no end, or for what is no bin."""
    if i >= attribute.bins or attribute.edges is None:
        return None, None
    low, high = (e if math.isfinite(e) else None for e in attribute.edges[i : i + 2])
    return low, high


def instant(seconds: int) -> str:
    """A moment as people and programs read it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write(campaign: Campaign, results: Iterable[Result], form: Format) -> str:
    """All rows in one of the formats."""
    return write_rows(rows(campaign, results), COLUMNS, form)


def write_rows(table: Iterable[Mapping[str, Any]], columns: Sequence[str], form: str) -> str:
    """Rows of any table in one of the formats."""
    if form == "json":
        return json.dumps(list(table), ensure_ascii=False, indent=1) + "\n"
    if form == "ndjson":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _safe(v) for k, v in row.items()} for row in table)
    return text.getvalue()


def _safe(value: Any) -> Any:
    """Spreadsheets run cells that begin like a formula; a value's name must not."""
    if isinstance(value, bool):
        return str(value).lower()
    risky = isinstance(value, str) and re.match(r"[=+@]|-(?!\d[^(|!]*$)", value)
    return f"'{value}" if risky else value


# --- Rows as columns with types: for pandas, polars, Arrow and Parquet, which are an extra.


Kind = Literal["text", "whole", "number", "flag", "time"]
Columns = dict[str, list[Any]]


def _kind(name: str, hint: object) -> Kind:
    if name in ("opens", "closes"):
        return "time"
    kinds: dict[object, Kind] = {bool: "flag", int: "whole", float: "number"}
    return kinds.get(hint) or kinds.get(getattr(hint, "__args__", (str,))[0]) or "text"


KINDS: Final[dict[str, Kind]] = {n: _kind(n, get_type_hints(Row)[n]) for n in COLUMNS}
_TAKEN: Final[dict[Kind, tuple[type, ...]]] = {
    "text": (str,),
    "whole": (int,),
    "number": (float, int),
    "flag": (bool,),
    "time": (str,),
}


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """All rows, column by column; a row that lacks a column has nothing in it.

    What is not of a column's kind is a ValueError that names the column.
    """
    columns: Columns = {name: [] for name in COLUMNS}
    for row in rows:
        for name, kind in KINDS.items():
            columns[name].append(_cell(name, kind, row.get(name)))
    return columns


def _cell(name: str, kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    if not _fits(value, kind):
        raise ValueError(f"column {name} holds a {type(value).__name__} where a {kind} belongs")
    if kind == "number":
        return float(value)
    return datetime.fromisoformat(value) if kind == "time" else value


def _fits(value: object, kind: Kind) -> bool:
    return isinstance(value, _TAKEN[kind]) and (kind == "flag" or not isinstance(value, bool))


def to_pandas(columns: Columns) -> Any:
    """A pandas.DataFrame."""
    pandas = needed("pandas", "a table for pandas")
    makers: dict[Kind, Callable[[list[Any]], Any]] = {
        "text": pandas.Series,
        "whole": lambda cells: pandas.Series(cells, dtype="Int64"),
        "number": lambda cells: pandas.Series(cells, dtype="float64"),
        "flag": lambda cells: pandas.Series(cells, dtype="bool"),
        "time": lambda cells: pandas.to_datetime(pandas.Series(cells, dtype="object"), utc=True),
    }
    made = {name: makers[kind](columns[name]) for name, kind in KINDS.items()}
    return pandas.DataFrame(made)


def to_polars(columns: Columns) -> Any:
    """A polars.DataFrame."""
    polars = needed("polars", "a table for polars")
    types = {
        "text": polars.String,
        "whole": polars.Int64,
        "number": polars.Float64,
        "flag": polars.Boolean,
        "time": polars.Datetime("us", "UTC"),
    }
    return polars.DataFrame(columns, schema={name: types[kind] for name, kind in KINDS.items()})


def to_arrow(columns: Columns) -> Any:
    """A pyarrow.Table."""
    arrow = needed("pyarrow", "an Arrow table")
    types = {
        "text": arrow.string(),
        "whole": arrow.int64(),
        "number": arrow.float64(),
        "flag": arrow.bool_(),
        "time": arrow.timestamp("us", tz="UTC"),
    }
    fields = [arrow.field(name, types[kind]) for name, kind in KINDS.items()]
    return arrow.table(columns, schema=arrow.schema(fields))


def parquet(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """A Parquet file's content."""
    writer = needed("pyarrow.parquet", "a Parquet file")
    content = io.BytesIO()
    writer.write_table(to_arrow(columns_of(rows)), content)
    return content.getvalue()


def needed(module: str, what: str) -> Any:
    """A module of a package that only some installations have."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPackage(
            f"{what} needs {package}, which is not installed here; nothing was written. It comes "
            f"with allomfree's extra `analysis`; or run: pip install {package}"
        ) from None


# --- Tables as files: the ending of the name chooses the format, unless it was named.


FileFormat = Literal["csv", "json", "ndjson", "parquet"]
FILE_FORMATS: Final[tuple[FileFormat, ...]] = ("csv", "json", "ndjson", "parquet")
_ENDINGS: Final[dict[str, FileFormat]] = {
    ".csv": "csv",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
}
_FIGURES: Final = (".svg", ".png", ".html")


def chosen_format(named: FileFormat | None, output: Path | None, figure: Path | None) -> FileFormat:
    """The format that was named, else that of the file's ending, else CSV if it has none."""
    ending = "" if output is None else output.suffix.lower()
    if named is None and ending in _FIGURES:
        raise SettingsError(
            f"--output {output}: rows are no picture; nothing was written. Draw them with "
            f"--figure {output}, or name the rows' --format"
        )
    if named is None and ending and ending not in _ENDINGS:
        *most, last = _ENDINGS
        raise SettingsError(
            f"--output {output}: {quoted(ending)} is no format of rows; nothing was written. End "
            f"its name in {', '.join(most)} or {last}, or name the --format"
        )
    form = named or _ENDINGS.get(ending, "csv")
    if form == "parquet" and output is None and figure is None:
        raise SettingsError(
            "--format parquet: it is not for a terminal; nothing was written. Name a file, as in "
            "--output heat.parquet"
        )
    return form


def content(campaign: Campaign, results: Iterable[Result], form: FileFormat) -> bytes:
    """A file's content."""
    if form == "parquet":
        return parquet(rows(campaign, results))
    text: Format = form
    return write(campaign, results, text).encode()
