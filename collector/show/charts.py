"""What a figure of results draws: bars for one result, a line with its band over rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from collector.records import Campaign
from protocol_spec import Result

MOST_BARS: Final = 50
MOST_PANELS: Final = 12


@dataclass(frozen=True, slots=True)
class Point:
    """An estimate and its interval, as shares of 1; `round` is None for pooled rounds.

    Of several rounds together that follow others, `round` is the last one and `first` the first.
    """

    round: int | None
    share: float
    low: float
    high: float
    first: int | None = None

    @property
    def begins(self) -> int:
        """The first round in it."""
        return (self.round or 0) if self.first is None else self.first


@dataclass(frozen=True, slots=True)
class Series:
    """One value of an attribute, in one result or in one round after the other."""

    name: str
    points: tuple[Point, ...]
    true: float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """One attribute. Without series it says why: the histogram is withheld."""

    question: str
    note: str
    series: tuple[Series, ...]

    @property
    def over_time(self) -> bool:
        """Whether rounds follow one another."""
        return bool(self.series) and len(self.series[0].points) > 1

    @property
    def top(self) -> float:
        """The largest number to be drawn."""
        ends = [p.high for s in self.series for p in s.points]
        return max(1e-9, *ends, *(p.share for s in self.series for p in s.points), *self._truths)

    @property
    def _truths(self) -> list[float]:
        return [s.true for s in self.series if s.true is not None]


def charts(
    campaign: Campaign, results: Sequence[Result], truth: Mapping[str, Sequence[float]] | None
) -> list[Chart]:
    """What to draw: for each attribute its rounds if there are several, else the one result."""
    made = []
    for attribute in campaign.manifest.attributes:
        mine = [r for r in results if r.attribute == attribute.name]
        rounds = mine[1:] if mine and mine[0].round is None else mine  # the pooled one is first
        chosen = rounds if len(rounds) > 1 else mine[:1]
        if chosen:
            true = (truth or {}).get(attribute.name)
            made.append(_chart(attribute.question, attribute.values, chosen, true))
    return made


def _chart(
    question: str, values: Sequence[str], results: Sequence[Result], true: Sequence[float] | None
) -> Chart:
    shown = [r for r in results if not r.withheld]
    if not shown:
        return Chart(question, f"{_note(results)}; too few reports, withheld", ())
    series = [
        Series(
            name,
            tuple(_point(r, i, several=len(shown) > 1) for r in shown),
            true[i] if true else None,
        )
        for i, name in enumerate(values)
    ]
    most = MOST_PANELS if len(shown) > 1 else MOST_BARS
    largest = sorted(range(len(values)), key=lambda i: -sum(p.share for p in series[i].points))
    kept = sorted(largest[:most])
    note = _note(shown)
    if len(kept) < len(values):
        note += f"; the {most} largest of {len(values)} values"
    return Chart(question, note, tuple(series[i] for i in kept))


def _point(result: Result, i: int, *, several: bool) -> Point:
    at = result.last if several and result.round is None else result.round
    return Point(at, result.projected[i], result.low[i], result.high[i], result.first)


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
