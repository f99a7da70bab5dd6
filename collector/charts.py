"""Every figure: what it draws, and drawing it as SVG for the page and for files.

Bars and points are shares as `results.display` gives them: nothing is drawn outside 0 to 100 %.

Page and files share the marks. On the page a figure is as wide as the window leaves room for:
marks are scaled horizontally, texts are not. Nothing is fetched, nothing runs, and the same results
give the same bytes. PNG files are rendered from the SVG by resvg, which is an extra.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Final, Literal, TextIO

import click

from collector.errors import CollectorError
from collector.records import Campaign
from collector.results.display import (
    Share,
    headline,
    share_decimals,
    share_of,
    shares,
)
from collector.results.estimates import attribute_of
from collector.results.tables import import_extra, mean_interval
from collector.results.words import Facts, decimals, heading, number, quantity
from protocol_spec import Result
from protocol_spec.programs.settings import SettingsError

MOST_BARS: Final = 50
MOST_PANELS: Final = 60
WIDTH: Final = 720  # of a file, and the unit that figures on the page are scaled from
EACH: Final = "95 % intervals"
EVERY: Final = "95 % intervals for all values at once"
_DAY: Final = 86_400
_FONTS: Final = "system-ui,'DejaVu Sans','Liberation Sans','Noto Sans',Arial,sans-serif"

Number = Literal["median", "mean"]
Span = tuple[float, float]
Ticks = Sequence[tuple[float, str]]

# --- colours ------------------------------------------------------------------------------------


# By day and by night. `bar` is also, lighter, the band of an interval over rounds.
COLOURS: Final = {
    "ground": ("#fbfaf8", "#15181c"),
    "panel": ("#ffffff", "#1c2026"),
    "ink": ("#1f2328", "#e8e6e3"),
    "quiet": ("#5b636d", "#a3abb5"),
    "line": ("#e2dfd9", "#333a43"),
    "accent": ("#1f5fa8", "#8bb8ee"),
    "bar": ("#7fa6cf", "#4f7fb5"),
    "interval": ("#1f2328", "#f2efea"),
    "marked": ("#b4540a", "#f0a05a"),
    "pooled": ("#6b3fa0", "#c3a2f0"),
    "truth": ("#0b7a4b", "#5fd3a0"),
}
LIGHT: Final = {name: day for name, (day, _) in COLOURS.items()}


def style(colour: Callable[[str], str]) -> str:
    """The rules for all marks; `colour` gives the colour of a name in `COLOURS`."""
    return (
        f".bar{{fill:{colour('bar')}}}.band{{fill:{colour('bar')};fill-opacity:.35}}"
        f".pooled-band{{fill:{colour('pooled')};fill-opacity:.2}}"
        f".trend-band{{fill:{colour('marked')};fill-opacity:.25}}"
        ".line,.interval,.axis,.grid,.pooled,.true,.median,.trend"
        "{fill:none;stroke-width:1.5;vector-effect:non-scaling-stroke}"
        f".line{{stroke:{colour('accent')};stroke-width:2;stroke-linejoin:round}}"
        f".interval{{stroke:{colour('interval')}}}.axis{{stroke:{colour('quiet')}}}"
        f".grid{{stroke:{colour('line')};stroke-width:1}}.pooled{{stroke:{colour('pooled')}}}"
        f".true{{stroke:{colour('truth')};stroke-width:2;stroke-dasharray:2 3}}"
        f".median{{stroke:{colour('marked')};stroke-width:3}}"
        f".trend{{stroke:{colour('marked')};stroke-width:2}}"
        ".dot{stroke-width:7;stroke-linecap:round;vector-effect:non-scaling-stroke}"
        f".dot{{stroke:{colour('accent')}}}.dot.median{{stroke:{colour('marked')};stroke-width:9}}"
    )


def page_style() -> str:
    """What every page needs that has figures: colours by day and by night, and the rules."""
    day, night = ("".join(f"--{name}:{pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1))
    schemes = f":root{{{day}}}@media(prefers-color-scheme:dark){{:root{{{night}}}}}"
    return f"{schemes}\n{style(lambda name: f'var(--{name})')}\n"


# --- what a figure draws ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """One value of a histogram; all numbers are shares of 1, written with so many `digits`."""

    name: str
    share: float
    low: float
    high: float
    true: float | None = None
    digits: int = 1

    @property
    def ends(self) -> str:
        return f"{self.percent(self.low)} … {self.percent(self.high)}"

    def percent(self, share: float) -> str:
        return number(100 * share, self.digits)

    @property
    def title(self) -> str:
        """All that is known of it, for a tooltip."""
        truth = "" if self.true is None else f"; simulated truth {self.percent(self.true)} %"
        return f"{self.name}: {self.percent(self.share)} % ({self.ends}){truth}"


@dataclass(frozen=True, slots=True)
class Point:
    """The rounds `first` to `last`, in percent or in the unit of a numeric question.

    `opens` and `closes` are their times, in seconds of Unix time.
    """

    value: float
    low: float
    high: float
    first: int
    last: int
    opens: int
    closes: int

    @property
    def at(self) -> float:
        return (self.opens + self.closes) / 2


@dataclass(frozen=True, slots=True)
class Line:
    """One value, or a median or mean, over rounds; `pooled` is all rounds together."""

    name: str
    points: tuple[Point, ...]
    pooled: Point | None = None
    true: float | None = None
    unit: str = "%"
    trend: tuple[tuple[float, float, float], ...] = ()  # value and band, at evenly spaced moments

    def text(self, point: Point) -> tuple[str, str]:
        """A number with as many digits as its error allows, and its interval."""
        digits = decimals((point.high - point.low) / 2)
        value, low, high = (number(x, digits) for x in (point.value, point.low, point.high))
        return f"{value} {self.unit}".rstrip(), f"{low} … {high}"

    @property
    def times(self) -> Span:
        return self.points[0].opens, self.points[-1].closes

    @property
    def dates(self) -> tuple[str, str]:
        begins, _, ends = _moments(self.times)
        return begins, ends


@dataclass(frozen=True, slots=True)
class Chart:
    """One attribute: bars of one result, or lines over rounds.

    Without either the histogram is withheld, and the note says so. `values` is how many the
    question has, of which the largest may be all that is drawn.
    """

    question: str
    note: str
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()
    intervals: str = EACH
    values: int = 0
    sentence: str = ""
    mean: Line | None = None  # of a trend

    @property
    def caption(self) -> str:
        """The note, and how many of the values are drawn."""
        drawn = len(self.bars) + len(self.lines)
        more = f"; the {drawn} largest of {self.values:,} values" if drawn < self.values else ""
        return self.note + (more if drawn else "")

    @property
    def legend(self) -> str:
        """What is drawn, in words."""
        pooled = "; violet: all rounds pooled" if any(line.pooled for line in self.lines) else ""
        truths = [bar.true for bar in self.bars] + [line.true for line in self.lines]
        known = any(true is not None for true in truths)
        truth = "; dotted: the truth of the simulation" if known else ""
        fit = "; orange: fit" if any(line.trend for line in self.lines) else ""
        return f"shares of the devices with {self.intervals}{pooled}{fit}{truth}"


# --- from results -------------------------------------------------------------------------------


def charts(
    campaign: Campaign,
    results: Sequence[Result],
    truth: Mapping[str, Sequence[float]] | None,
    trends: Sequence[Facts] = (),
) -> list[Chart]:
    """What to draw: for each attribute its rounds if there are several, else the one result."""
    fits = {facts["attribute"]: facts for facts in trends}
    made = []
    for attribute in campaign.manifest.attributes:
        mine = [r for r in results if r.attribute == attribute.name]
        if not mine:
            continue
        pooled = mine[0] if mine[0].round is None else None  # the pooled one is first
        rounds = mine[1:] if pooled is not None else mine
        rows, true = rounds if len(rounds) > 1 else mine[:1], (truth or {}).get(attribute.name)
        released = [r for r in rows if not r.withheld]
        sentence = headline(campaign.manifest, pooled or mine[-1])
        if not released:
            made.append(Chart(attribute.question, f"{_note(rows)}; withheld", sentence=sentence))
        elif len(released) == 1:
            made.append(bar_chart(campaign, released[0], true))
        else:
            lines = tuple(panels(campaign, released, pooled, true))
            note, k = _note(released), attribute.k
            chart = Chart(attribute.question, note, lines=lines, values=k, sentence=sentence)
            made.append(_fitted(chart, campaign, released, fits.get(attribute.name)))
    return made


def _fitted(chart: Chart, campaign: Campaign, rounds: Sequence[Result], fit: Facts | None) -> Chart:
    """With the curves of a trend, and its sentence."""
    if fit is None or not fit["trends"]:
        return chart
    curves = {(row["value"], row["unit"] is not None): row for row in fit["trends"]}
    lines = tuple(with_trend(drawn, curves[drawn.name, False]) for drawn in chart.lines)
    mean = curves.get(("mean", True))
    drawn = None if mean is None else with_trend(line(campaign, rounds, None, "mean"), mean)
    return replace(chart, lines=lines, sentence=fit["sentence"], mean=drawn)


def bar_chart(
    campaign: Campaign,
    result: Result,
    true: Sequence[float] | None,
    most: int = MOST_BARS,
    *,
    every: bool = False,
) -> Chart:
    """The largest values of one result, none if it is withheld; `every` for intervals that hold
    for all at once."""
    attribute = attribute_of(campaign.manifest, result)
    found = shares(result, every=every)
    bars = named_bars(attribute.values, found, true) if found else []
    return Chart(
        attribute.question,
        _note([result]),
        tuple(largest(bars, most)),
        intervals=EVERY if every else EACH,
        values=attribute.k,
        sentence=headline(campaign.manifest, result),
    )


def named_bars(
    names: Sequence[str], found: Sequence[Share], true: Sequence[float] | None = None
) -> list[Bar]:
    """A bar for each value, all with the same number of digits."""
    digits = share_decimals(found)
    truths: Sequence[float | None] = true or [None] * len(names)
    rows = zip(names, found, truths, strict=True)
    return [Bar(name, *share, known, digits) for name, share, known in rows]


def both_bars(facts: Facts) -> list[tuple[Bar, Bar]]:
    """Of each value its share with its own interval, and with the one for all values at once."""
    rows = facts["histogram"]
    both = (
        [share_of(row["projected"], row[f"low{end}"], row[f"high{end}"]) for row in rows]
        for end in ("", "_all")
    )
    names = [row["value"] for row in rows]
    one, every = (named_bars(names, found) for found in both)
    return [(bar, replace(other, digits=bar.digits)) for bar, other in zip(one, every)]


def pair_table(facts: Facts) -> list[list[tuple[Bar, Bar]]]:
    """The cells of a pair row by row as `both_bars` has them, each row with its sum behind it, and
    a last row of sums; nothing for other results. All have the same number of digits."""
    if facts["pair"] is None:
        return []
    rows, columns = facts["pair"]["margins"]
    cells, ends, sums = (both_bars(each) for each in (facts, rows, columns))
    wide = len(sums)
    table = [[*cells[i * wide :][:wide], end] for i, end in enumerate(ends)]
    return [*table, sums]


def edge_bars(facts: Facts) -> list[Bar]:
    """Of a numeric question: the share of devices below each edge, named by it."""
    numbers = facts["numbers"]
    if numbers is None:
        return []
    columns = (numbers[name] for name in ("edges", "cdf", "cdf_low", "cdf_high"))
    rows = [row for row in zip(*columns) if row[0] is not None]
    return named_bars([quantity(row[0]) for row in rows], [Share(*row[1:]) for row in rows])


def largest(bars: Sequence[Bar], most: int) -> list[Bar]:
    """The `most` largest, in their own order."""
    kept = sorted(range(len(bars)), key=lambda i: -bars[i].share)[:most]
    return [bars[i] for i in sorted(kept)]


def panels(
    campaign: Campaign,
    rounds: Sequence[Result],
    pooled: Result | None,
    true: Sequence[float] | None,
) -> list[Line]:
    """A line for each value, or for the largest of very many; none before the second round."""
    released = [r for r in rounds if not r.withheld]
    if len(released) < 2:
        return []
    sums = [sum(r.projected[i] for r in released) for i in range(len(released[0].raw))]
    kept = sorted(range(len(sums)), key=lambda i: -sums[i])[:MOST_PANELS]
    return [line(campaign, released, pooled, i, true) for i in sorted(kept)]


def line(
    campaign: Campaign,
    rounds: Sequence[Result],
    pooled: Result | None,
    chosen: int | Number,
    true: Sequence[float] | None = None,
) -> Line:
    """One value by its index, or the median or mean of a numeric question, over rounds."""
    found = tuple(p for r in rounds if (p := _point(campaign, r, chosen)) is not None)
    together = None if pooled is None else _point(campaign, pooled, chosen)
    asked = attribute_of(campaign.manifest, rounds[0])
    if isinstance(chosen, str):
        return Line(chosen, found, together, unit=asked.unit)
    truth = None if true is None else 100 * true[chosen]
    return Line(asked.values[chosen], found, together, truth)


def _point(campaign: Campaign, result: Result, chosen: int | Number) -> Point | None:
    """None where it is withheld, or the number cannot be known."""
    known, asked = result.numbers, attribute_of(campaign.manifest, result)
    value: float | None = None
    low: float | None = None
    high: float | None = None
    if result.withheld:
        return None
    if isinstance(chosen, int):
        value, low, high = (100 * x for x in shares(result)[chosen])
    elif known is not None and chosen == "median":
        _, value, low, high = next(q for q in known.quantiles if q.tau == 0.5)
    elif known is not None:
        value, (low, high) = known.mean, mean_interval(asked, known) or (None, None)
    if value is None:
        return None
    low, high = value if low is None else low, value if high is None else high
    rounds, first, last = campaign.manifest.rounds, result.first, result.last
    return Point(value, low, high, first, last, rounds.opens(first), rounds.closes(last))


def _note(results: Sequence[Result]) -> str:
    first, last = results[0], results[-1]
    if len(results) > 1:
        least, most = (f(r.n for r in results) for f in (min, max))
        reports = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return f"rounds {first.first} to {last.last}, {reports} reports each"
    which = f"round {first.round}" if first.round is not None else f"{first.rounds} rounds pooled"
    return f"{which}, {first.n:,} reports of {first.devices:,} devices, {first.protocol}"


def unbroken(found: Sequence[Point]) -> Iterator[list[Point]]:
    """Runs of rounds without a withheld one between them."""
    run: list[Point] = []
    for point in found:
        if run and point.first > run[-1].last + 1:
            yield run
            run = []
        run.append(point)
    yield run


# --- bars ---------------------------------------------------------------------------------------


def bar_list(chart: Chart) -> str:
    """A histogram as a list of names, bars and numbers, which wraps in narrow windows."""
    top = _top(chart.bars)
    rows = (
        f'<li data-bar="{escape(bar.name)}"><span class="bar-name">{escape(bar.name)}</span>'
        f'<svg class="plot" aria-hidden="true" focusable="false">{_bar(bar, top)}</svg>'
        f'<span class="bar-number">{bar.percent(bar.share)} % <small>{bar.ends}</small></span></li>'
        for bar in chart.bars
    )
    return f'<ul class="bars">{"".join(rows)}</ul>'


def bar_legend(chart: Chart) -> str:
    known = [("true", "simulated truth")] if chart.bars[0].true is not None else []
    return legend([("bar", "share of the devices"), ("interval", chart.intervals), *known])


def _top(bars: Sequence[Bar]) -> float:
    return max(1e-9, *(x for b in bars for x in (b.high, b.true or 0.0)))


def _bar(bar: Bar, top: float) -> str:
    """The marks of one value, in percent of the width and height of whatever they are put in."""

    def x(share: float) -> float:
        return round(100 * share / top, 2)

    low, high = x(bar.low), x(bar.high)
    parts = [
        f"<title>{escape(bar.title)}</title>",
        f'<rect class="bar" x="0%" width="{x(bar.share)}%" y="12%" height="76%"/>',
        _upright("axis", 0, 0, 100),
        f'<line class="interval" x1="{low}%" x2="{high}%" y1="50%" y2="50%"/>',
        _upright("interval", low, 28, 72),
        _upright("interval", high, 28, 72),
    ]
    if bar.true is not None:
        parts.append(_upright("true", x(bar.true), 0, 100))
    return "".join(parts)


def _upright(kind: str, x: float, y1: int, y2: int) -> str:
    return f'<line class="{kind}" x1="{x}%" x2="{x}%" y1="{y1}%" y2="{y2}%"/>'


# --- curves -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    """Points from left to right, and a band of (x, low, high); `kind` is a class of `style`.

    `name` and `band_name` are in the legend; each title belongs to a dot.
    """

    kind: str
    points: Sequence[Span]
    name: str = ""
    band: Sequence[tuple[float, float, float]] = ()
    band_kind: str = "band"
    band_name: str = ""
    titles: Sequence[str] = ()


def line_curves(drawn: Line, *, together: str = "pooled", dots: bool = False) -> list[Curve]:
    """A line with its band over rounds, and the pooled result and the truth."""
    begins, ends = drawn.times

    def level(kind: str, value: float, name: str) -> Curve:
        return Curve(kind, [(begins, value), (ends, value)], name)

    made, pooled = [], drawn.pooled
    if pooled is not None:
        band = [(x, pooled.low, pooled.high) for x in (begins, ends)]
        band_name = f"95 % interval, {together}"
        made.append(Curve("pooled", (), band=band, band_kind="pooled-band", band_name=band_name))
        made.append(level("pooled", pooled.value, together))
    windows = any(p.first != p.last for p in drawn.points)
    band_name = f"95 % interval of a {'window' if windows else 'round'}"
    for run in unbroken(drawn.points):
        edges = [
            (x, p.low, p.high)
            for p in run
            for x in ((p.opens, p.closes) if windows or len(run) == 1 else (p.at,))
        ]
        titles = [_point_title(drawn, p) for p in run] if dots or len(run) == 1 else ()
        middles = [(p.at, p.value) for p in run]
        made.append(Curve("line", middles, drawn.name, edges, "band", band_name, titles))
    if drawn.trend:
        step = (ends - begins) / (len(drawn.trend) - 1)
        rows = [(begins + i * step, *row) for i, row in enumerate(drawn.trend)]
        band, middles = [(x, low, high) for x, _, low, high in rows], [row[:2] for row in rows]
        name = "95 % band of the fit, all moments at once"
        made.append(Curve("trend", middles, "fit", band, "trend-band", name))
    if drawn.true is not None:
        made.append(level("true", drawn.true, "simulated truth, average"))
    return made


def with_trend(drawn: Line, row: Facts) -> Line:
    """A line with a fitted one, which is drawn within what is possible; a mean is no share."""
    scale, names = 100.0 if row["unit"] is None else 1.0, ("value", "low_all", "high_all")
    columns = ([scale * x for x in row["curve"][name]] for name in names)
    rows = ((min(max(value, low), high), low, high) for value, low, high in zip(*columns))
    return replace(drawn, trend=tuple(rows))


def _point_title(drawn: Line, point: Point) -> str:
    rounds = f"round {point.last}"
    if point.first != point.last:
        rounds = f"rounds {point.first} to {point.last}"
    when = datetime.fromtimestamp(point.at, UTC).strftime("%Y-%m-%d %H:%M")
    value, ends = drawn.text(point)
    return f"{rounds}, {when}: {value} ({ends})"


def over_time(drawn: Line, label: str, together: str) -> str:
    """One value over time with its axes and legend."""
    curves = line_curves(drawn, together=together, dots=True)
    return _legend_of(curves) + _timed(drawn, curves, label)


def _timed(drawn: Line, curves: Sequence[Curve], label: str, height: int = 320) -> str:
    begins, ends = drawn.times
    ticks = list(zip((begins, (begins + ends) / 2, ends), _moments(drawn.times)))
    y = _spread(curves, percent=drawn.unit == "%")
    return _plot(curves, label, drawn.times, ticks, y=y, unit=drawn.unit, height=height)


def distribution(numbers: Facts, true: Sequence[float] | None, label: str) -> str:
    """The distribution function at the edges of bins, with the band that holds for all of them."""
    kept = [(e, i) for i, e in enumerate(numbers["edges"]) if e is not None]
    if len(kept) < 2:
        return ""
    edges = [edge for edge, _ in kept]

    def percent(shares: Sequence[float]) -> list[float]:
        return [100 * shares[i] for _, i in kept]

    low, share, high = (percent(numbers[n]) for n in ("cdf_low", "cdf", "cdf_high"))
    titles = [f"below {quantity(e, numbers['unit'])}: {s:.1f} %" for e, s in zip(edges, share)]
    band = list(zip(edges, low, high))
    band_name = "95 % band for all edges"
    curves = [
        Curve("line", list(zip(edges, share)), "share below", band, "band", band_name, titles)
    ]
    median = next(q for q in numbers["quantiles"] if q["tau"] == 0.5)
    if median["value"] is not None:
        ends = (
            edges[0] if median["low"] is None else median["low"],
            edges[-1] if median["high"] is None else median["high"],
        )
        named = f"median {quantity(median['value'], numbers['unit'])}"
        curves.append(Curve("median", [(x, 50.0) for x in ends], "median and its interval"))
        curves.append(Curve("median", [(median["value"], 50.0)], titles=[named]))
    if true is not None:
        bins = true[: len(numbers["cdf"]) + (numbers["cdf"][-1] != 1.0)]
        below = [sum(bins[: i + 1]) / sum(bins) for i in range(len(bins))]
        curves.append(Curve("true", list(zip(edges, percent(below))), "simulated truth"))
    some = edges[:: -(-len(edges) // 6)]
    ticks = [(edge, quantity(edge)) for edge in some]
    margin = 0.02 * (edges[-1] - edges[0])
    span = (edges[0] - margin, edges[-1] + margin)
    drawn = _plot(curves, label, span, ticks, y=(0.0, 100.0), unit="%", height=280)
    return _legend_of(curves) + drawn


def sparkline(drawn: Line, y: Span | None = None) -> str:
    """A line without axes, as large as the style sheet says."""
    curves = line_curves(drawn)
    span = y or _spread(curves, percent=True)
    if span[0] == 0.0:
        curves.insert(0, Curve("grid", [(x, 0.0) for x in drawn.times]))
    marks = _curves(curves, drawn.times, span, 240, 64)
    size = 'viewBox="0 0 240 64" preserveAspectRatio="none"'
    return f'<svg class="plot" {size} aria-hidden="true" focusable="false">{marks}</svg>'


def common_scale(lines: Iterable[Line]) -> Span:
    """From 0 to the largest percentage, so that panels can be compared."""
    return 0.0, _spread([c for each in lines for c in line_curves(each)], percent=True)[1]


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """What each kind of mark is; the keys are drawn like the marks."""
    made = []
    for kind, name in dict.fromkeys(entries):
        key = '<line class="{0}" x1="1" x2="25" y1="6" y2="6"/>'
        if kind in ("bar", "band", "pooled-band", "trend-band"):
            key = '<rect class="{0}" width="26" height="12"/>'
        drawn = f'<svg class="key" aria-hidden="true" focusable="false">{key.format(kind)}</svg>'
        made.append(f"<li>{drawn} {escape(name)}</li>")
    return f'<ul class="legend">{"".join(made)}</ul>'


def _legend_of(curves: Iterable[Curve]) -> str:
    entries = []
    for curve in curves:
        entries += [(curve.kind, curve.name)] if curve.name else []
        entries += [(curve.band_kind, curve.band_name)] if curve.band_name else []
    return legend(sorted(entries, key=lambda entry: (entry[0] != "line", entry[0] != "band")))


def _plot(
    curves: Sequence[Curve], label: str, x: Span, ticks: Ticks, *, y: Span, unit: str, height: int
) -> str:
    """Curves that are scaled to the width, and around them a grid and texts that are not."""
    grid, texts = [], []
    for at in _steps(*y):
        line_y = _n(12 + height * (y[1] - at) / (y[1] - y[0]))
        grid.append(f'<line class="grid" x1="0" x2="100%" y1="{line_y}" y2="{line_y}"/>')
        texts.append(f'<text x="2" y="{line_y}" dy="-3">{at:g} {escape(unit)}</text>')
    for at, name in ticks:
        share = round(100 * (at - x[0]) / (x[1] - x[0]), 2)
        anchor = "start" if share < 5 else "end" if share > 95 else "middle"
        texts.append(
            f'<text x="{share}%" y="{height + 32}" text-anchor="{anchor}">{escape(name)}</text>'
        )
    inner = (
        f'<svg y="12" width="100%" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none">{_curves(curves, x, y, WIDTH, height)}</svg>'
    )
    return (
        f'<svg class="plot framed" width="100%" height="{height + 40}" role="img" '
        f'aria-label="{escape(label)}">{"".join(grid)}{inner}{"".join(texts)}</svg>'
    )


def _curves(curves: Sequence[Curve], x: Span, y: Span, width: float, height: float) -> str:
    def place(at: float, value: float) -> str:
        across = width * (at - x[0]) / max(1e-9, x[1] - x[0])
        return f"{_n(across)},{_n(height * (y[1] - value) / max(1e-9, y[1] - y[0]))}"

    parts = []
    for curve in curves:
        if curve.band:
            upper = [place(at, high) for at, _, high in curve.band]
            lower = [place(at, low) for at, low, _ in reversed(curve.band)]
            corners = " ".join(upper + lower)
            parts.append(f'<polygon class="{curve.band_kind}" points="{corners}"/>')
        if len(curve.points) > 1:
            corners = " ".join(place(*point) for point in curve.points)
            parts.append(f'<polyline class="{curve.kind}" points="{corners}"/>')
        named = "dot" if curve.kind == "line" else f"dot {curve.kind}"
        for point, title in zip(curve.points, curve.titles):
            drawn = f'd="M{place(*point)}h0"><title>{escape(title)}</title></path>'
            parts.append(f'<path class="{named}" {drawn}')
    return "".join(parts)


def _spread(curves: Iterable[Curve], *, percent: bool) -> Span:
    """The range of everything drawn, with a margin; percentages end at 0 and 100."""
    ends = [value for curve in curves for _, value in curve.points]
    ends += [end for curve in curves for _, low, high in curve.band for end in (low, high)]
    margin = 0.04 * max(1e-9, max(ends) - min(ends))
    low, high = min(ends) - margin, max(ends) + margin
    return (max(0.0, low), min(100.0, high)) if percent else (low, high)


def _steps(low: float, high: float) -> list[float]:
    """Round numbers between two, at most eight of them."""
    unit = 10.0 ** math.floor(math.log10((high - low) / 7))
    step = next(m * unit for m in (1, 2, 5, 10) if (high - low) / (m * unit) <= 7)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _moments(times: Span) -> list[str]:
    """Begin, middle and end, as short as still distinguishes them."""
    begins, ends = times
    pattern = "%Y-%m-%d" if ends - begins >= 3 * _DAY else "%d %b %H:%M"
    moments = (begins, (begins + ends) / 2, ends)
    return [datetime.fromtimestamp(moment, UTC).strftime(pattern) for moment in moments]


def _n(number: float) -> str:
    """A coordinate to a tenth of a pixel, so that the last bits of a float do not show."""
    return f"{number:.1f}".removesuffix(".0")


# --- files --------------------------------------------------------------------------------------


def figure(
    campaign: Campaign,
    results: Sequence[Result],
    truth: Mapping[str, Sequence[float]] | None,
    path: Path,
    trends: Sequence[Facts] = (),
) -> bytes:
    """A file's content; the ending of its name chooses SVG, HTML or PNG."""
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
    return kinds[path.suffix](charts(campaign, results, truth, trends), title)


def svg(made: Sequence[Chart], title: str) -> str:
    """All charts below one another in one file."""
    y, body = 16.0, []
    for chart in made:
        drawn, height = _drawn(chart)
        body.append(f'<g transform="translate(0 {_n(y)})">{drawn}</g>')
        y += height + 24
    rules = f"text{{font:13px {_FONTS};fill:{LIGHT['ink']}}}{_TEXTS}" + style(LIGHT.__getitem__)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{_n(y)}" '
        f'viewBox="0 0 {WIDTH} {_n(y)}" role="img"><title>{escape(title)}</title>'
        f'<style>{rules}</style><rect width="100%" height="100%" fill="{LIGHT["panel"]}"/>'
        f"{''.join(body)}</svg>\n"
    )


_TEXTS: Final = (
    f".title{{font-size:16px;font-weight:600}}.soft{{fill:{LIGHT['quiet']};font-size:12px}}"
)
_LABEL, _NUMBERS, _ROW = 180, 150, 26
_PANEL: Final = (240, 150)
_LONGEST_NAME: Final = 26
_LONGEST_LINE: Final = 96


def _drawn(chart: Chart) -> tuple[str, float]:
    """A chart's elements from the origin, and its height."""
    sentence = textwrap.wrap(chart.sentence, _LONGEST_LINE)
    head = _text(16, 16, chart.question, "title")
    head += "".join(_text(16, 38 + 18 * i, text, "") for i, text in enumerate(sentence))
    begins = 38 + 18 * len(sentence)
    head += _text(16, begins, chart.caption, "soft")
    if not chart.bars and not chart.lines:
        return head, begins + 8
    begins += 14
    if chart.mean is not None:
        place = f'x="16" y="{_n(begins)}" width="{WIDTH - 32}" height="290"'
        mean = _timed(chart.mean, line_curves(chart.mean, dots=True), "mean", 240)
        head += f"<svg {place}>{mean}</svg>"
        begins += 310
    rows = [_panel(chart, i, begins) for i in range(len(chart.lines))]
    bottom = begins + -(-len(rows) // 3) * _PANEL[1]
    if chart.bars:
        top, bottom = _top(chart.bars), begins + len(chart.bars) * _ROW
        place = f'x="{_LABEL + 16}" width="{WIDTH - _LABEL - _NUMBERS - 32}" height="{_ROW}"'
        for i, bar in enumerate(chart.bars):
            y, numbers = begins + i * _ROW, f"{bar.percent(bar.share)} % ({bar.ends})"
            rows.append(_text(_LABEL + 6, y + 17, _short(bar.name), "", anchor="end"))
            rows.append(f'<svg {place} y="{y}">{_bar(bar, top)}</svg>')
            rows.append(_text(WIDTH - 16, y + 17, numbers, "soft", anchor="end"))
    return head + "".join(rows) + _text(16, bottom + 16, chart.legend, "soft"), bottom + 20


def _panel(chart: Chart, i: int, y: float) -> str:
    """One value over time; all panels of a chart have one scale."""
    drawn, (width, height), scale = chart.lines[i], _PANEL, common_scale(chart.lines)
    left, right, base = 44, width - 12, height - 28
    place = f'x="{left}" y="24" width="{right - left}" height="{base - 24}"'
    marks = _curves(line_curves(drawn), drawn.times, scale, right - left, base - 24)
    begins, ends = drawn.dates
    return (
        f'<g transform="translate({i % 3 * width} {_n(y + i // 3 * height)})">'
        + _text(left, 14, _short(drawn.name), "")
        + f'<line class="grid" x1="{left}" x2="{right}" y1="{base}" y2="{base}"/>'
        + _text(left - 6, base + 4, "0", "soft", anchor="end")
        + _text(left - 6, 30, f"{scale[1]:.0f} %", "soft", anchor="end")
        + _text(left, base + 16, begins, "soft")
        + _text(right, base + 16, ends, "soft", anchor="end")
        + f"<svg {place}>{marks}</svg></g>"
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>'


_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_PAGE_STYLE: Final = (
    f"body{{font:15px/1.5 {_FONTS};color:var(--ink);background:var(--panel);"
    "margin:2rem auto;max-width:46rem;padding:0 1rem}svg{max-width:100%;height:auto}"
    f"svg text{{font:13px {_FONTS};fill:var(--ink)}}"
    "svg .title{font-size:16px;font-weight:600}svg .soft{fill:var(--quiet);font-size:12px}"
    "table{border-collapse:collapse;margin:1rem 0 2.5rem}"
    "caption{text-align:left;color:var(--quiet)}th,td{padding:.15rem .8rem .15rem 0;"
    "text-align:right;border-bottom:1px solid var(--line)}"
    "th:first-child{text-align:left}th[scope=row]{font-weight:400}"
)


def html(made: Sequence[Chart], title: str) -> str:
    """Charts and their numbers as one page that needs nothing else and runs nothing."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{page_style()}{_PAGE_STYLE}</style>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body><main>'
        f"<h1>{escape(title)}</h1>{''.join(map(_section, made))}</main></body></html>\n"
    )


def _section(chart: Chart) -> str:
    drawn, height = _drawn(chart)
    picture = (
        f'<svg width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}" role="img">'
        f"<title>{escape(chart.question)}</title>{drawn}</svg>"
    )
    rows = [(b.name, "–", f"{b.percent(b.share)} %", b.ends) for b in chart.bars]
    for each in chart.lines:
        rows += [(each.name, f"{p.last}", *each.text(p)) for p in each.points]
    columns = ("value", "round", "share", "95 % interval")
    caption = f"<caption>{escape(chart.caption)}; {escape(chart.legend)}, in percent</caption>"
    header = "".join(f'<th scope="col">{name}</th>' for name in columns)
    cells = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        f"<td>{which}</td><td>{share}</td><td>{ends}</td></tr>"
        for name, which, share, ends in rows
    )
    table = f"<table>{caption}<tr>{header}</tr>{cells}</table>" if rows else ""
    return f"<section>{picture}{table}</section>"


def png(made: Sequence[Chart], title: str) -> bytes:
    """The SVG, rendered at twice its size."""
    render = import_extra("resvg_py", "a PNG").svg_to_bytes
    frame = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{}</svg>'
    letter = f'<text y="8" font-family="{_FONTS}">x</text>'
    if render(svg_string=frame.format(letter)) == render(svg_string=frame.format("")):
        raise CollectorError(
            "a PNG needs a font, and none is installed here; nothing was written. Install one, "
            "such as DejaVu Sans, or choose a name that ends in .svg or .html"
        )
    content: bytes = render(svg_string=svg(made, title), zoom=2)
    return bytes(content)


# --- the terminal: brackets are the interval, a dot is the truth


NARROWEST: Final = 10
SHORTEST_LABEL: Final = 6
LONGEST_LABEL: Final = 0.35  # of the width


@dataclass(frozen=True, slots=True)
class Ink:
    """The characters of a picture and whether they have colours."""

    bar: str = "█"
    line: str = "─"
    true: str = "●"
    between: str = "…"
    colour: bool = False

    def write(self, text: str) -> str:
        """A text as far as it can be written; where only ASCII can, the rest are question marks."""
        return text.encode("ascii", "replace").decode() if self.bar.isascii() else text

    def paint(self, cells: Sequence[str]) -> str:
        """The cells as text, runs of a kind in their colour."""
        if not self.colour:
            return "".join(cells)
        colours = {self.bar: "blue", self.true: "yellow"}
        runs = (("".join(run), colours.get(cell)) for cell, run in groupby(cells))
        return "".join(click.style(text, fg=fg) if fg else text for text, fg in runs)


UNICODE: Final = Ink()
ASCII: Final = Ink("#", "-", "o", "to")


def ink_of(stream: TextIO, environ: Mapping[str, str]) -> Ink:
    """What a stream can show: ASCII unless it is UTF-8, colours only on a terminal."""
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    colour = stream.isatty() and not environ.get("NO_COLOR")
    return replace(UNICODE if encoding == "utf8" else ASCII, colour=colour)


def plot_text(
    facts: Facts, *, width: int, ink: Ink = UNICODE, true: Sequence[float] | None = None
) -> str:
    """One result as a picture that is no wider than the terminal."""
    lines = [ink.write(line) for line in heading(facts)]
    if facts["withheld"]:
        return "\n".join(lines)
    rows = facts["histogram"]
    found = [share_of(row["projected"], row["low"], row["high"]) for row in rows]
    bars = named_bars([ink.write(row["value"]) for row in rows], found, true)
    space = width - 5 - _columns(_numbers(bars[0], ink))  # for names and bars
    longest = min(int(LONGEST_LABEL * width), max(SHORTEST_LABEL, space - NARROWEST))
    label = min(longest, max(_columns(bar.name) for bar in bars))
    drawn = draw_bars(bars, cells=max(NARROWEST, space - label), label=label, ink=ink)
    truth = "" if true is None else f"   {ink.true} truth of the simulation"
    key = f"  {ink.bar} share of the devices   [ ] 95 % interval{truth}"
    return "\n".join([*lines, *drawn, "", key])


def draw_bars(
    bars: Sequence[Bar], *, cells: int, label: int | None = None, ink: Ink = UNICODE
) -> list[str]:
    """A line for each bar, all scaled to the largest number among them."""
    scale = _top(bars)
    label = label or max(_columns(bar.name) for bar in bars)
    return [
        f"  {ink.write(_padded(bar.name, label))}  {ink.paint(_cells(bar, scale, cells, ink))}"
        f"{_numbers(bar, ink)}"
        for bar in bars
    ]


def _cells(bar: Bar, scale: float, width: int, ink: Ink) -> list[str]:
    def at(share: float) -> int:
        return max(0, min(width, round(share / scale * width)))

    cells = [" "] * (width + 1)
    for x in range(at(bar.share) + 1 if bar.share > 0 else 0):
        cells[x] = ink.bar
    for x in range(at(bar.low), at(bar.high) + 1):
        cells[x] = cells[x] if cells[x] == ink.bar else ink.line
    cells[at(bar.low)], cells[at(bar.high)] = "[", "]"
    if bar.true is not None:
        cells[at(bar.true)] = ink.true
    return cells


def _numbers(bar: Bar, ink: Ink) -> str:
    """In columns that are wide enough for 100 %."""
    wide = 3 + bar.digits + (bar.digits > 0)
    low, share, high = (f"{bar.percent(x):>{wide}}" for x in (bar.low, bar.share, bar.high))
    more = f"{low} {ink.between} {high}"
    if bar.true is not None:
        more = f"true {bar.percent(bar.true):>{wide}} %"
    return f"  {share} %  {more}"


def _columns(text: str) -> int:
    """Columns of a terminal that a text takes: letters of some scripts take two."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _padded(name: str, label: int) -> str:
    kept = name
    while _columns(kept) > label:
        kept = kept.removesuffix("…")[:-1] + "…"
    return kept + " " * (label - _columns(kept))


# --- QR codes -----------------------------------------------------------------------------------


BORDER: Final = 4
DARK_ON_LIGHT: Final = "\x1b[30m\x1b[47m"
AS_BEFORE: Final = "\x1b[0m"
HALVES: Final = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}


def modules(text: str) -> list[list[int]]:
    """The code's squares with the white around them; 1 is dark."""
    import segno  # noqa: PLC0415 - only when a code is drawn

    code = segno.make_qr(text, error="m", boost_error=False)
    return [[int(dark) for dark in row] for row in code.matrix_iter(border=BORDER)]


def terminal_code(text: str, *, colours: bool) -> str:
    """Two rows of squares in one line of half blocks; with colours, in black on white."""
    rows = modules(text)
    nothing = [0] * len(rows)
    lines = [
        "".join(HALVES[upper, lower] for upper, lower in zip(above, below, strict=True))
        for above, below in zip_longest(rows[::2], rows[1::2], fillvalue=nothing)
    ]
    if not colours:
        return "\n".join(lines)
    return "\n".join(f"{DARK_ON_LIGHT}{line}{AS_BEFORE}" for line in lines)
