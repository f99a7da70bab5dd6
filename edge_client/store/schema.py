"""The database's tables, as an append-only list of steps. A step that has shipped never changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

Step = Callable[[sqlite3.Connection], None]

APPLICATION_ID: Final = 0x414C4F46  # "ALOF", so that `file` and others can tell


def _first_tables(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID, STRICT")
    db.execute(
        """CREATE TABLE campaign (
            name TEXT PRIMARY KEY,
            manifest BLOB NOT NULL,
            broker TEXT NOT NULL,
            namespace TEXT NOT NULL,
            device TEXT NOT NULL,
            attribute INTEGER NOT NULL,
            status TEXT NOT NULL,
            joined INTEGER NOT NULL,
            last_round INTEGER NOT NULL DEFAULT -1,
            last_value INTEGER,
            boot TEXT NOT NULL DEFAULT '',
            round_opened REAL NOT NULL DEFAULT 0
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE memo (
            campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
            value INTEGER NOT NULL,
            body BLOB NOT NULL,
            created INTEGER NOT NULL,
            reports INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (campaign, value)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE outbox (
            campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
            round INTEGER NOT NULL,
            payload BLOB NOT NULL,
            deadline INTEGER NOT NULL,
            drawn INTEGER NOT NULL,
            fate TEXT NOT NULL DEFAULT 'queued',
            PRIMARY KEY (campaign, round)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute("CREATE INDEX outbox_queued ON outbox (campaign) WHERE fate = 'queued'")
    db.execute(
        """CREATE TABLE ledger (
            line INTEGER PRIMARY KEY,
            at INTEGER NOT NULL,
            campaign TEXT NOT NULL,
            source TEXT NOT NULL,
            epsilon REAL NOT NULL,
            reason TEXT NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE decision (
            line INTEGER PRIMARY KEY,
            at INTEGER NOT NULL,
            campaign TEXT NOT NULL,
            what TEXT NOT NULL
        ) STRICT"""
    )


def _drawn_rounds(db: sqlite3.Connection) -> None:
    """For campaigns that a device answers in some rounds only, without a memo.

    Tables of their own: an agent of the version before may still be running when another process
    takes this step, and reads every column of the tables it knows.
    """
    db.execute(
        """CREATE TABLE drawn_round (
            campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
            round INTEGER NOT NULL,
            PRIMARY KEY (campaign, round)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE answered (
            campaign TEXT PRIMARY KEY REFERENCES campaign(name) ON DELETE CASCADE,
            answers INTEGER NOT NULL
        ) WITHOUT ROWID, STRICT"""
    )


def _trust(db: sqlite3.Connection) -> None:
    """What was known of a campaign's broker and signer when it was joined.

    Without a row it was joined by an earlier version: credentials were shown to its broker.
    """
    db.execute(
        """CREATE TABLE trust (
            campaign TEXT PRIMARY KEY REFERENCES campaign(name) ON DELETE CASCADE,
            known_broker INTEGER NOT NULL,
            operator BLOB NOT NULL
        ) WITHOUT ROWID, STRICT"""
    )


STEPS: Final[tuple[Step, ...]] = (_first_tables, _drawn_rounds, _trust)


def migrate(db: sqlite3.Connection, steps: Sequence[Step]) -> None:
    """Bring a database to the latest schema: all steps or none, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for number, step in enumerate(steps[version:], start=version + 1):
            step(db)
            db.execute(f"PRAGMA user_version = {number}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
