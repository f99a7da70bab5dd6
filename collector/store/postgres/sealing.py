"""Sealing a round, and the end of retention.

A round is sealed in two steps. It is ended between the batches of all workers, in a moment: from
then on its reports are late. Then it is made final in one transaction, however long that takes,
while workers count for other rounds. If that fails the round is not ended after all; if the leader
dies meanwhile, the next one seals it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from psycopg import sql

from collector.errors import NotLeading, StorageFailure
from collector.records import FORGOTTEN, Campaign, Candidate, RoundSum, Tally
from collector.store.postgres.connection import Connection
from collector.store.postgres.forgetting import Forgetting
from collector.store.postgres.reading import TAGS, Results, reports_of
from collector.store.rows import sum_row
from collector.store.shared import NOT_LEADING, attribute_index
from protocol_spec import Outcome, Result


@dataclass(frozen=True, slots=True)
class PostgresSealing:
    """A round inside the transaction that seals it."""

    tallies: dict[int, Tally]
    outcomes: dict[Outcome, int]
    _db: Connection
    _campaign: Campaign
    _number: int
    _stored: bool
    _reading: Results

    def end_reports(self, released: Set[int], set_aside: Set[int]) -> None:
        """Count the round for each device that took part in it, and delete its reports."""
        if self._stored:
            reports = reports_of(self._campaign.id, self._number)
            lists = sorted(released), sorted(set_aside)
            self._db.execute(_COUNT_DEVICES.format(reports=reports), (self._campaign.id, *lists))
            self._db.execute(
                _COUNT_FORGOTTEN.format(reports=reports),
                (self._campaign.id, *lists, self._campaign.id, FORGOTTEN),
            )
            self._db.execute(sql.SQL("DROP TABLE {}").format(reports))
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
            "UPDATE tally SET counts = '' WHERE campaign = %s AND round = %s AND attribute = %s",
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
            "DELETE FROM round_sum WHERE campaign = %s AND attribute = %s AND NOT released", key
        )
        self._db.execute(
            """UPDATE device SET rounds = rounds + unreleased, unreleased = 0
               WHERE campaign = %s AND attribute = %s AND unreleased > 0""",
            key,
        )

    def drop_unreleased(self) -> None:
        """Delete what was not released of any attribute."""
        drop_unreleased(self._db, self._campaign.id)

    def _add(self, attribute: int, rounds: RoundSum, *, released: bool) -> None:
        known = self._reading.find_sum(self._campaign.id, attribute, released=released)
        self._db.execute(
            """INSERT INTO round_sum VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
               ON CONFLICT (campaign, attribute, released) DO UPDATE SET
               first = excluded.first, last = excluded.last, rounds = excluded.rounds,
               n = excluded.n, counts = excluded.counts""",
            (self._campaign.id, attribute, released, *sum_row(known, rounds)),
        )

    def _add_released(self, attribute: int, rounds: RoundSum) -> None:
        known = self._reading.released(self._campaign.id, attribute)
        self._db.execute(
            """INSERT INTO released_total VALUES (%s, %s, %s, %s, %s, %s, %s)
               ON CONFLICT (campaign, attribute) DO UPDATE SET
               first = excluded.first, last = excluded.last, rounds = excluded.rounds,
               n = excluded.n, counts = excluded.counts""",
            (self._campaign.id, attribute, *sum_row(known, rounds)),
        )

    def write(self, results: Sequence[Result], number: int) -> None:
        """Store results of the round, or under `POOLED`, to be published."""
        for result in results:
            attribute = attribute_index(self._campaign, result)
            self._db.execute(
                """INSERT INTO result VALUES (%s, %s, %s, %s)
                   ON CONFLICT (campaign, attribute, round)
                   DO UPDATE SET message = excluded.message""",
                (self._campaign.id, attribute, number, result.encode()),
            )
            self._db.execute(
                "INSERT INTO unpublished VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                (self._campaign.id, number, attribute),
            )


_COUNT_DEVICES = sql.SQL(
    """INSERT INTO device (campaign, device, attribute, rounds, unreleased)
       SELECT %s, device, attribute, (attribute = ANY(%s::smallint[]))::integer,
              (attribute = ANY(%s::smallint[]))::integer
       FROM {reports}
       ON CONFLICT (campaign, device) DO UPDATE SET rounds = device.rounds + excluded.rounds,
       unreleased = device.unreleased + excluded.unreleased
       WHERE device.attribute = excluded.attribute"""
)
_TAKE_OUT = sql.SQL(
    """DELETE FROM {reports} r USING device d
       WHERE d.campaign = %s AND d.device = r.device AND d.attribute <> r.attribute
       AND d.attribute <> %s RETURNING r.device, r.attribute, r.place, r.body"""
)
# Whoever was forgotten while the round was being sealed goes on as a number without a name.
_COUNT_FORGOTTEN = sql.SQL(
    """INSERT INTO device (campaign, device, attribute, rounds, unreleased)
       SELECT %s, -1 - floor(random() * 9e18)::bigint, r.attribute,
              (r.attribute = ANY(%s::smallint[]))::integer,
              (r.attribute = ANY(%s::smallint[]))::integer
       FROM {reports} r JOIN device d USING (device)
       WHERE d.campaign = %s AND d.attribute = %s"""
)


def drop_unreleased(db: Connection, campaign: int) -> None:
    """Delete the counts of a campaign that were not released."""
    db.execute("DELETE FROM round_sum WHERE campaign = %s AND NOT released", (campaign,))
    db.execute(
        "UPDATE device SET unreleased = 0 WHERE campaign = %s AND unreleased > 0", (campaign,)
    )


class SealedRounds(Forgetting):
    """Makes rounds final. All of this is the leader's, where there are workers."""

    epoch = 0

    def check_leading(self) -> None:
        """Inside a transaction: fail unless this worker leads, and let nobody lead meanwhile."""
        if self.worker is None:
            row = self._db.row(
                """SELECT 1 FROM lease WHERE until <= extract(epoch FROM clock_timestamp())
                   FOR SHARE"""
            )
        else:
            row = self._db.row(
                "SELECT 1 FROM lease WHERE holder = %s AND epoch = %s FOR SHARE",
                (self._own(), self.epoch),
            )
        if row is None:
            raise NotLeading(NOT_LEADING)

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[PostgresSealing | None]:
        """Close a round for ever when the block ends well; None if it was sealed before."""
        key = (campaign.id, number)
        if not self._end(key):
            yield None
            return
        try:
            with self._db.transaction(whole_tables=True):
                self.check_leading()
                yield self._begin(campaign, number, at)
        except BaseException:
            with suppress(StorageFailure):
                self._resume(key)
            raise
        self._stored.discard(key)

    def _end(self, key: tuple[int, int]) -> bool:
        """No batch counts for it any more; False if it is sealed."""
        with self._db.transaction():
            self.check_leading()
            self.be_alone()
            row = self._db.row(
                """INSERT INTO round (campaign, number, ended) VALUES (%s, %s, true)
                   ON CONFLICT (campaign, number) DO UPDATE SET ended = true
                   WHERE round.sealed IS NULL RETURNING number""",
                key,
            )
        return row is not None

    def _resume(self, key: tuple[int, int]) -> None:
        """It was not sealed after all."""
        with self._db.transaction():
            self.check_leading()
            self._db.execute(
                """UPDATE round SET ended = false
                   WHERE campaign = %s AND number = %s AND sealed IS NULL""",
                key,
            )
            self._db.execute(
                """DELETE FROM round
                   WHERE campaign = %s AND number = %s AND sealed IS NULL AND NOT stored""",
                key,
            )

    def _begin(self, campaign: Campaign, number: int, at: int) -> PostgresSealing | None:
        key = (campaign.id, number)
        row = self._db.row(
            """UPDATE round SET sealed = %s WHERE campaign = %s AND number = %s
               AND sealed IS NULL RETURNING stored""",
            (at, *key),
        )
        if row is None:
            return None
        if row[0]:
            self._take_out_changed(key)
        self._fold(key)
        counted = self.tallies(*key), self.outcomes(*key)
        return PostgresSealing(*counted, self._db, campaign, number, row[0], self)

    def _take_out_changed(self, key: tuple[int, int]) -> None:
        """I11: reports of devices that an earlier round has under another attribute. They were
        counted because two workers had both at the same moment, and neither saw the other's."""
        rows = self._db.rows(_TAKE_OUT.format(reports=reports_of(*key)), (key[0], FORGOTTEN))
        if not rows:
            return
        gone = [
            Candidate(*key, d, a, place // TAGS, place % TAGS, body) for d, a, place, body in rows
        ]
        self.take_row()
        self.add_counts(gone, -1)
        self._add_outcomes(
            {(*key, Outcome.ACCEPTED): -len(gone), (*key, Outcome.ATTRIBUTE_CHANGED): len(gone)}
        )

    def _fold(self, key: tuple[int, int]) -> None:
        """The rows of all workers become one."""
        tallies = self.tallies(*key)
        self._db.execute("DELETE FROM tally WHERE campaign = %s AND round = %s", key)
        for attribute, tally in tallies.items():
            self._db.execute(
                "INSERT INTO tally VALUES (%s, %s, %s, 0, %s, %s)",
                (*key, attribute, tally.n, tally.counts.astype("<i8").tobytes()),
            )
        outcomes = self.outcomes(*key)
        self._db.execute("DELETE FROM outcome WHERE campaign = %s AND round = %s", key)
        for outcome, n in outcomes.items():
            self._db.execute(
                "INSERT INTO outcome VALUES (%s, %s, %s, 0, %s)", (*key, str(outcome), n)
            )

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part, at the end of the manifest's retention."""
        with self._db.transaction(whole_tables=True):
            self.check_leading()
            if (
                self._db.row("SELECT 1 FROM device WHERE campaign = %s LIMIT 1", (campaign,))
                is None
            ):
                return False
            self._db.execute("DELETE FROM device WHERE campaign = %s", (campaign,))
        return True

    def drop_unreleased(self, campaign: int) -> bool:
        """Delete the counts that were not released, when no round can be added to them."""
        with self._db.transaction(whole_tables=True):
            self.check_leading()
            some = self._db.row(
                "SELECT 1 FROM round_sum WHERE campaign = %s AND NOT released LIMIT 1", (campaign,)
            )
            if some is None:
                return False
            drop_unreleased(self._db, campaign)
        return True

    def wipe_log(self) -> None:
        """The server's log is its own; docs/postgresql.md says how long it keeps what it holds."""
