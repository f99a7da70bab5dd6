"""Filling an empty database with all that another engine held, and showing it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

from psycopg import sql

from collector.errors import CollectorError
from collector.store.moving import REPORT, TABLES, Portion, Row, compare
from collector.store.postgres.careful import make_table
from collector.store.postgres.connection import Connection
from collector.store.postgres.reading import TAGS, reports_of

PER_WORKER: Final = ("tally", "outcome", "outcome_total")


def take_over(db: Connection, contents: Callable[[], Iterable[Portion]]) -> dict[str, int]:
    """Copy everything in one transaction, and compare it before that ends; rows by table.

    Where something differs, or the database holds campaigns already, nothing is changed.
    """
    with db.transaction(whole_tables=True):
        db.execute("UPDATE version SET n = n + 1")
        if db.row("SELECT 1 FROM campaign LIMIT 1") is not None:
            raise CollectorError(
                f"{db.address} holds campaigns already; nothing was changed. Name an empty database"
            )
        for portion in contents():
            if portion.table == REPORT:
                _take_reports(db, portion.rows)
            else:
                _copy(db, portion)
        return compare(contents(), _contents(db))


def _copy(db: Connection, portion: Portion) -> None:
    columns, _ = TABLES[portion.table]
    more: Row = (0,) if portion.table in PER_WORKER else ()
    names = [*columns, *(("worker",) if portion.table in PER_WORKER else ())]
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(portion.table), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    db.copy(query, ((*row, *more) for row in portion.rows))


def _take_reports(db: Connection, rows: Iterable[Row]) -> None:
    """Every round that is open gets its table, also one whose reports were all withdrawn."""
    wanted = db.rows(
        """SELECT DISTINCT campaign, round FROM tally t WHERE NOT EXISTS
               (SELECT FROM round r WHERE r.campaign = t.campaign AND r.number >= t.round)"""
    )
    for key in wanted:
        make_table(db, *key)
    for key, members in groupby(rows, key=itemgetter(0, 1)):
        reports = reports_of(*key)
        query = sql.SQL("COPY {} (device, attribute, place, body) FROM STDIN").format(reports)
        db.copy(query, ((d, a, page * TAGS + tag, body) for _, _, d, a, page, tag, body in members))


def _contents(db: Connection) -> Iterator[Portion]:
    """What was copied, as it was given."""
    for table, (columns, keys) in TABLES.items():
        where = {"round": sql.SQL("WHERE sealed IS NOT NULL")}
        query = sql.SQL("SELECT {} FROM {} {} ORDER BY {}").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.Identifier(table),
            where.get(table, sql.SQL("")),
            sql.SQL(", ").join(_in_bytes(table, column) for column in columns[:keys]),
        )
        yield Portion(table, db.stream(query, ()))
    yield Portion(REPORT, _reports(db))


def _in_bytes(table: str, column: str) -> sql.Composed:
    """Text in the order of its bytes, whatever the database's language is."""
    order = sql.SQL(' COLLATE "C"') if column == "name" or table == "revoked" else sql.SQL("")
    return sql.Identifier(column) + order


def _reports(db: Connection) -> Iterator[Row]:
    rounds = db.rows("SELECT campaign, number FROM round WHERE stored ORDER BY 1, 2")
    for campaign, number in rounds:
        query = sql.SQL("SELECT device, attribute, place, body FROM {} ORDER BY device")
        for device, attribute, place, body in db.stream(
            query.format(reports_of(campaign, number)), ()
        ):
            yield campaign, number, device, attribute, place // TAGS, place % TAGS, body
