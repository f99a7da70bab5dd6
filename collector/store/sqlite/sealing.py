"""Sealing a round, and the end of retention: what is deleted here is wiped from the log, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

from collector.records import Campaign, RoundSum, Tally
from collector.store.rows import sum_row
from collector.store.shared import attribute_index
from collector.store.sqlite.connection import Connection
from collector.store.sqlite.forgetting import Forgetting
from collector.store.sqlite.reading import Reading
from collector.store.sqlite.schema import places_of_round
from protocol_spec import Outcome, Result


@dataclass(frozen=True, slots=True)
class SqliteSealing:
    """A round inside the transaction that seals it."""

    tallies: dict[int, Tally]
    outcomes: dict[Outcome, int]
    _db: Connection
    _campaign: Campaign
    _number: int
    _reading: Reading

    def end_reports(self, released: Set[int], set_aside: Set[int]) -> None:
        """Count the round for each device that took part in it, and delete its reports."""
        places = places_of_round(self._campaign.id, self._number)
        lists = [",".join(map(str, sorted(attributes))) for attributes in (released, set_aside)]
        self._db.execute(
            f"""INSERT INTO device (campaign, device, attribute, rounds, unreleased)
                SELECT campaign, device, attribute,
                       attribute IN ({lists[0]}), attribute IN ({lists[1]})
                FROM report WHERE id BETWEEN ? AND ? ORDER BY device
                ON CONFLICT (campaign, device) DO UPDATE SET
                rounds = rounds + excluded.rounds, unreleased = unreleased + excluded.unreleased
            """,  # noqa: S608 - whole numbers
            places,
        )
        self._db.execute("DELETE FROM report WHERE id BETWEEN ? AND ?", places)
        for attribute in released:
            self._add_released(attribute, self._alone(attribute))

    def set_aside(self, attribute: int) -> None:
        """Add the round's counts to the unreleased ones; of the round itself n stays."""
        self._add(attribute, self._alone(attribute), released=False)
        self.erase(attribute)

    def _alone(self, attribute: int) -> RoundSum:
        return RoundSum(self._number, self._number, 1, self.tallies[attribute])

    def erase(self, attribute: int) -> None:
        """Delete the round's counts; n stays."""
        self._db.execute(
            "UPDATE tally SET counts = x'' WHERE campaign = ? AND round = ? AND attribute = ?",
            (self._campaign.id, self._number, attribute),
        )

    def release(self, attribute: int) -> None:
        """All that was unreleased is released, for devices and counts alike."""
        key = (self._campaign.id, attribute)
        rounds = self._reading.unreleased(*key)
        if rounds is not None:
            self._add(attribute, rounds, released=True)
            self._add_released(attribute, rounds)
        self._db.execute(
            "DELETE FROM round_sum WHERE campaign = ? AND attribute = ? AND NOT released", key
        )
        self._db.execute(
            """UPDATE device SET rounds = rounds + unreleased, unreleased = 0
               WHERE campaign = ? AND attribute = ? AND unreleased > 0""",
            key,
        )

    def drop_unreleased(self) -> None:
        """Delete what was not released of any attribute."""
        drop_unreleased(self._db, self._campaign.id)

    def _add(self, attribute: int, rounds: RoundSum, *, released: bool) -> None:
        known = self._reading.find_sum(self._campaign.id, attribute, released=released)
        key = (self._campaign.id, attribute, released)
        self._db.execute(
            "INSERT OR REPLACE INTO round_sum VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, *sum_row(known, rounds)),
        )

    def _add_released(self, attribute: int, rounds: RoundSum) -> None:
        known = self._reading.released(self._campaign.id, attribute)
        self._db.execute(
            "INSERT OR REPLACE INTO released_total VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._campaign.id, attribute, *sum_row(known, rounds)),
        )

    def write(self, results: Sequence[Result], number: int) -> None:
        """Store results of the round, or under `POOLED`, to be published."""
        campaign = self._campaign
        made = {attribute_index(campaign, result): result.encode() for result in results}
        self._db.executemany(
            "INSERT OR REPLACE INTO result VALUES (?, ?, ?, ?, 0)",
            [(campaign.id, attribute, number, message) for attribute, message in made.items()],
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO unpublished VALUES (?, ?, ?)",
            [(campaign.id, number, attribute) for attribute in made],
        )


def drop_unreleased(db: Connection, campaign: int) -> None:
    """Delete the counts of a campaign that were not released."""
    db.execute("DELETE FROM round_sum WHERE campaign = ? AND NOT released", (campaign,))
    db.execute(
        "UPDATE device SET unreleased = 0 WHERE campaign = ? AND unreleased > 0", (campaign,)
    )


class SealedRounds(Forgetting):
    """Makes rounds final."""

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[SqliteSealing | None]:
        """Close a round for ever when the block ends well; None if it was sealed before."""
        with self.changing_reports():
            sealing = self._begin(campaign, number, at)
            yield sealing
        if sealing is not None:
            self.forget_round(campaign.id, number)
            self._db.wipe_after_deleting()

    def _begin(self, campaign: Campaign, number: int, at: int) -> SqliteSealing | None:
        key = (campaign.id, number)
        added = self._db.execute(
            "INSERT OR IGNORE INTO round (campaign, number, sealed) VALUES (?, ?, ?)", (*key, at)
        )
        if added.rowcount == 0:
            return None
        counted = self.tallies(*key), self.outcomes(*key)
        return SqliteSealing(*counted, self._db, campaign, number, self)

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part, at the end of the manifest's retention."""
        some = self._db.execute("SELECT 1 FROM device WHERE campaign = ? LIMIT 1", (campaign,))
        if some.fetchone() is None:
            return False
        with self._db.transaction():
            self._db.execute("DELETE FROM device WHERE campaign = ?", (campaign,))
        self._db.wipe_after_deleting()
        return True

    def drop_unreleased(self, campaign: int) -> bool:
        """Delete the counts that were not released, when no round can be added to them."""
        some = self._db.execute(
            "SELECT 1 FROM round_sum WHERE campaign = ? AND NOT released LIMIT 1", (campaign,)
        )
        if some.fetchone() is None:
            return False
        with self._db.transaction():
            drop_unreleased(self._db, campaign)
        self._db.wipe_after_deleting()
        return True

    def wipe_log(self) -> None:
        """Empty the write-ahead log, if deleted reports are left in it."""
        self._db.wipe_log()
