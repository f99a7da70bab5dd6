"""Results as rows: one row per value, the same columns in CSV, JSON and NDJSON.

The columns are documented in docs/results.md; a column is only ever added at the end.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from collector.records import Campaign
from protocol_spec import Manifest, Result

Format = Literal["csv", "json", "ndjson"]

COLUMNS: Final = (
    "campaign",
    "digest",
    "attribute",
    "round",
    "rounds",
    "value",
    "protocol",
    "n",
    "devices",
    "min_reports",
    "withheld",
    "count",
    "raw",
    "projected",
    "privacy_error",
    "sampling_error",
    "confidence",
    "low",
    "high",
    "low_all",
    "high_all",
    "device_bound",
)


def rows(campaign: Campaign, results: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """One row per value; numbers are None where the histogram is withheld."""
    for result in results:
        names = _values(campaign.manifest, result.attribute)
        for i, value in enumerate(names):
            yield _row(campaign, result, i, value)


def _values(manifest: Manifest, attribute: str) -> tuple[str, ...]:
    return next(a.values for a in manifest.attributes if a.name == attribute)


def _row(campaign: Campaign, result: Result, i: int, value: str) -> dict[str, Any]:
    shown = not result.withheld
    series = ("raw", "projected", "privacy_error", "sampling_error")
    bounds = ("low", "high", "low_all", "high_all")
    numbers = {name: getattr(result, name)[i] if shown else None for name in series + bounds}
    row = {
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
        "count": result.counts[i] if shown else None,
        "confidence": result.confidence,
        "device_bound": result.device_bound if shown else None,
        **numbers,
    }
    return {name: row[name] for name in COLUMNS}


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
