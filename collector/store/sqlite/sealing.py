"""Sealing a round, and forgetting devices: what is deleted here is wiped from the log, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from collector.records import Campaign, Tally
from collector.store.shared import attribute_index
from collector.store.sqlite.connection import Connection
from collector.store.sqlite.counting import Counting
from protocol_spec import Outcome, Result


@dataclass(frozen=True, slots=True)
class SqliteSealing:
    """A round inside the transaction that seals it."""

    tallies: dict[int, Tally]
    outcomes: dict[Outcome, int]
    _db: Connection
    _campaign: Campaign
    _number: int

    def end_reports(self) -> None:
        """Count the round for each device that took part in it, and delete its reports."""
        key = (self._campaign.id, self._number)
        self._db.execute(
            """INSERT INTO device SELECT campaign, device, attribute, 1 FROM report
               WHERE campaign = ? AND round = ?
               ON CONFLICT (campaign, device) DO UPDATE SET rounds = rounds + 1""",
            key,
        )
        self._db.execute("DELETE FROM report WHERE campaign = ? AND round = ?", key)

    def write(self, results: Sequence[Result], number: int) -> None:
        """Store results of the round, or under `POOLED`, to be published."""
        campaign = self._campaign
        self._db.executemany(
            "INSERT OR REPLACE INTO result VALUES (?, ?, ?, ?, 0)",
            [(campaign.id, attribute_index(campaign, r), number, r.encode()) for r in results],
        )


class SealedRounds(Counting):
    """Makes rounds final."""

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[SqliteSealing | None]:
        """Close a round for ever when the block ends well; None if it was sealed before."""
        with self._db.transaction():
            sealing = self._begin(campaign, number, at)
            yield sealing
        if sealing is not None:
            self._rounds_with_reports(campaign.id).discard(number)
            self._db.wipe_after_deleting()

    def _begin(self, campaign: Campaign, number: int, at: int) -> SqliteSealing | None:
        key = (campaign.id, number)
        added = self._db.execute(
            "INSERT OR IGNORE INTO round (campaign, number, sealed) VALUES (?, ?, ?)", (*key, at)
        )
        if added.rowcount == 0:
            return None
        return SqliteSealing(self.tallies(*key), self.outcomes(*key), self._db, campaign, number)

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part, at the end of the manifest's retention."""
        some = self._db.execute("SELECT 1 FROM device WHERE campaign = ? LIMIT 1", (campaign,))
        if some.fetchone() is None:
            return False
        with self._db.transaction():
            self._db.execute("DELETE FROM device WHERE campaign = ?", (campaign,))
        self._db.wipe_after_deleting()
        return True

    def wipe_log(self) -> None:
        """Empty the write-ahead log, if deleted reports are left in it."""
        self._db.wipe_log()
