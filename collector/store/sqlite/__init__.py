"""The SQLite engine: one file, one writer at a time, any number of readers.

connection.py  opening, transactions, wiping the log
reading.py     what can be asked
counting.py    the hot path: batches into tables
present.py     which devices an open round has, in memory
forgetting.py  devices that asked to be forgotten
copying.py     a copy of the whole file while it is used, and its check
sealing.py     making rounds final, the end of retention
moving.py      all that the file holds, for another engine
schema.py      the tables, as append-only migrations
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from collector.records import Campaign, UnpublishedResult
from collector.store.moving import Portion
from collector.store.shared import require_same
from collector.store.sqlite.connection import Connect, Connection
from collector.store.sqlite.counting import CHUNK
from collector.store.sqlite.moving import contents
from collector.store.sqlite.sealing import SealedRounds
from protocol_spec import Manifest

__all__ = ["SqliteStore"]


class SqliteStore(SealedRounds):
    """The collector's memory in one file.

    `connect` makes the connection and `chunk` is how many devices one statement asks for.
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

    def open_campaign(self, manifest: Manifest, at: int, signature: bytes = b"") -> Campaign:
        """Add a campaign, with its operator's signature; opening it again changes nothing else."""
        with self._db.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO campaign (name, manifest, opened) VALUES (?, ?, ?)",
                (manifest.campaign, manifest.to_bytes(), at),
            )
            key, stored = self._db.execute(
                "SELECT id, manifest FROM campaign WHERE name = ?", (manifest.campaign,)
            ).fetchone()
            require_same(stored, manifest)
            if signature:
                self._db.execute("INSERT OR REPLACE INTO signature VALUES (?, ?)", (key, signature))
        return self.campaign(manifest.campaign)

    def contents(self) -> Iterator[Portion]:
        """All that the file holds, to move it to another engine."""
        return contents(self._db)

    def signature(self, campaign: int) -> bytes:
        """The operator's signature of a campaign's manifest; empty where it has none."""
        row = self._db.execute(
            "SELECT signature FROM signature WHERE campaign = ?", (campaign,)
        ).fetchone()
        return b"" if row is None else row[0]

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
        taken = (result.campaign, result.attribute, result.round, result.message)
        with self._db.transaction():
            self._db.execute(
                """DELETE FROM unpublished WHERE (campaign, attribute, round) IN (
                       SELECT campaign, attribute, round FROM result
                       WHERE campaign = ? AND attribute = ? AND round = ? AND message = ?)""",
                taken,
            )
            self._db.execute(
                """UPDATE result SET published = 1 WHERE campaign = ? AND attribute = ?
                   AND round = ? AND message = ? AND published = 0""",
                taken,
            )

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""
        with self._db.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO unpublished SELECT campaign, round, attribute FROM result"
            )

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE round SET receipts_cleared = 1 WHERE campaign = ? AND number = ?",
                (campaign, number),
            )
