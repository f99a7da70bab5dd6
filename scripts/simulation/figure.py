"""Estimates, their intervals and the truth as a picture, drawn as the collector draws results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collector.charts import EVERY, MOST_BARS, Chart, Point, Series, largest, png, svg
from collector.errors import CollectorError
from simulation.errors import SimulationError
from simulation.records import Row, pooled


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """The pooled histogram of every attribute, into an .svg or .png file."""
    shown = [row for row in pooled(rows) if not row["withheld"]]
    names = dict.fromkeys(row["attribute"] for row in shown)
    if not names:
        raise SimulationError("every histogram is withheld: there is nothing to draw")
    made = [_chart([row for row in shown if row["attribute"] == name]) for name in names]
    try:
        content = svg(made, title).encode() if path.suffix == ".svg" else png(made, title)
        path.write_bytes(content)
    except CollectorError as error:
        raise SimulationError(str(error)) from None
    except OSError as error:
        raise SimulationError(f"{path} cannot be written: {error.strerror}") from None


def _chart(rows: Sequence[Row]) -> Chart:
    """Bars with the intervals that hold for all of them: a reader picks a bar by its length."""
    first, series = rows[0], [_series(row) for row in rows]
    rounds = "1 round" if first["rounds"] == 1 else f"{first['rounds']} rounds pooled"
    note = f"{rounds}, {first['n']:,} reports of {first['devices']:,} devices, {first['protocol']}"
    return Chart(first["attribute"], note, largest(series, MOST_BARS), EVERY, len(series))


def _series(row: Row) -> Series:
    point = Point(row["round"], row["raw"], row["low_all"], row["high_all"])
    return Series(row["value"], (point,), row["truth"])
