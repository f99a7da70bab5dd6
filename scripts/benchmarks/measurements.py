"""A measured number beside the limit it must keep, and tables of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number. Without a limit it is for information; without a value it was not available.

    `low` and `high` are the least and the greatest of the repeats whose median is the value.
    """

    what: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    note: str = ""
    at_least: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """`ok`, `BROKEN`, or why nothing is judged."""
        if self.value is None:
            return "not available"
        if self.limit is None and self.at_least is None:
            return "for information"
        low = self.at_least is None or self.value >= self.at_least
        high = self.limit is None or self.value <= self.limit
        return "ok" if low and high else "BROKEN"


def median_of(
    what: str,
    values: Sequence[float],
    unit: str = "",
    *,
    note: str = "",
    limit: float | None = None,
    at_least: float | None = None,
) -> Measurement:
    """The median of several repeats with the least and the greatest of them."""
    middle = statistics.median(values)
    return Measurement(what, middle, unit, limit, note, at_least, min(values), max(values))


def ratio_of(
    what: str,
    above: Sequence[float],
    below: Sequence[float],
    *,
    note: str = "",
    limit: float | None = None,
    at_least: float | None = None,
) -> Measurement:
    """How many times `below` goes into `above`, repeat by repeat: each pair was run in turns."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return median_of(what, ratios, "x", note=note, limit=limit, at_least=at_least)


def in_turns(
    repeats: int, ours: Callable[[int], T], theirs: Callable[[int], T]
) -> tuple[list[T], list[T]]:
    """Both sides `repeats` times, each told the repeat's number; who goes first alternates.

    So a machine that slows down, or does other things for a while, does it to both.
    """
    mine, other = [], []
    for repeat in range(repeats):
        if repeat % 2:
            other.append(theirs(repeat))
        mine.append(ours(repeat))
        if not repeat % 2:
            other.append(theirs(repeat))
    return mine, other


def kept(measurements: Sequence[Measurement]) -> bool:
    """Whether no limit is broken."""
    return all(m.verdict != "BROKEN" for m in measurements)


def facts(subject: str, measurements: Sequence[Measurement]) -> dict[str, object]:
    """What the JSON of one benchmark holds."""
    rows = [{**asdict(m), "verdict": m.verdict} for m in measurements]
    return {"benchmark": subject, "ok": kept(measurements), "measurements": rows}


def as_json(subject: str, measurements: Sequence[Measurement]) -> str:
    """One object."""
    return json.dumps(facts(subject, measurements), ensure_ascii=False)


HEAD = ("what", "measured", "limit", "verdict", "")


def as_text(measurements: Sequence[Measurement]) -> str:
    """A table for people."""
    rows = [HEAD, *(cells(m) for m in measurements)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:<{widths[3]}}  {e}".rstrip()
        for a, b, c, d, e in rows
    )


def cells(m: Measurement) -> tuple[str, str, str, str, str]:
    """What, measured with its spread, limit, verdict, note."""
    value = "-" if m.value is None else f"{_number(m.value)} {m.unit}".strip()
    if m.low is not None and m.high is not None and m.low != m.high:
        value += f" ({_number(m.low)} to {_number(m.high)})"
    limit = "-" if m.limit is None else f"<= {_number(m.limit)}"
    limit = limit if m.at_least is None else f">= {_number(m.at_least)}"
    return m.what, value, limit, m.verdict, m.note


def _number(value: float) -> str:
    """Three digits are all a benchmark can vouch for; a number of reports keeps its own."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
