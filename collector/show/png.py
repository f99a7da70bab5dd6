"""Charts as PNG, drawn by matplotlib, which only some installations have."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from collector.errors import CollectorError
from collector.show.charts import Chart, Series, unbroken


def png(made: Sequence[Chart], title: str) -> bytes:
    """All charts below one another in one file."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CollectorError(
            "a PNG needs matplotlib, which is not installed; nothing was written. Install it with "
            "pip install 'allomfree[sim]', or choose a name that ends in .svg or .html"
        )
    from matplotlib.figure import Figure  # noqa: PLC0415 - not part of the collector's extra

    heights = [_inches(chart) for chart in made]
    sheet = Figure(figsize=(7.2, sum(heights) + 0.4), dpi=150, layout="constrained")
    sheet.suptitle(_plain(title), fontsize=9)
    parts = sheet.subfigures(len(made), 1, height_ratios=heights, squeeze=False)
    for chart, part in zip(made, parts[:, 0]):
        _paint(chart, part)
    content = io.BytesIO()
    sheet.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _inches(chart: Chart) -> float:
    if chart.over_time:
        return 0.7 + 1.5 * -(-len(chart.series) // 3)
    return 0.9 + 0.26 * len(chart.series)


def _paint(chart: Chart, part: Any) -> None:
    part.suptitle(_plain(f"{chart.question}\n{chart.note}"), fontsize=8)
    if not chart.series:
        return
    if not chart.over_time:
        _paint_bars(chart, part.subplots())
        return
    rows = -(-len(chart.series) // 3)
    axes = part.subplots(rows, 3, sharex=True, sharey=True, squeeze=False).flat
    for series, ax in zip(chart.series, axes):
        _paint_line(series, ax)
    for ax in list(axes.base.flat)[len(chart.series) :]:
        ax.set_visible(False)


def _paint_bars(chart: Chart, ax: Any) -> None:
    places = range(len(chart.series))
    points = [series.points[0] for series in chart.series]
    ax.barh(places, [100 * p.share for p in points], color="#7fa6cf", height=0.65)
    for y, point, series in zip(places, points, chart.series):
        ax.plot([100 * point.low, 100 * point.high], [y, y], "|-", color="#24507f", lw=1.1)
        if series.true is not None:
            x = 100 * series.true
            ax.plot([x, x], [y - 0.45, y + 0.45], ":", color="#c2571a", lw=1.4)
    ax.set_yticks(places, [_plain(s.name) for s in chart.series], fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel("per cent, with 95 % intervals", fontsize=7)
    ax.tick_params(axis="x", labelsize=7)


def _paint_line(series: Series, ax: Any) -> None:
    for run in unbroken(series.points):
        rounds = [p.round for p in run]
        low, share, high = ([100 * getattr(p, n) for p in run] for n in ("low", "share", "high"))
        ax.fill_between(rounds, low, high, color="#cfdff0", lw=0)
        ax.plot(rounds, share, ".-" if len(run) == 1 else "-", color="#2f6aa8", lw=1.2)
    if series.true is not None:
        ax.axhline(100 * series.true, color="#c2571a", lw=1.2, ls=":")
    ax.set_title(_plain(series.name), fontsize=7)
    ax.tick_params(labelsize=6)


def _plain(text: str) -> str:
    """Dollar signs begin a formula in matplotlib; a name is none."""
    return text.replace("$", r"\$")
