"""The collector's tables, as append-only migrations. A migration that has shipped never changes.

Times are Unix seconds, counts are little-endian 64-bit integers, as `records.Tally` has them. Other
tools may read the file: `result`, `tally` and `outcome` are meant for it, see docs/results.md.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.store.shared import read_result
from collector.store.sqlite.utils import Database, Migrations

migrations = Migrations("allomfree-collector")
OUTCOME_TOTALS: Final = "SELECT campaign, name, sum(n) AS n FROM outcome GROUP BY campaign, name"

REPORTS_BY_PLACE: Final = """
    SELECT campaign, round, device, attribute, page, tag, body,
           ((campaign << 48) | (round << 32)) +
           row_number() OVER (PARTITION BY campaign, round ORDER BY device) - 1 AS id
    FROM main.report"""


def upgrade(db: sqlite3.Connection, steps: Migrations = migrations) -> None:
    """Apply the migrations that a file has not seen; refuse one that has seen others."""
    check_known(db, steps)
    steps.apply(Database(db, execute_plugins=False))


def check_known(db: sqlite3.Connection, steps: Migrations = migrations) -> None:
    """Refuse a file that has seen migrations which are not known here."""
    empty = Database(memory=True)
    known = {step.name for step in steps.pending(empty)}
    empty.close()
    if any(step.name not in known for step in steps.applied(Database(db, execute_plugins=False))):
        raise sqlite3.DatabaseError("a newer version of this program made it")


def report_id(campaign: int, number: int, place: int) -> int:
    """The key of a report: reports of one round stand together, in the order in which they came."""
    return campaign << 48 | number << 32 | place


def places_of_round(campaign: int, number: int) -> tuple[int, int]:
    """The first key that a report of a round can have, and the last."""
    return report_id(campaign, number, 0), report_id(campaign, number, (1 << 32) - 1)


def show_as_upgraded(db: sqlite3.Connection) -> None:
    """A reader of a file that the service has not upgraded yet sees what it will find then."""
    columns = {row[1] for row in db.execute("PRAGMA table_xinfo(report)")}
    if "id" not in columns:
        db.execute(f"CREATE TEMP VIEW report AS {REPORTS_BY_PLACE}")
    known = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'outcome_total'").fetchone()
    if known is None:
        db.execute(f"CREATE TEMP VIEW outcome_total AS {OUTCOME_TOTALS}")


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


@migrations()
def signatures(db: Database) -> None:
    """Operators' signatures of manifests: made by `open`, published by the service."""
    db.execute(
        """CREATE TABLE signature (
            campaign INTEGER PRIMARY KEY REFERENCES campaign(id),
            signature BLOB NOT NULL
        ) STRICT"""
    )


@migrations()
def running_totals(db: Database) -> None:
    """What sealing and publishing would otherwise read all earlier rounds for.

    `released_total` is all that was released of an attribute, `outcome_total` all rounds of a
    campaign, and `unpublished` says which results a broker has not taken: a row of `result` is
    large, and changing its `published` writes all of it.
    """
    db.execute(
        """CREATE TABLE released_total (
            campaign INTEGER NOT NULL,
            attribute INTEGER NOT NULL,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            rounds INTEGER NOT NULL,
            n INTEGER NOT NULL,
            counts BLOB NOT NULL,
            PRIMARY KEY (campaign, attribute)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE outcome_total (
            campaign INTEGER NOT NULL,
            name TEXT NOT NULL,
            n INTEGER NOT NULL,
            PRIMARY KEY (campaign, name)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE unpublished (
            campaign INTEGER NOT NULL,
            round INTEGER NOT NULL,
            attribute INTEGER NOT NULL,
            PRIMARY KEY (campaign, round, attribute)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute("CREATE INDEX round_with_receipts ON round (campaign) WHERE receipts_cleared = 0")
    db.execute(f"INSERT INTO outcome_total {OUTCOME_TOTALS}")
    db.execute(
        "INSERT INTO unpublished SELECT campaign, round, attribute FROM result WHERE published = 0"
    )
    _add_up_released(db)


def _add_up_released(db: Database) -> None:
    """Rounds released by themselves, row by row, and those that were released together."""
    parts = db.execute(
        """SELECT t.campaign, t.attribute, round, round, 1, n, counts
           FROM tally t JOIN round r ON r.campaign = t.campaign AND r.number = t.round
           WHERE n > 0 AND length(counts) > 0
           UNION ALL
           SELECT campaign, attribute, first, last, rounds, n, counts FROM round_sum
           WHERE released"""
    )
    totals: dict[tuple[int, int], tuple[int, int, int, int, npt.NDArray[np.int64]]] = {}
    for campaign, attribute, first, last, rounds, n, blob in parts:
        counts = np.frombuffer(blob, dtype="<i8").astype(np.int64)
        key = (campaign, attribute)
        if key in totals:
            old = totals[key]
            first, last = min(first, old[0]), max(last, old[1])  # noqa: PLW2901
            rounds, n, counts = rounds + old[2], n + old[3], counts + old[4]  # noqa: PLW2901
        totals[key] = first, last, rounds, n, counts
    for key, (*numbers, counts) in totals.items():
        row = (*key, *numbers, counts.astype("<i8").tobytes())
        db.execute("INSERT INTO released_total VALUES (?, ?, ?, ?, ?, ?, ?)", row)


@migrations()
def reports_in_order(db: Database) -> None:
    """Reports are appended instead of sorted by device, which wrote kilobytes for each of them.

    The key is campaign, round and place in one number, see `report_id`; that a device is counted
    once is looked up in memory, see `present.py`.
    """
    db.execute(
        """CREATE TABLE placed_report (
            campaign INTEGER GENERATED ALWAYS AS (id >> 48) VIRTUAL,
            round INTEGER GENERATED ALWAYS AS ((id >> 32) & 65535) VIRTUAL,
            device INTEGER NOT NULL,
            attribute INTEGER NOT NULL,
            page INTEGER NOT NULL,
            tag INTEGER NOT NULL,
            body BLOB NOT NULL,
            id INTEGER PRIMARY KEY
        ) STRICT"""
    )
    db.execute(
        f"""INSERT INTO placed_report (device, attribute, page, tag, body, id)
            SELECT device, attribute, page, tag, body, id FROM ({REPORTS_BY_PLACE})"""  # noqa: S608
    )
    db.execute("DROP TABLE report")
    db.execute("ALTER TABLE placed_report RENAME TO report")


@migrations()
def settings(db: Database) -> None:
    """What is agreed on once: the fingerprint of the device key, the leader's session."""
    db.execute("CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT")
