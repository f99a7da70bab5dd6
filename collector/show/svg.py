"""Charts as SVG. The same results give the same bytes; nothing is fetched and nothing runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from collector.show.charts import Chart, Point, Series, unbroken

WIDTH: Final = 720
_LABEL, _NUMBERS, _ROW = 180, 150, 26
_PANEL_WIDTH, _PANEL_HEIGHT, _COLUMNS = 240, 150, 3
_LONGEST_NAME: Final = 26

STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#2b3440}"
    ".title{font-size:16px;font-weight:600}.soft{fill:#5f6b7a;font-size:12px}"
    ".bar{fill:#7fa6cf}.band{fill:#cfdff0}.line{fill:none;stroke:#2f6aa8;stroke-width:1.6}"
    ".interval{stroke:#24507f;stroke-width:1.4}.axis{stroke:#c3ccd6}"
    ".true{stroke:#c2571a;stroke-width:1.6;stroke-dasharray:2 3}"
)


def svg(made: Sequence[Chart], title: str) -> str:
    """All charts below one another in one file."""
    y, body = 16.0, []
    for chart in made:
        drawn, height = draw(chart)
        body.append(f'<g transform="translate(0 {_n(y)})">{drawn}</g>')
        y += height + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{_n(y)}" '
        f'viewBox="0 0 {WIDTH} {_n(y)}" role="img"><title>{escape(title)}</title>'
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f"{''.join(body)}</svg>\n"
    )


def draw(chart: Chart) -> tuple[str, float]:
    """A chart's elements from the origin, and its height."""
    head = _text(16, 16, chart.question, "title") + _text(16, 36, chart.note, "soft")
    if not chart.series:
        return head, 44
    body, height = _lines(chart) if chart.over_time else _bars(chart)
    return head + body, height


def _bars(chart: Chart) -> tuple[str, float]:
    left, span = _LABEL + 16, WIDTH - _LABEL - _NUMBERS - 32
    scale, rows = span / chart.top, []
    for i, series in enumerate(chart.series):
        (point,), y = series.points, 52 + i * _ROW
        low, high, middle = (
            left + point.low * scale,
            left + point.high * scale,
            y + 9,
        )
        rows += [
            _text(left - 10, y + 13, _short(series.name), "", anchor="end"),
            f'<rect class="bar" x="{left}" y="{y}" width="{_n(point.share * scale)}" height="18"/>',
            _line("interval", low, middle, high, middle),
            _line("interval", low, middle - 4, low, middle + 4),
            _line("interval", high, middle - 4, high, middle + 4),
            _text(WIDTH - 16, y + 13, _numbers(point), "soft", anchor="end"),
        ]
        if series.true is not None:
            x = left + series.true * scale
            rows.append(_line("true", x, y - 2, x, y + 20))
    bottom = 52 + len(chart.series) * _ROW
    rows.append(_line("axis", left, 46, left, bottom))
    rows.append(_text(left, bottom + 16, _legend(chart), "soft"))
    return "".join(rows), bottom + 20


def _lines(chart: Chart) -> tuple[str, float]:
    """A small panel for each value, all of one scale, so that they can be compared."""
    panels = []
    for i, series in enumerate(chart.series):
        x, y = (i % _COLUMNS) * _PANEL_WIDTH, 48 + (i // _COLUMNS) * _PANEL_HEIGHT
        panels.append(f'<g transform="translate({x} {y})">{_panel(series, chart.top)}</g>')
    bottom = 48 + -(-len(chart.series) // _COLUMNS) * _PANEL_HEIGHT
    return "".join(panels) + _text(16, bottom + 12, _legend(chart), "soft"), bottom + 16


def _panel(series: Series, top: float) -> str:
    left, right, base, height = 44, _PANEL_WIDTH - 12, _PANEL_HEIGHT - 28, _PANEL_HEIGHT - 52
    numbers = [p.round or 0 for p in series.points]
    first, last = numbers[0], numbers[-1]

    def x(number: int) -> float:
        return left + (number - first) / max(1, last - first) * (right - left)

    def y(share: float) -> float:
        return base - share / top * height

    parts = [
        _text(left, 14, _short(series.name), ""),
        _line("axis", left, base, right, base),
        _text(left - 6, base + 4, "0", "soft", anchor="end"),
        _text(left - 6, base - height + 4, f"{100 * top:.0f} %", "soft", anchor="end"),
        _text(left, base + 16, str(first), "soft"),
        _text(right, base + 16, str(last), "soft", anchor="end"),
    ]
    for run in unbroken(series.points):
        at = [x(p.round or 0) for p in run]
        upper = [f"{_n(a)},{_n(y(p.high))}" for a, p in zip(at, run)]
        lower = [f"{_n(a)},{_n(y(p.low))}" for a, p in zip(at, run)]
        middle = [f"{_n(a)},{_n(y(p.share))}" for a, p in zip(at, run)]
        if len(run) == 1:  # a round between two that are withheld
            (point,) = run
            parts.append(_line("interval", at[0], y(point.low), at[0], y(point.high)))
        parts.append(f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>')
        parts.append(f'<polyline class="line" points="{" ".join(middle)}"/>')
    if series.true is not None:
        parts.append(_line("true", left, y(series.true), right, y(series.true)))
    return "".join(parts)


def _numbers(point: Point) -> str:
    return f"{100 * point.share:.1f} % ({100 * point.low:.1f} … {100 * point.high:.1f})"


def _legend(chart: Chart) -> str:
    truth = any(s.true is not None for s in chart.series)
    return "95 % intervals" + ("; dotted: the truth of the simulation" if truth else "")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
    return f'<line class="{kind}" {ends}/>'


def _n(number: float) -> str:
    """A coordinate to a tenth of a pixel, so that the last bits of a float do not show."""
    return f"{number:.1f}".removesuffix(".0")
