"""Which rows are one result, and which of the results holds all released rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from collector.results import tables
from collector.results.tables import COLUMNS, Columns


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


# --- Results for analysts: from a data directory, a page's address or a file, as one table.


class Results:
    """One row for each value of each result, with the columns of `allomfree-collector export`."""

    __slots__ = ("_columns",)

    def __init__(self, columns: tables.Columns) -> None:
        self._columns = columns

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        campaign: str | None = None,
        attribute: str | None = None,
        token: str | None = None,
    ) -> Self:
        """Every sealed result of a data directory, of the page at an address, or of a JSON file.

        A store that several workers share is named by its `postgresql://` address.

        `campaign` and `attribute` choose some of them. An address that needs a token takes it
        from `token`, or from the link that `allomfree-collector page --link` prints.
        """
        from collector.results.sources import read  # noqa: PLC0415 - urllib, for those who read

        return cls(read(source, campaign=campaign, attribute=attribute, token=token))

    @property
    def campaigns(self) -> list[str]:
        """Names of the campaigns, in the order of the rows."""
        return list(dict.fromkeys(self._columns["campaign"]))

    @property
    def attributes(self) -> list[str]:
        """Names of the attributes, in the order of the rows."""
        return list(dict.fromkeys(self._columns["attribute"]))

    def pooled(self) -> Self:
        """Only what holds all released rounds together; at most one result for each question."""
        return self._of(pooled_groups(groups(self._columns)))

    def rounds(self) -> Self:
        """Only what is about one round, or with `once` about one window of rounds."""
        found = groups(self._columns)
        together = {group.start for group in pooled_groups(found)}
        return self._of([group for group in found if group.start not in together])

    def __len__(self) -> int:
        return len(self._columns["value"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Row by row; times are `datetime`s in UTC."""
        for cells in zip(*(self._columns[name] for name in COLUMNS)):
            yield dict(zip(COLUMNS, cells))

    def __repr__(self) -> str:
        found = groups(self._columns)
        return (
            f"<{len(found)} results of {', '.join(self.campaigns) or 'nothing'}, {len(self)} rows>"
        )

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return tables.to_pandas(self._columns)

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return tables.to_polars(self._columns)

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return tables.to_arrow(self._columns)

    def _of(self, chosen: Iterable[Group]) -> Self:
        kept = [i for group in chosen for i in range(group.start, group.stop)]
        return type(self)({n: [cells[i] for i in kept] for n, cells in self._columns.items()})
