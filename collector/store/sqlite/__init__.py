"""The SQLite engine: one file, one writer at a time, any number of readers.

connection.py  opening, transactions, wiping the log
reading.py     what can be asked
counting.py    the hot path: batches into tables
sealing.py     making rounds final, forgetting devices
schema.py      the tables, as append-only migrations
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from collector.records import Campaign, UnpublishedResult
from collector.store.sqlite.connection import Connect, Connection
from collector.store.sqlite.counting import CHUNK
from collector.store.sqlite.sealing import SealedRounds
from protocol_spec import Manifest

__all__ = ["SqliteStore"]


class SqliteStore(SealedRounds):
    """The collector's memory in one file.

    `connect` makes the connection and `chunk` is how many rows one statement inserts.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        connect: Connect = sqlite3.connect,
        chunk: int = CHUNK,
    ) -> None:
        super().__init__(Connection(path, read_only=read_only, connect=connect), chunk)
        self.path = path

    def open_campaign(self, manifest: Manifest, at: int) -> Campaign:
        """Add a campaign; opening it again changes nothing."""
        with self._db.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO campaign (name, manifest, opened) VALUES (?, ?, ?)",
                (manifest.campaign, manifest.to_bytes(), at),
            )
        return self.campaign(manifest.campaign)

    def close_campaign(self, campaign: Campaign, at: int) -> None:
        """Take no more reports."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE campaign SET closed = ? WHERE id = ? AND closed IS NULL", (at, campaign.id)
            )

    def revoke(self, device: str, at: int) -> None:
        """Take no more reports from a device."""
        with self._db.transaction():
            self._db.execute("INSERT OR IGNORE INTO revoked VALUES (?, ?)", (device, at))

    def reinstate(self, device: str) -> None:
        """Take a device's reports again."""
        with self._db.transaction():
            self._db.execute("DELETE FROM revoked WHERE device = ?", (device,))

    def mark_published(self, result: UnpublishedResult) -> None:
        """The broker has taken this result; a newer pooled one stays to be published."""
        with self._db.transaction():
            self._db.execute(
                """UPDATE result SET published = 1
                   WHERE campaign = ? AND attribute = ? AND round = ? AND message = ?""",
                (result.campaign, result.attribute, result.round, result.message),
            )

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""
        with self._db.transaction():
            self._db.execute("UPDATE result SET published = 0")

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE round SET receipts_cleared = 1 WHERE campaign = ? AND number = ?",
                (campaign, number),
            )
