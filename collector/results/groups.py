"""Which rows are one result, and which of the results holds all released rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from collector.show.frames import Columns


class Group(NamedTuple):
    """The rows of one result, from `start` to before `stop`."""

    question: tuple[str, str]  # campaign and attribute
    round: int | None
    first: int | None
    last: int | None
    withheld: bool
    start: int
    stop: int

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last round in it; old pooled results do not say."""
        if self.round is not None:
            return self.round, self.round
        return None if self.first is None or self.last is None else (self.first, self.last)


def groups(columns: Columns) -> list[Group]:
    """Rows of one result stand together; a value that comes again begins another."""
    names = ("campaign", "attribute", "round", "first", "last", "withheld")
    keys = list(zip(*(columns[name] for name in names)))
    return [
        Group((campaign, attribute), number, first, last, withheld, start, stop)
        for start, stop in _runs(keys, columns["value"])
        for campaign, attribute, number, first, last, withheld in [keys[start]]
    ]


def _runs(keys: Sequence[tuple[object, ...]], values: Sequence[str]) -> Iterator[tuple[int, int]]:
    start, seen = 0, set[str]()
    for i, value in enumerate(values):
        if i and (keys[i] != keys[i - 1] or value in seen):
            yield start, i
            start, seen = i, set()
        seen.add(value)
    if values:
        yield start, len(values)


def pooled_groups(found: Sequence[Group]) -> list[Group]:
    """Of each question the first result of several rounds that all it has released lies in.

    A window of rounds, as `once` has them, holds several rounds too; only one holds all windows.
    """
    kept = []
    for question in dict.fromkeys(group.question for group in found):
        mine = [group for group in found if group.question == question]
        together = (g for g in mine if g.round is None and all(_within(o, g) for o in mine))
        kept += [*together][:1]
    return kept


def _within(other: Group, whole: Group) -> bool:
    outer, inner = whole.span, other.span
    if other.withheld or outer is None or inner is None:
        return True
    return outer[0] <= inner[0] <= inner[1] <= outer[1]
