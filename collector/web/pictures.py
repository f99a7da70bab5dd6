"""Pictures that need no script: bars of a histogram, and lines over time, as marks to be placed.

Every place is in per cent of the picture's width or height, so that a picture is as wide as the
window leaves room for. The same charts as in files, drawn by the templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from collector.records import Campaign
from collector.show.charts import Chart, Point, Series, histogram, largest, over_time, unbroken
from collector.show.interest import most_interesting
from collector.show.selection import Latest, latest_results, pooled_of
from collector.store import Store

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
    return _line(kept[0], chart, min(ends), max(ends))


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
    return [_line(series, chart, chart.bottom, chart.top) for series in chart.series]


def _line(series: Series, chart: Chart, bottom: float, top: float) -> Line:
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
