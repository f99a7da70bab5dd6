"""Results for analysts: from a data directory, a page's address or a file, as one table.

    from collector.results import Results

    table = Results.open("data").to_pandas()

reading   the places that results come from
page      results that a page gives, over HTTP
groups    which rows are one result, and which holds all rounds
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from collector.results.groups import Group, groups, pooled_groups
from collector.results.reading import read
from collector.show import frames
from collector.show.tables import COLUMNS

__all__ = ["Results"]


class Results:
    """One row for each value of each result, with the columns of `allomfree-collector export`."""

    __slots__ = ("_columns",)

    def __init__(self, columns: frames.Columns) -> None:
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
        return frames.to_pandas(self._columns)

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return frames.to_polars(self._columns)

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return frames.to_arrow(self._columns)

    def _of(self, chosen: Iterable[Group]) -> Self:
        kept = [i for group in chosen for i in range(group.start, group.stop)]
        return type(self)({n: [cells[i] for i in kept] for n, cells in self._columns.items()})
