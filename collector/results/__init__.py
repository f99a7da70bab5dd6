"""Results for analysts: from a data directory, a page's address or a file, as one table.

    from collector.results import Results

    table = Results.open("data").to_pandas()

sources     the places that results come from
tables      rows and columns, and their files
facts       what commands, JSON and the page show
estimates   comparisons, and what else can be calculated from a published result
words       sentences that commands and page have in common
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from collector.results import tables
from collector.results.tables import COLUMNS, Columns

__all__ = ["Results"]


class _Group(NamedTuple):
    """The rows of one result, from `start` to before `stop`."""

    question: tuple[str, str]  # campaign and attribute
    round: int | None
    first: int
    last: int
    withheld: bool
    start: int
    stop: int


def _groups(columns: Columns) -> Iterator[_Group]:
    """Rows of one result are adjacent; a value that is repeated begins another result."""
    names = ("campaign", "attribute", "round", "first", "last", "withheld")
    keys, values = list(zip(*(columns[name] for name in names))), columns["value"]
    start, seen = 0, set[str]()
    for i in range(len(values) + 1):
        if i == len(values) or keys[i] != keys[start] or values[i] in seen:
            if i:
                campaign, attribute, number, first, last, withheld = keys[start]
                yield _Group((campaign, attribute), number, first, last, withheld, start, i)
            start, seen = i, set()
        if i < len(values):
            seen.add(values[i])


def _pooled(found: Sequence[_Group]) -> list[_Group]:
    """Of each question the first result of several rounds that all it has released lies in.

    A window of rounds, as `once` has them, holds several rounds too; only one holds all windows.
    """
    kept = []
    for question in dict.fromkeys(group.question for group in found):
        mine = [group for group in found if group.question == question]
        released = [group for group in mine if not group.withheld]
        together = (
            group
            for group in mine
            if group.round is None
            and all(group.first <= o.first and o.last <= group.last for o in released)
        )
        kept += [*together][:1]
    return kept


class Results:
    """One row for each value of each result, with the columns of `allomfree-collector export`."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Columns) -> None:
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
        return self._of(_pooled(list(_groups(self._columns))))

    def rounds(self) -> Self:
        """Only what is about one round, or with `once` about one window of rounds."""
        found = list(_groups(self._columns))
        together = _pooled(found)
        return self._of(group for group in found if group not in together)

    def __len__(self) -> int:
        return len(self._columns["value"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Row by row; times are `datetime`s in UTC."""
        for cells in zip(*(self._columns[name] for name in COLUMNS)):
            yield dict(zip(COLUMNS, cells))

    def __repr__(self) -> str:
        count, names = sum(1 for _ in _groups(self._columns)), ", ".join(self.campaigns)
        return f"<{count} results of {names or 'nothing'}, {len(self)} rows>"

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return tables.to_pandas(self._columns)

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return tables.to_polars(self._columns)

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return tables.to_arrow(self._columns)

    def _of(self, chosen: Iterable[_Group]) -> Self:
        kept = [i for group in chosen for i in range(group.start, group.stop)]
        return type(self)({n: [cells[i] for i in kept] for n, cells in self._columns.items()})
