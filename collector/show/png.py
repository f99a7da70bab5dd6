"""Charts as PNG, drawn by matplotlib, which only some installations have."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from collector.errors import CollectorError
from collector.show.charts import Chart, Series, unbroken
from collector.show.palette import BAND, LIGHT, POOLED_BAND


def png(made: Sequence[Chart], title: str) -> bytes:
    """All charts below one another in one file."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CollectorError(
            "a PNG needs matplotlib, which is not installed; nothing was written. Run pip "
            "install matplotlib, or choose a name that ends in .svg or .html"
        )
    from matplotlib.figure import Figure  # noqa: PLC0415 - not part of the collector's extra

    heights = [_inches(chart) for chart in made]
    sheet = Figure(figsize=(7.2, sum(heights) + 0.4), dpi=150, layout="constrained")
    sheet.suptitle(_plain(title), fontsize=9, color=LIGHT.ink)
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
    part.suptitle(_plain(f"{chart.question}\n{chart.caption}"), fontsize=8, color=LIGHT.ink)
    if not chart.series:
        return
    part.supxlabel(_plain(f"per cent; {chart.legend}"), fontsize=7, color=LIGHT.quiet)
    if not chart.over_time:
        _paint_bars(chart, _bare(part.subplots()))
        return
    rows = -(-len(chart.series) // 3)
    axes = part.subplots(rows, 3, sharex=True, sharey=True, squeeze=False).flat
    for series, ax in zip(chart.series, axes):
        _paint_line(series, _bare(ax))
        ax.set_xticks([series.points[0].at, series.points[-1].at], chart.dates)
        for label, side in zip(ax.get_xticklabels(), ("left", "right")):
            label.set_horizontalalignment(side)
    for ax in list(axes.base.flat)[len(chart.series) :]:
        ax.set_visible(False)


def _bare(ax: Any) -> Any:
    """Axes as on the page: a soft line at the left and below, and nothing around."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(LIGHT.line)
    ax.tick_params(colors=LIGHT.quiet, labelsize=7)
    return ax


def _paint_bars(chart: Chart, ax: Any) -> None:
    places = range(len(chart.series))
    points = [series.points[0] for series in chart.series]
    ax.barh(places, [100 * p.share for p in points], color=LIGHT.bar, height=0.65)
    for y, point, series in zip(places, points, chart.series):
        ax.plot([100 * point.low, 100 * point.high], [y, y], "|-", color=LIGHT.interval, lw=1.1)
        if series.true is not None:
            x = 100 * series.true
            ax.plot([x, x], [y - 0.45, y + 0.45], ":", color=LIGHT.truth, lw=1.4)
    ax.set_yticks(places, [_plain(s.name) for s in chart.series], fontsize=7, color=LIGHT.ink)
    ax.invert_yaxis()


def _paint_line(series: Series, ax: Any) -> None:
    if series.pooled is not None:
        low, share, high = (100 * getattr(series.pooled, n) for n in ("low", "share", "high"))
        ax.axhspan(low, high, color=LIGHT.pooled, alpha=POOLED_BAND, lw=0)
        ax.axhline(share, color=LIGHT.pooled, lw=1.0)
    for run in unbroken(series.points):
        times = [p.at for p in run]
        lows, shares, highs = ([100 * getattr(p, n) for p in run] for n in ("low", "share", "high"))
        ax.fill_between(times, lows, highs, color=LIGHT.bar, alpha=BAND, lw=0)
        ax.plot(times, shares, ".-" if len(run) == 1 else "-", color=LIGHT.accent, lw=1.2)
    if series.true is not None:
        ax.axhline(100 * series.true, color=LIGHT.truth, lw=1.2, ls=":")
    ax.set_title(_plain(series.name), fontsize=7, color=LIGHT.ink)


def _plain(text: str) -> str:
    """Dollar signs begin a formula in matplotlib; a name is none."""
    return text.replace("$", r"\$")
