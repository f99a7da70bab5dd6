"""What a figure of results draws: bars for one result, a line with its band over rounds.

The number of a bar or point is the raw estimate, as everywhere: it is the one that the interval
belongs to. Where it is below 0 a bar goes to the left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from collector.records import Campaign
from protocol_spec import Result

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
