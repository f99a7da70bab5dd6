"""Results for analysts: from a data directory, a page's address or a file, as one table.

    from collector.results import Results

    table = Results.open("data").to_pandas()

sources     the places that results come from
tables      rows and columns, and their files
facts       what commands, JSON and the page show
trends      changes over rounds, and differences of two results
groups      results by group of a public label
estimates   comparisons of two values, and what else can be calculated from a published result
words       sentences that commands and page have in common
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from collector.results import tables
from collector.results.tables import COLUMNS, Columns

__all__ = ["Results"]


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
        return self._rows(self._pooled())

    def rounds(self) -> Self:
        """Only what is about one round, or with `once` about one window of rounds."""
        pooled = set(self._pooled())
        return self._rows(i for i in range(len(self)) if i not in pooled)

    def _pooled(self) -> list[int]:
        """Rows of the first result of each question that spans all it has released.

        With `once`, a window holds several rounds too; only one result holds all windows.
        """
        names = ("campaign", "attribute", "value", "round", "first", "last", "withheld")
        rows = list(zip(*(self._columns[name] for name in names)))
        spans: dict[tuple[str, str], tuple[int, int]] = {}
        for campaign, attribute, _, _, first, last, withheld in rows:
            if not withheld:
                lowest, highest = spans.get((campaign, attribute), (first, last))
                spans[campaign, attribute] = min(lowest, first), max(highest, last)
        kept: dict[tuple[str, str, str], int] = {}
        for i, (campaign, attribute, value, number, first, last, _) in enumerate(rows):
            lowest, highest = spans.get((campaign, attribute), (first, last))
            if number is None and first <= lowest and highest <= last:
                kept.setdefault((campaign, attribute, value), i)
        return list(kept.values())

    @staticmethod
    def trends(
        source: str | Path,
        fit: str = "line",
        *,
        campaign: str | None = None,
        attribute: str | None = None,
    ) -> list[dict[str, Any]]:
        """What changed over the rounds in a data directory or a shared store: a row for the mean
        and for each value, as `export --trend` writes them, and each row's `sentence` and `curve`.

        `fit` is line, smooth, or the length of a wave, such as 1d or 52w. What has no trend has no
        rows; `estimate --trend` says why.
        """
        from collector.results.sources import read_trends  # noqa: PLC0415 - as above

        return read_trends(source, fit, campaign, attribute)

    @staticmethod
    def groups(
        source: str | Path,
        label: str,
        *,
        number: str = "pooled",
        campaign: str | None = None,
        attribute: str | None = None,
    ) -> list[dict[str, Any]]:
        """Results by group of a public label, from a data directory or a shared store: rows as
        `export --by` writes them. `number` is a round's, `latest` or `pooled`."""
        from collector.results.sources import read_groups  # noqa: PLC0415 - as above

        return read_groups(source, label, number, campaign, attribute)

    def __len__(self) -> int:
        return len(self._columns["value"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Row by row; times are `datetime`s in UTC."""
        for cells in zip(*(self._columns[name] for name in COLUMNS)):
            yield dict(zip(COLUMNS, cells))

    def __repr__(self) -> str:
        columns = (self._columns[name] for name in ("campaign", "attribute", "value"))
        first: dict[tuple[str, str], str] = {}
        count = sum(v == first.setdefault((c, a), v) for c, a, v in zip(*columns))
        names = ", ".join(self.campaigns) or "nothing"
        return f"<{count} results of {names}, {len(self)} rows>"

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return tables.to_pandas(self._columns)

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return tables.to_polars(self._columns)

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return tables.to_arrow(self._columns)

    def _rows(self, kept: Iterable[int]) -> Self:
        chosen = list(kept)
        return type(self)({n: [cells[i] for i in chosen] for n, cells in self._columns.items()})
