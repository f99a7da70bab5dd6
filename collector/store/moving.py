"""All that a store holds, table by table, to move it to another engine and to compare the two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from collector.errors import CollectorError

Row = tuple[Any, ...]

# Names of tables, their columns, and how many of these are the key.
TABLES: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "campaign": (("id", "name", "manifest", "opened", "closed"), 1),
    "signature": (("campaign", "signature"), 1),
    "revoked": (("device", "at"), 1),
    "round": (("campaign", "number", "sealed", "receipts_cleared"), 2),
    "device": (("campaign", "device", "attribute", "rounds", "unreleased"), 2),
    "tally": (("campaign", "round", "attribute", "n", "counts"), 3),
    "outcome": (("campaign", "round", "name", "n"), 3),
    "outcome_total": (("campaign", "name", "n"), 2),
    "request": (("name", "n"), 1),
    "round_sum": (
        ("campaign", "attribute", "released", "first", "last", "rounds", "n", "counts"),
        3,
    ),
    "released_total": (("campaign", "attribute", "first", "last", "rounds", "n", "counts"), 2),
    "result": (("campaign", "attribute", "round", "message"), 3),
    "unpublished": (("campaign", "round", "attribute"), 3),
}
REPORT: Final = "report"  # rows are those of `records.Candidate`, round by round


class Portion(NamedTuple):
    """The rows of one table, by key; they may be read once."""

    table: str
    rows: Iterable[Row]


def compare(left: Iterable[Portion], right: Iterable[Portion]) -> dict[str, int]:
    """How many rows each table has; raises `CollectorError` if any differs in a single byte."""
    return {
        ours.table: _compare(ours.table, iter(ours.rows), iter(theirs.rows))
        for ours, theirs in zip(left, right, strict=True)
    }


def _compare(table: str, left: Iterator[Row], right: Iterator[Row]) -> int:
    number = 0
    for ours, theirs in zip_longest(left, right):
        if ours is None or theirs is None or tuple(ours) != tuple(theirs):
            raise CollectorError(
                f"the copy differs from the original in row {number} of table {table}; the copy "
                "was taken back, and the original is as it was. Please report this"
            )
        number += 1
    return number
