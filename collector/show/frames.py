"""Rows as columns with types: for pandas, polars, Arrow and Parquet, which are an extra.

Times are moments in UTC; what a row does not state is missing, never 0 or an empty text.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, get_type_hints

from collector.errors import MissingPackage
from collector.show.tables import COLUMNS, Row

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
