"""Results as rows, one per value: CSV, JSON and NDJSON, and with types pandas, polars and Arrow.

The columns are documented in docs/results.md. Frequencies
and errors are shares of 1. What a row does not state is missing, never 0 or an empty text.
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
from typing import Any, Final, Literal

from collector.errors import MissingPackage
from collector.records import Campaign
from collector.results.estimates import attribute_of, margins_of
from protocol_spec import RESULT_SERIES, Attribute, Numbers, Result
from protocol_spec.estimation import series_of
from protocol_spec.programs.output import quoted
from protocol_spec.programs.settings import SettingsError

Row = dict[str, Any]  # by the names of COLUMNS
Columns = dict[str, list[Any]]
Kind = Literal["text", "whole", "number", "flag", "time"]
Format = Literal["csv", "json", "ndjson", "parquet"]

FORMATS: Final[tuple[Format, ...]] = ("csv", "json", "ndjson", "parquet")
KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("campaign", "attribute"), "text"),
    **dict.fromkeys(("round", "rounds", "first", "last"), "whole"),  # no round for pooled rounds
    **dict.fromkeys(("opens", "closes"), "time"),
    "protocol": "text",
    **dict.fromkeys(("n", "devices"), "whole"),
    "n_eff": "number",
    "withheld": "flag",
    "value": "text",
    **dict.fromkeys(("bin_low", "bin_high"), "number"),
    "unit": "text",
    "count": "whole",
    **dict.fromkeys(("raw", "projected", "privacy_error", "sampling_error"), "number"),
    **dict.fromkeys(("low", "high", "low_all", "high_all"), "number"),
    **dict.fromkeys(("mean", "mean_low", "mean_high"), "number"),
    **dict.fromkeys(("median", "median_low", "median_high"), "number"),
}
COLUMNS: Final = tuple(KINDS)
_OF_RESULT: Final = ("rounds", "first", "last", "protocol", "n", "devices", "n_eff", "withheld")


def rows(campaign: Campaign, results: Iterable[Result]) -> Iterator[Row]:
    """One row per value; numbers are None where the histogram is withheld. After a pair come the
    values of each of its questions, as if it had been asked alone."""
    for result in results:
        shared = of_result(campaign, result)
        for bar in histogram(campaign, result):
            found = shared | bar
            yield {name: found[name] for name in COLUMNS}
        for margin in margin_facts(campaign, result):
            for bar in margin.pop("histogram"):
                found = shared | margin | bar | {"count": None}
                yield {name: found[name] for name in COLUMNS}


def margin_facts(campaign: Campaign, result: Result) -> Iterator[Row]:
    """Each question of a pair as if it had been asked alone, with rows as `histogram` has them."""
    for part, margin in margins_of(campaign.manifest, result):
        bars = list(_bars(part, series_of(margin, result.confidence)))
        yield {"attribute": part.name, "unit": part.unit, "histogram": bars}


def of_result(campaign: Campaign, result: Result) -> Row:
    """What is the same for all values of a result; `mean_low` and `mean_high` include what the
    width of bins can hide."""
    rounds, numbers = campaign.manifest.rounds, result.numbers
    asked = attribute_of(campaign.manifest, result)
    mean: tuple[float | None, ...] = (None, None, None)
    middle = mean
    if numbers is not None:
        middle = next(q for q in numbers.quantiles if q.tau == 0.5)[1:]
        mean = (numbers.mean, *(mean_interval(asked, numbers) or (None, None)))
    return {
        "campaign": campaign.name,
        "attribute": result.attribute,
        "round": result.round,
        **{name: getattr(result, name) for name in _OF_RESULT},
        "opens": instant(rounds.opens(result.first)),
        "closes": instant(rounds.closes(result.last)),
        "unit": asked.unit,
        **dict(zip(("mean", "mean_low", "mean_high"), mean)),
        **dict(zip(("median", "median_low", "median_high"), middle)),
    }


def histogram(campaign: Campaign, result: Result) -> Iterator[Row]:
    """What each value of a result has of its own."""
    series = {"count": result.counts} | {name: getattr(result, name) for name in RESULT_SERIES}
    return _bars(attribute_of(campaign.manifest, result), series)


def _bars(asked: Attribute, series: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """A row for each value; a series that is empty, because it is withheld, gives None."""
    for i, value in enumerate(asked.values):
        low, high = bin_ends(asked, i)
        own = {name: column[i] if column else None for name, column in series.items()}
        yield {"value": value, "bin_low": low, "bin_high": high, **own}


def mean_interval(asked: Attribute, numbers: Numbers) -> tuple[float, float] | None:
    """Where the mean lies, with what the width of bins can hide; None where bins have no ends."""
    ends, bias = asked.finite_edges, numbers.mean_bias
    if ends is None or bias is None or numbers.mean_low is None or numbers.mean_high is None:
        return None
    return max(ends[0], numbers.mean_low - bias), min(ends[-1], numbers.mean_high + bias)


def bin_ends(attribute: Attribute, i: int) -> tuple[float | None, float | None]:
    """The numbers between which a bin lies; none where it has no end, or for what is no bin."""
    if i >= attribute.bins or attribute.edges is None:
        return None, None
    low, high = (e if math.isfinite(e) else None for e in attribute.edges[i : i + 2])
    return low, high


def instant(seconds: int) -> str:
    """A moment as people and programs read it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- as text and files --------------------------------------------------------------------------


def write_rows(table: Iterable[Mapping[str, Any]], columns: Sequence[str], file_format: str) -> str:
    """Rows of any table in one of the text formats."""
    if file_format == "json":
        return json.dumps(list(table), ensure_ascii=False, indent=1) + "\n"
    if file_format == "ndjson":
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


def content(campaign: Campaign, results: Iterable[Result], file_format: Format) -> bytes:
    """A file's content."""
    table = rows(campaign, results)
    if file_format != "parquet":
        return write_rows(table, COLUMNS, file_format).encode()
    writer = import_extra("pyarrow.parquet", "a Parquet file")
    made = io.BytesIO()
    writer.write_table(to_arrow(columns_of(table)), made)
    return made.getvalue()


_ENDINGS: Final[dict[str, Format]] = {
    **{f".{name}": name for name in FORMATS if name != "parquet"},
    ".jsonl": "ndjson",
    ".parquet": "parquet",
}
_FIGURES: Final = (".svg", ".png", ".html")


def chosen_format(named: Format | None, output: Path | None, figure: Path | None) -> Format:
    """The format that was named, else that of the file's ending, else CSV if it has none."""
    ending = "" if output is None else output.suffix.lower()
    if named is None and ending in _FIGURES:
        raise SettingsError(
            f"--output {output}: rows are not a picture; nothing was written. Draw them with "
            f"--figure {output}, or name the rows' --format"
        )
    if named is None and ending and ending not in _ENDINGS:
        *most, last = _ENDINGS
        raise SettingsError(
            f"--output {output}: {quoted(ending)} is not a format of rows; nothing was written. "
            f"End its name in {', '.join(most)} or {last}, or name the --format"
        )
    file_format = named or _ENDINGS.get(ending, "csv")
    if file_format == "parquet" and output is None and figure is None:
        raise SettingsError(
            "--format parquet: it is not for a terminal; nothing was written. Name a file, as in "
            "--output heat.parquet"
        )
    return file_format


# --- as typed columns, for libraries that are an extra ------------------------------------------

_TYPES: Final[dict[Kind, tuple[type, ...]]] = {
    "text": (str,),
    "whole": (int,),
    "number": (float, int),
    "flag": (bool,),
    "time": (str,),
}


def columns_of(table: Iterable[Mapping[str, Any]]) -> Columns:
    """All rows, column by column; a row that lacks a column has nothing in it.

    What is not of a column's kind is a ValueError that names the column.
    """
    columns: Columns = {name: [] for name in COLUMNS}
    for row in table:
        for name, kind in KINDS.items():
            columns[name].append(_cell(name, kind, row.get(name)))
    return columns


def _cell(name: str, kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    fits = isinstance(value, _TYPES[kind]) and (kind == "flag" or not isinstance(value, bool))
    if not fits:
        raise ValueError(f"column {name} holds a {type(value).__name__} where a {kind} belongs")
    if kind == "number":
        return float(value)
    return datetime.fromisoformat(value) if kind == "time" else value


def to_pandas(columns: Columns) -> Any:
    pandas = import_extra("pandas", "a table for pandas")
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
    polars = import_extra("polars", "a table for polars")
    types = {
        "text": polars.String,
        "whole": polars.Int64,
        "number": polars.Float64,
        "flag": polars.Boolean,
        "time": polars.Datetime("us", "UTC"),
    }
    return polars.DataFrame(columns, schema={name: types[kind] for name, kind in KINDS.items()})


def to_arrow(columns: Columns) -> Any:
    arrow = import_extra("pyarrow", "an Arrow table")
    types = {
        "text": arrow.string(),
        "whole": arrow.int64(),
        "number": arrow.float64(),
        "flag": arrow.bool_(),
        "time": arrow.timestamp("us", tz="UTC"),
    }
    fields = [arrow.field(name, types[kind]) for name, kind in KINDS.items()]
    return arrow.table(columns, schema=arrow.schema(fields))


def import_extra(module: str, what: str) -> Any:
    """A module of a package that only some installations have."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPackage(
            f"{what} needs {package}, which is not installed here; nothing was written. It comes "
            f"with allomfree's extra `analysis`; or run: pip install {package}"
        ) from None
