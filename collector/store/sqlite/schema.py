"""The collector's tables, as append-only migrations. A migration that has shipped never changes.

Times are Unix seconds, counts are little-endian 64-bit integers, as `records.Tally` has them. Other
tools may read the file: `result`, `tally` and `outcome` are meant for it, see docs/results.md.
"""

from __future__ import annotations

import sqlite3

import numpy as np
from sqlite_utils import Database, Migrations

from collector.store.shared import read_result

migrations = Migrations("allomfree-collector")


def upgrade(db: sqlite3.Connection, steps: Migrations = migrations) -> None:
    """Apply the migrations that a file has not seen; refuse one that has seen others."""
    wrapped = Database(db, execute_plugins=False)
    empty = Database(memory=True)
    known = {step.name for step in steps.pending(empty)}
    empty.close()
    if any(step.name not in known for step in steps.applied(wrapped)):
        raise sqlite3.DatabaseError("a newer version of this program made it")
    steps.apply(wrapped)


@migrations()
def first_tables(db: Database) -> None:
    """Campaigns, rounds, reports of open rounds, counts, results, counters, devices."""
    db.execute(
        """CREATE TABLE campaign (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            manifest BLOB NOT NULL,
            opened INTEGER NOT NULL,
            closed INTEGER
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE round (
            campaign INTEGER NOT NULL REFERENCES campaign(id),
            number INTEGER NOT NULL,
            sealed INTEGER NOT NULL,
            receipts_cleared INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (campaign, number)
        ) WITHOUT ROWID, STRICT"""
    )
    # `device` is a keyed hash; the key is not in this file. Rows live until their round is sealed.
    db.execute(
        """CREATE TABLE report (
            campaign INTEGER NOT NULL,
            round INTEGER NOT NULL,
            device INTEGER NOT NULL,
            attribute INTEGER NOT NULL,
            page INTEGER NOT NULL,
            tag INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (campaign, round, device)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE tally (
            campaign INTEGER NOT NULL,
            round INTEGER NOT NULL,
            attribute INTEGER NOT NULL,
            n INTEGER NOT NULL,
            counts BLOB NOT NULL,
            PRIMARY KEY (campaign, round, attribute)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE result (
            campaign INTEGER NOT NULL,
            attribute INTEGER NOT NULL,
            round INTEGER NOT NULL,
            message BLOB NOT NULL,
            published INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (campaign, attribute, round)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE outcome (
            campaign INTEGER NOT NULL,
            round INTEGER NOT NULL,
            name TEXT NOT NULL,
            n INTEGER NOT NULL,
            PRIMARY KEY (campaign, round, name)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE device (
            campaign INTEGER NOT NULL,
            device INTEGER NOT NULL,
            attribute INTEGER NOT NULL,
            rounds INTEGER NOT NULL,
            PRIMARY KEY (campaign, device)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute("CREATE TABLE revoked (device TEXT PRIMARY KEY, at INTEGER NOT NULL) STRICT")
    db.execute("CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT")


@migrations()
def sums_of_small_rounds(db: Database) -> None:
    """Rounds that are not released by themselves are kept only together.

    `device.rounds` counts the rounds that were released and `device.unreleased` the others.
    """
    db.execute(
        """CREATE TABLE round_sum (
            campaign INTEGER NOT NULL,
            attribute INTEGER NOT NULL,
            released INTEGER NOT NULL,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            rounds INTEGER NOT NULL,
            n INTEGER NOT NULL,
            counts BLOB NOT NULL,
            PRIMARY KEY (campaign, attribute, released)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute("ALTER TABLE device ADD COLUMN unreleased INTEGER NOT NULL DEFAULT 0")
    places = "SELECT campaign, attribute, message FROM result WHERE round = -1"
    for campaign, attribute, message in db.execute(places).fetchall():
        _put_together(db, campaign, attribute, released=not read_result(message).withheld)


def _put_together(db: Database, campaign: int, attribute: int, *, released: bool) -> None:
    """Rounds sealed before. The latest pooled result had all of them, unless it was withheld."""
    rows = db.execute(
        """SELECT round, n, counts, message
           FROM tally JOIN result USING (campaign, attribute, round)
           WHERE campaign = ? AND attribute = ? AND n > 0 ORDER BY round""",
        (campaign, attribute),
    ).fetchall()
    small = [
        (number, n, counts) for number, n, counts, message in rows if read_result(message).withheld
    ]
    if not small:
        return
    counts = np.sum([np.frombuffer(row[2], dtype="<i8") for row in small], axis=0, dtype="<i8")
    numbers, n = [row[0] for row in small], sum(row[1] for row in small)
    db.execute(
        "INSERT INTO round_sum VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (campaign, attribute, released, numbers[0], numbers[-1], len(small), n, counts.tobytes()),
    )
    for number in numbers:
        db.execute(
            "UPDATE tally SET counts = x'' WHERE campaign = ? AND attribute = ? AND round = ?",
            (campaign, attribute, number),
        )
    if not released:
        db.execute(
            """UPDATE device SET unreleased = rounds, rounds = 0
               WHERE campaign = ? AND attribute = ?""",
            (campaign, attribute),
        )
