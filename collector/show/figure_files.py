"""Figures as files: SVG, one HTML page that needs nothing else, and PNG where matplotlib is."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from collector.errors import CollectorError
from collector.records import Campaign
from collector.show.charts import STYLE, WIDTH, Chart, Point, Series, charts, draw, svg, unbroken
from protocol_spec import Result
from protocol_spec.programs.errors import SettingsError

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_PAGE_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#2b3440;background:#fff;margin:2rem auto;"
    "max-width:46rem;padding:0 1rem}svg{max-width:100%;height:auto}"
    "table{border-collapse:collapse;margin:1rem 0 2.5rem}caption{text-align:left;color:#5f6b7a}"
    "th,td{padding:.15rem .8rem .15rem 0;text-align:right;border-bottom:1px solid #e3e8ee}"
    "th:first-child{text-align:left}th[scope=row]{font-weight:400}"
    "@media(prefers-color-scheme:dark){body{color:#d8dee6;background:#14181d}svg text{fill:#d8dee6}"
    "svg .soft,caption{fill:#93a0ae;color:#93a0ae}svg .bar{fill:#3f6d9e}svg .band{fill:#24405c}"
    "svg .line,svg .interval{stroke:#8fbcec}svg .axis{stroke:#3a4450}svg .true{stroke:#e8894a}"
    "th,td{border-color:#2a323b}}"
)


def figure(
    campaign: Campaign,
    results: Sequence[Result],
    truth: Mapping[str, Sequence[float]] | None,
    path: Path,
) -> bytes:
    """The file's content; its kind is that of the path's ending."""
    kinds: dict[str, Callable[[Sequence[Chart], str], bytes]] = {
        ".svg": lambda made, title: svg(made, title).encode(),
        ".html": lambda made, title: html(made, title).encode(),
        ".png": png,
    }
    if path.suffix not in kinds:
        raise SettingsError(
            f"--figure {path}: the name must end in .svg, .png or .html; nothing was written"
        )
    if not results:
        raise CollectorError(
            f"{campaign.name}: no round is sealed yet; nothing was written. "
            "See allomfree-collector status"
        )
    title = f"{campaign.manifest.title} ({campaign.name})"
    return kinds[path.suffix](charts(campaign, results, truth), title)


# --- HTML ----------------------------------------------------------------------------------------


def html(made: Sequence[Chart], title: str) -> str:
    """A page of figures and their numbers."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{_PAGE_STYLE}</style>"
    )
    body = "".join(map(_section, made))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>'
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _section(chart: Chart) -> str:
    drawn, height = draw(chart)
    picture = (
        f'<svg width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}" role="img">'
        f"<title>{escape(chart.question)}</title>{drawn}</svg>"
    )
    rows = [_row(series, point) for series in chart.series for point in series.points]
    columns = "".join(
        f'<th scope="col">{name}</th>' for name in ("value", "round", "estimate", "low", "high")
    )
    caption = f"<caption>{escape(chart.note)}; estimates and 95 % intervals in per cent</caption>"
    table = f"<table>{caption}<tr>{columns}</tr>{''.join(rows)}</table>" if rows else ""
    return f"<section>{picture}{table}</section>"


def _row(series: Series, point: Point) -> str:
    numbers = "".join(f"<td>{100 * x:.2f}</td>" for x in (point.share, point.low, point.high))
    which = "pooled" if point.round is None else point.round
    return f'<tr><th scope="row">{escape(series.name)}</th><td>{which}</td>{numbers}</tr>'


# --- PNG -----------------------------------------------------------------------------------------


def png(made: Sequence[Chart], title: str) -> bytes:
    """The same charts drawn by matplotlib, which only some installations have."""
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
