"""Results as rows: one row per value, the same columns in CSV, JSON and NDJSON.

The columns are documented in docs/results.md; a column is only ever added at the end.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypedDict

from collector.records import Campaign
from collector.show.estimates import half_widths
from protocol_spec import Attribute, Manifest, Numbers, Reporting, Result, ResultQuantile

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
    n_eff: float | None
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
    n_eff: float | None
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
    difference, numbers = half_widths(campaign.manifest, result), result.numbers or NO_NUMBERS
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


def times(campaign: Campaign, result: Result) -> tuple[str | None, str | None]:
    """When the first of a result's rounds begins and the last ends; old pooled ones do not say."""
    rounds, number = campaign.manifest.rounds, result.round
    first, last = (number, number) if number is not None else (result.first, result.last)
    if first is None or last is None:
        return None, None
    return instant(rounds.opens(first)), instant(rounds.closes(last))


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
