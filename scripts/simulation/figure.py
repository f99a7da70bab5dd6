"""Estimates, their intervals and the truth as a picture, one panel for each attribute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulation.errors import SimulationError
from simulation.records import Row, pooled

ESTIMATE, TRUTH = "#4477aa", "#222222"
WIDEST = 64  # values with a name each; more are numbered
LETTERS = 80  # that fit side by side under a panel


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """The pooled histogram of every attribute, into an .svg or .png file."""
    shown = [row for row in pooled(rows) if not row["withheld"]]
    names = list(dict.fromkeys(row["attribute"] for row in shown))
    if not names:
        raise SimulationError("every histogram is withheld: there is nothing to draw")
    columns = min(len(names), 2)
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(6.0 * columns, 3.2 * lines + 0.5), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for axes, name in zip(panels, names):
        _panel(axes, [row for row in shown if row["attribute"] == name])
    for axes in list(figure.axes)[len(names) :]:
        axes.set_visible(False)
    _save(figure, path)


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    bars = [100 * row["projected"] for row in rows]
    low = [100 * max(0.0, row["projected"] - row["low_all"]) for row in rows]
    high = [100 * max(0.0, row["high_all"] - row["projected"]) for row in rows]
    axes.bar(places, bars, color=ESTIMATE, alpha=0.75, label="estimate")
    axes.errorbar(
        places, bars, yerr=[low, high], fmt="none", ecolor=ESTIMATE, capsize=2, label="95 %, all"
    )
    axes.plot(places, [100 * row["truth"] for row in rows], "o", color=TRUTH, ms=3, label="truth")
    first = rows[0]
    axes.set_title(f"{first['attribute']} ({first['protocol']}, n = {first['devices']:,})")
    axes.set_ylabel("%")
    if len(rows) <= WIDEST:
        labels = [row["value"] for row in rows]
        crowded = len(rows) * max(map(len, labels)) > LETTERS
        tilt: dict[str, Any] = {"rotation": 90} if crowded else {}
        axes.set_xticks(places, labels, fontsize=7, **tilt)
    axes.legend(frameon=False, fontsize=7)


def _save(figure: Figure, path: Path) -> None:
    """The same picture gives the same bytes."""
    with mpl.rc_context({"svg.hashsalt": "allomfree", "svg.fonttype": "none"}):
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        try:
            figure.savefig(path, dpi=120, metadata=metadata)
        except OSError as error:
            raise SimulationError(f"{path} cannot be written: {error.strerror}") from None
