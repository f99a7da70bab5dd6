"""All that the file holds, as another engine takes it."""

from __future__ import annotations

from collections.abc import Iterator

from collector.store.moving import REPORT, TABLES, Portion, Row
from collector.store.sqlite.connection import Connection
from collector.store.sqlite.forgetting import REQUEST


def contents(db: Connection) -> Iterator[Portion]:
    """Every table, each ordered by its key."""
    for table, (columns, keys) in TABLES.items():
        listed = ", ".join(columns)
        order = ", ".join(columns[:keys])
        query = f"SELECT {listed} FROM {table} ORDER BY {order}"  # noqa: S608 - names of ours
        yield Portion(table, _requests(db) if table == "request" else db.execute(query))
    yield Portion(REPORT, _reports(db))


def _requests(db: Connection) -> Iterator[Row]:
    rows = db.execute(
        "SELECT name, n FROM counter WHERE name LIKE ? ORDER BY name", (f"{REQUEST}%",)
    )
    for name, n in rows:
        yield name.removeprefix(REQUEST), n


def _reports(db: Connection) -> Iterator[Row]:
    """By round and device; a key holds campaign and round."""
    yield from db.execute(
        """SELECT id >> 48, id >> 32 & 65535, device, attribute, page, tag, body FROM report
           ORDER BY 1, 2, 3"""
    )
