"""Charts and their numbers as one HTML page that needs nothing else and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from collector.show.charts import Chart, Point, Series
from collector.show.palette import DARK, LIGHT
from collector.show.svg import STYLE, WIDTH, draw

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_PAGE_STYLE: Final = (
    f"body{{font:15px/1.5 system-ui,sans-serif;color:{LIGHT.ink};background:{LIGHT.panel};"
    "margin:2rem auto;max-width:46rem;padding:0 1rem}svg{max-width:100%;height:auto}"
    "table{border-collapse:collapse;margin:1rem 0 2.5rem}"
    f"caption{{text-align:left;color:{LIGHT.quiet}}}"
    "th,td{padding:.15rem .8rem .15rem 0;text-align:right;"
    f"border-bottom:1px solid {LIGHT.line}}}"
    "th:first-child{text-align:left}th[scope=row]{font-weight:400}"
    f"@media(prefers-color-scheme:dark){{body{{color:{DARK.ink};background:{DARK.ground}}}"
    f"svg text{{fill:{DARK.ink}}}svg .soft,caption{{fill:{DARK.quiet};color:{DARK.quiet}}}"
    f"svg .bar,svg .band{{fill:{DARK.bar}}}svg .line{{stroke:{DARK.accent}}}"
    f"svg .dot{{fill:{DARK.accent}}}svg .interval{{stroke:{DARK.interval}}}"
    f"svg .pooled{{stroke:{DARK.pooled}}}svg .pooled-band{{fill:{DARK.pooled}}}"
    f"svg .axis{{stroke:{DARK.line}}}svg .true{{stroke:{DARK.truth}}}"
    f"th,td{{border-color:{DARK.line}}}}}"
)


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
        f'<th scope="col">{name}</th>' for name in ("value", "round", "raw", "low", "high")
    )
    caption = f"<caption>{escape(chart.caption)}; {escape(chart.legend)}, in per cent</caption>"
    table = f"<table>{caption}<tr>{columns}</tr>{''.join(rows)}</table>" if rows else ""
    return f"<section>{picture}{table}</section>"


def _row(series: Series, point: Point) -> str:
    numbers = "".join(f"<td>{100 * x:.2f}</td>" for x in (point.share, point.low, point.high))
    which = "pooled" if point.round is None else point.round
    return f'<tr><th scope="row">{escape(series.name)}</th><td>{which}</td>{numbers}</tr>'
