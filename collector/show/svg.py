"""Charts as SVG. The same results give the same bytes; nothing is fetched and nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

from collector.show.charts import Chart, Point, Series, unbroken
from collector.show.palette import BAND, LIGHT, POOLED_BAND

WIDTH: Final = 720
_LABEL, _NUMBERS, _ROW = 180, 150, 26
_PANEL_WIDTH, _PANEL_HEIGHT, _COLUMNS = 240, 150, 3
_LONGEST_NAME: Final = 26

STYLE: Final = (
    f"text{{font:13px system-ui,sans-serif;fill:{LIGHT.ink}}}"
    f".title{{font-size:16px;font-weight:600}}.soft{{fill:{LIGHT.quiet};font-size:12px}}"
    f".bar{{fill:{LIGHT.bar}}}.band{{fill:{LIGHT.bar};fill-opacity:{BAND}}}"
    f".line{{fill:none;stroke:{LIGHT.accent};stroke-width:1.6}}.dot{{fill:{LIGHT.accent}}}"
    f".interval{{stroke:{LIGHT.interval};stroke-width:1.4}}.axis{{stroke:{LIGHT.line}}}"
    f".pooled{{stroke:{LIGHT.pooled};stroke-width:1.4}}"
    f".pooled-band{{fill:{LIGHT.pooled};fill-opacity:{POOLED_BAND}}}"
    f".true{{stroke:{LIGHT.truth};stroke-width:1.6;stroke-dasharray:2 3}}"
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
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="{LIGHT.panel}"/>'
        f"{''.join(body)}</svg>\n"
    )


def draw(chart: Chart) -> tuple[str, float]:
    """A chart's elements from the origin, and its height."""
    head = _text(16, 16, chart.question, "title") + _text(16, 36, chart.caption, "soft")
    if not chart.series:
        return head, 44
    body, height = _lines(chart) if chart.over_time else _bars(chart)
    return head + body, height


def _bars(chart: Chart) -> tuple[str, float]:
    left, span = _LABEL + 16, WIDTH - _LABEL - _NUMBERS - 32
    scale = span / (chart.top - chart.bottom)

    def x(share: float) -> float:
        return left + (share - chart.bottom) * scale

    rows = [part for i, s in enumerate(chart.series) for part in _bar(s, 52.0 + i * _ROW, x)]
    bottom = 52 + len(chart.series) * _ROW
    rows.append(_line("axis", x(0.0), 46, x(0.0), bottom))
    rows.append(_text(16, bottom + 16, chart.legend, "soft"))
    return "".join(rows), bottom + 20


def _bar(series: Series, y: float, x: Callable[[float], float]) -> Iterator[str]:
    (point,), middle = series.points, y + 9
    low, high, begin = x(point.low), x(point.high), x(min(0.0, point.share))
    width = _n(abs(x(point.share) - x(0.0)))
    yield _text(_LABEL + 6, y + 13, _short(series.name), "", anchor="end")
    yield f'<rect class="bar" x="{_n(begin)}" y="{_n(y)}" width="{width}" height="18"/>'
    yield _line("interval", low, middle, high, middle)
    yield _line("interval", low, middle - 4, low, middle + 4)
    yield _line("interval", high, middle - 4, high, middle + 4)
    yield _text(WIDTH - 16, y + 13, _numbers(point), "soft", anchor="end")
    if series.true is not None:
        yield _line("true", x(series.true), y - 2, x(series.true), y + 20)


def _lines(chart: Chart) -> tuple[str, float]:
    """A small panel for each value, all of one scale, so that they can be compared."""
    panels = []
    for i, series in enumerate(chart.series):
        x, y = (i % _COLUMNS) * _PANEL_WIDTH, 48 + (i // _COLUMNS) * _PANEL_HEIGHT
        panels.append(f'<g transform="translate({x} {y})">{_panel(series, chart)}</g>')
    bottom = 48 + -(-len(chart.series) // _COLUMNS) * _PANEL_HEIGHT
    return "".join(panels) + _text(16, bottom + 12, chart.legend, "soft"), bottom + 16


def _panel(series: Series, chart: Chart) -> str:
    left, right, base, height = 44, _PANEL_WIDTH - 12, _PANEL_HEIGHT - 28, _PANEL_HEIGHT - 52
    first, last = series.points[0].at, series.points[-1].at

    def x(at: int) -> float:
        return left + (at - first) / max(1, last - first) * (right - left)

    def y(share: float) -> float:
        return base - (share - chart.bottom) / (chart.top - chart.bottom) * height

    begins, ends = chart.dates
    parts = [
        _text(left, 14, _short(series.name), ""),
        _line("axis", left, y(0.0), right, y(0.0)),
        _text(left - 6, y(0.0) + 4, "0", "soft", anchor="end"),
        _text(left - 6, base - height + 4, f"{100 * chart.top:.0f} %", "soft", anchor="end"),
        _text(left, base + 16, begins, "soft"),
        _text(right, base + 16, ends, "soft", anchor="end"),
        *([] if series.pooled is None else _pooled(series.pooled, left, right, y)),
    ]
    for run in unbroken(series.points):
        parts += _run([x(p.at) for p in run], run, y)
    if series.true is not None:
        parts.append(_line("true", left, y(series.true), right, y(series.true)))
    return "".join(parts)


def _pooled(point: Point, left: float, right: float, y: Callable[[float], float]) -> Iterator[str]:
    """All rounds together, with their interval, behind the rounds."""
    top, height = y(point.high), y(point.low) - y(point.high)
    size = f'width="{_n(right - left)}" height="{_n(height)}"'
    yield f'<rect class="pooled-band" x="{_n(left)}" y="{_n(top)}" {size}/>'
    yield _line("pooled", left, y(point.share), right, y(point.share))


def _run(at: Sequence[float], run: Sequence[Point], y: Callable[[float], float]) -> Iterator[str]:
    """Rounds without a gap; one alone, between two that are withheld, is a dot."""
    upper = [f"{_n(a)},{_n(y(p.high))}" for a, p in zip(at, run)]
    lower = [f"{_n(a)},{_n(y(p.low))}" for a, p in zip(at, run)]
    middle = [f"{_n(a)},{_n(y(p.share))}" for a, p in zip(at, run)]
    if len(run) == 1:
        yield _line("interval", at[0], y(run[0].low), at[0], y(run[0].high))
        yield f'<circle class="dot" cx="{_n(at[0])}" cy="{_n(y(run[0].share))}" r="2.5"/>'
    yield f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>'
    yield f'<polyline class="line" points="{" ".join(middle)}"/>'


def _numbers(point: Point) -> str:
    return f"{100 * point.share:.1f} % ({100 * point.low:.1f} … {100 * point.high:.1f})"


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
