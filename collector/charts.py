"""What a figure of results draws: bars for one result, a line with its band over rounds.

The number of a bar or point is the raw estimate, as everywhere: it is the one that the interval
belongs to. Where it is below 0 a bar goes to the left.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from collector.errors import CollectorError
from collector.records import Campaign
from collector.results.estimates import most_interesting
from collector.results.facts import Latest, latest_results, pooled_of
from collector.store import Store
from protocol_spec import Result
from protocol_spec.programs.settings import SettingsError

MOST_BARS: Final = 50
MOST_PANELS: Final = 60
EACH: Final = "95 % intervals"
EVERY: Final = "95 % intervals for all values at once"
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class Point:
    """An estimate and its interval, as shares of 1; `round` is None for pooled rounds.

    Of several rounds together that follow others, `round` is the last one and `first` the first.
    `at` is the middle of these rounds, in seconds of Unix time.
    """

    round: int | None
    share: float
    low: float
    high: float
    first: int | None = None
    at: int = 0

    @property
    def begins(self) -> int:
        """The first round in it."""
        return (self.round or 0) if self.first is None else self.first


@dataclass(frozen=True, slots=True)
class Series:
    """One value of an attribute, in one result or in one round after the other.

    `pooled` is all rounds together, drawn behind the rounds.
    """

    name: str
    points: tuple[Point, ...]
    true: float | None
    pooled: Point | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One attribute. Without series it says why: the histogram is withheld."""

    question: str
    note: str
    series: tuple[Series, ...]
    intervals: str = EACH
    values: int = 0  # that the question has, of which the largest may be all that is drawn

    @property
    def caption(self) -> str:
        """The note, and how many of the values are drawn."""
        drawn = len(self.series)
        more = f"; the {drawn} largest of {self.values:,} values" if drawn < self.values else ""
        return self.note + (more if drawn else "")

    @property
    def over_time(self) -> bool:
        """Whether rounds follow one another."""
        return bool(self.series) and len(self.series[0].points) > 1

    @property
    def top(self) -> float:
        """The largest number to be drawn."""
        return max(1e-9, *(p.high for p in self._points), *self._numbers)

    @property
    def bottom(self) -> float:
        """The smallest one, or 0."""
        return min(0.0, *self._numbers)

    @property
    def legend(self) -> str:
        """What is drawn, in words."""
        pooled = "; violet: all rounds pooled" if any(s.pooled for s in self.series) else ""
        truth = any(s.true is not None for s in self.series)
        told = "; dotted: the truth of the simulation" if truth else ""
        return f"raw estimates with {self.intervals}{pooled}{told}"

    @property
    def dates(self) -> tuple[str, str]:
        """The first and the last moment over time, as short as can be told apart."""
        times = [p.at for p in self.series[0].points]
        form = "%Y-%m-%d" if times[-1] - times[0] >= _DAY else "%d %b %H:%M"
        first, last = (datetime.fromtimestamp(t, UTC).strftime(form) for t in (times[0], times[-1]))
        return first, last

    @property
    def _points(self) -> list[Point]:
        pooled = [s.pooled for s in self.series if s.pooled is not None]
        return [*pooled, *(p for s in self.series for p in s.points)]

    @property
    def _numbers(self) -> list[float]:
        truths = [s.true for s in self.series if s.true is not None]
        return [*truths, *(p.share for p in self._points)]


def charts(
    campaign: Campaign, results: Sequence[Result], truth: Mapping[str, Sequence[float]] | None
) -> list[Chart]:
    """What to draw: for each attribute its rounds if there are several, else the one result."""
    made = []
    for attribute in campaign.manifest.attributes:
        mine = [r for r in results if r.attribute == attribute.name]
        true = (truth or {}).get(attribute.name)
        pooled = mine[0] if mine and mine[0].round is None else None  # the pooled one is first
        rounds = mine[1:] if pooled is not None else mine
        if len(rounds) > 1:
            made.append(over_time(campaign, attribute.name, rounds, pooled, true))
        elif mine:
            made.append(histogram(campaign, mine[0], true))
    return made


def histogram(campaign: Campaign, result: Result, true: Sequence[float] | None = None) -> Chart:
    """One result: a bar for each value, or for the largest of them."""
    return _chart(campaign, result.attribute, [result], None, true)


def over_time(
    campaign: Campaign,
    attribute: str,
    rounds: Sequence[Result],
    pooled: Result | None,
    true: Sequence[float] | None = None,
) -> Chart:
    """One round after the other, and all of them pooled."""
    return _chart(campaign, attribute, rounds, pooled, true)


def _chart(
    campaign: Campaign,
    name: str,
    results: Sequence[Result],
    pooled: Result | None,
    true: Sequence[float] | None,
) -> Chart:
    attribute = next(a for a in campaign.manifest.attributes if a.name == name)
    shown = [r for r in results if not r.withheld]
    if not shown:
        return Chart(attribute.question, f"{_note(results)}; too few reports, withheld", ())
    several, all_rounds = len(shown) > 1, None if pooled is None or pooled.withheld else pooled
    series = [
        Series(
            value,
            tuple(_point(campaign, r, i, several=several) for r in shown),
            true[i] if true else None,
            _point(campaign, all_rounds, i, several=False) if several and all_rounds else None,
        )
        for i, value in enumerate(attribute.values)
    ]
    most = MOST_PANELS if several else MOST_BARS
    kept = largest(series, most)
    return Chart(attribute.question, _note(shown), kept, values=len(series))


def largest(series: Sequence[Series], most: int) -> tuple[Series, ...]:
    """At most so many, those with the largest estimates, in their own order."""
    by_size = sorted(range(len(series)), key=lambda i: -sum(p.share for p in series[i].points))
    return tuple(series[i] for i in sorted(by_size[:most]))


def _point(campaign: Campaign, result: Result, i: int, *, several: bool) -> Point:
    at = result.last if several and result.round is None else result.round
    low, high = result.low[i], result.high[i]
    return Point(at, result.raw[i], low, high, result.first, _middle(campaign, result))


def _middle(campaign: Campaign, result: Result) -> int:
    """The moment that stands for a result's rounds."""
    rounds = campaign.manifest.rounds
    first, last = (
        (end if result.round is None else result.round) for end in (result.first, result.last)
    )
    return (rounds.opens(first or 0) + rounds.closes(last or 0)) // 2


def _note(results: Sequence[Result]) -> str:
    first, last = results[0], results[-1]
    if len(results) > 1:
        least, most = (f(r.n for r in results) for f in (min, max))
        reports = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        begin = first.first if first.round is None else first.round
        end = last.last if last.round is None else last.round
        return f"rounds {begin} to {end}, {reports} reports each"
    which = f"round {first.round}" if first.round is not None else f"{first.rounds} rounds pooled"
    return f"{which}, {first.n:,} reports of {first.devices:,} devices, {first.protocol}"


def unbroken(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Runs of rounds without a withheld one between them."""
    run: list[Point] = []
    for point in points:
        if run and point.begins > (run[-1].round or 0) + 1:
            yield run
            run = []
        run.append(point)
    yield run


# --- The colours of every figure: the page's, those of files, and what matplotlib draws.


@dataclass(frozen=True, slots=True)
class Palette:
    """`bar` is also the band of an interval over rounds, where it is lighter by `BAND`."""

    ground: str
    panel: str
    ink: str
    quiet: str
    line: str
    accent: str
    bar: str
    interval: str
    projected: str
    pooled: str
    truth: str


LIGHT: Final = Palette(
    ground="#fbfaf8",
    panel="#ffffff",
    ink="#1f2328",
    quiet="#5b636d",
    line="#e2dfd9",
    accent="#1f5fa8",
    bar="#7fa6cf",
    interval="#1f2328",
    projected="#b4540a",
    pooled="#6b3fa0",
    truth="#0b7a4b",
)
DARK: Final = Palette(
    ground="#15181c",
    panel="#1c2026",
    ink="#e8e6e3",
    quiet="#a3abb5",
    line="#333a43",
    accent="#8bb8ee",
    bar="#4f7fb5",
    interval="#f2efea",
    projected="#f0a05a",
    pooled="#c3a2f0",
    truth="#5fd3a0",
)
BAND: Final = 0.35  # opacity of the band of a round's interval
POOLED_BAND: Final = 0.2  # of the pooled one


# --- Charts as SVG. The same results give the same bytes; nothing is fetched and nothing runs.


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


# --- Charts and their numbers as one HTML page that needs nothing else and runs nothing.


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


# --- Charts as PNG, drawn by matplotlib, which only some installations have.


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


# --- Figures as files: the ending of the name chooses SVG, HTML or PNG.


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


# --- Pictures that need no script: bars of a histogram, and lines over time, as marks to be placed.


HOME_BARS: Final = 5
CARD_BARS: Final = 8
SPARK_ROUNDS: Final = 60
SPARK_ROWS: Final = 5_000  # of all rounds in a sparkline: with many values it has fewer rounds
_MARGIN: Final = 4.0  # per cent above and below a line


@dataclass(frozen=True, slots=True)
class BarMark:
    """One value: where its bar lies, where its interval, and what it says."""

    name: str
    share: float
    low: float
    high: float
    begin: float
    width: float
    interval: tuple[float, float]
    true: float | None


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram, or the largest values of one."""

    question: str
    note: str
    zero: float
    marks: tuple[BarMark, ...]
    values: int  # that the question has


@dataclass(frozen=True, slots=True)
class Line:
    """One value over time: lines and bands, a pooled one behind them, and what it says."""

    name: str
    latest: Point
    pooled: Point | None
    bands: tuple[str, ...]
    lines: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    pooled_band: tuple[float, float] | None  # its upper edge and its height
    pooled_line: float | None
    zero: float
    true: float | None
    dates: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Linked:
    """A histogram, and where it stands by itself."""

    bars: Bars
    href: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A question so far: what is None has nothing to show yet."""

    bars: Bars | None
    line: Line | None


def of_campaigns(store: Store) -> dict[str, Linked | None]:
    """For each campaign the first question that has something to show."""
    return {campaign.name: _first(store, campaign) for campaign in store.campaigns()}


def _first(store: Store, campaign: Campaign) -> Linked | None:
    for i, attribute in enumerate(campaign.manifest.attributes):
        made = _bars_of(store, campaign, i, None, HOME_BARS)
        if made is not None:
            at = f"/campaigns/{campaign.name}/attributes/{attribute.name}/rounds/pooled"
            return Linked(made, at)
    return None


def of_questions(
    store: Store, campaign: Campaign, truth: Mapping[str, Sequence[float]]
) -> dict[str, Drawn]:
    """For each question its histogram so far, and its most interesting value over time."""
    return {
        a.name: Drawn(
            _bars_of(store, campaign, i, truth.get(a.name), CARD_BARS),
            _sparkline(store, campaign, i, truth.get(a.name)),
        )
        for i, a in enumerate(campaign.manifest.attributes)
    }


def _bars_of(
    store: Store, campaign: Campaign, index: int, true: Sequence[float] | None, most: int
) -> Bars | None:
    found = pooled_of(store, campaign, index)
    if not found or found[0].withheld:
        return None
    return bars(histogram(campaign, found[0], true), most)


def bars(chart: Chart, most: int) -> Bars:
    """The largest values of a chart; with their own scale."""
    kept = largest(chart.series, most)
    shown = Chart(chart.question, chart.note, kept)
    span = shown.top - shown.bottom

    def x(share: float) -> float:
        return _place(100 * (share - shown.bottom) / span)

    marks = tuple(_mark(series, x) for series in kept)
    return Bars(chart.question, chart.note, x(0.0), marks, chart.values)


def _mark(series: Series, x: Callable[[float], float]) -> BarMark:
    (point,) = series.points
    begin, end = sorted((x(0.0), x(point.share)))
    return BarMark(
        series.name,
        point.share,
        point.low,
        point.high,
        begin,
        _place(end - begin),
        (x(point.low), x(point.high)),
        None if series.true is None else x(series.true),
    )


def _sparkline(
    store: Store, campaign: Campaign, index: int, true: Sequence[float] | None
) -> Line | None:
    attribute = campaign.manifest.attributes[index]
    last = min(SPARK_ROUNDS, max(2, SPARK_ROWS // attribute.k))
    found = latest_results(store, campaign, index, last)
    interest = most_interesting(found.rounds, found.pooled)
    chart = _over_time(campaign, attribute.name, found, true)
    if chart is None or interest is None:
        return None
    name = attribute.values[interest.place]
    kept = tuple(series for series in chart.series if series.name == name)
    if not kept:  # among very many values, one that is not drawn
        return None
    ends = [end for p in kept[0].points for end in (p.low, p.high, p.share)]
    return _page_line(kept[0], chart, min(ends), max(ends))


def panels(
    campaign: Campaign, attribute: str, found: Latest, true: Sequence[float] | None
) -> list[Line]:
    """Every value over time, or the largest of very many, all with one scale."""
    chart = _over_time(campaign, attribute, found, true)
    return [] if chart is None else lines(chart)


def _over_time(
    campaign: Campaign, attribute: str, found: Latest, true: Sequence[float] | None
) -> Chart | None:
    """A line needs two rounds that were not withheld."""
    if len(found.rounds) < 2:
        return None
    chart = over_time(campaign, attribute, found.rounds, found.pooled, true)
    return chart if chart.over_time else None


def lines(chart: Chart) -> list[Line]:
    """A line for each value of a chart; the scales are the chart's."""
    return [_page_line(series, chart, chart.bottom, chart.top) for series in chart.series]


def _page_line(series: Series, chart: Chart, bottom: float, top: float) -> Line:
    first, last = series.points[0].at, series.points[-1].at
    span = max(1e-9, top - bottom)

    def x(point: Point) -> float:
        return _place(100 * (point.at - first) / max(1, last - first))

    def y(share: float) -> float:
        return _place(_MARGIN + (100 - 2 * _MARGIN) * (top - share) / span)

    runs = list(unbroken(series.points))
    pooled = series.pooled
    return Line(
        name=series.name,
        latest=series.points[-1],
        pooled=pooled,
        bands=tuple(_band(run, x, y) for run in runs if len(run) > 1),
        lines=tuple(" ".join(f"{x(p)},{y(p.share)}" for p in run) for run in runs if len(run) > 1),
        dots=tuple((x(run[0]), y(run[0].share)) for run in runs if len(run) == 1),
        pooled_band=None if pooled is None else _edges(y(pooled.high), y(pooled.low)),
        pooled_line=None if pooled is None else y(pooled.share),
        zero=y(0.0),
        true=None if series.true is None else y(series.true),
        dates=chart.dates,
    )


def _edges(top: float, bottom: float) -> tuple[float, float]:
    return top, _place(bottom - top)


def _band(run: Sequence[Point], x: Callable[[Point], float], y: Callable[[float], float]) -> str:
    upper = [f"{x(p)},{y(p.high)}" for p in run]
    lower = [f"{x(p)},{y(p.low)}" for p in reversed(run)]
    return " ".join(upper + lower)


def _place(number: float) -> float:
    """To a hundredth of a per cent: a fifth of a pixel on a wide screen."""
    return round(number, 2)
