"""Devices that asked to be forgotten: their reports leave, and they are not counted again (A4)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from psycopg import sql

from collector.records import FORGOTTEN, Candidate, Withdrawal
from collector.store import ReceiptKind
from collector.store.postgres.counting import Counting
from collector.store.postgres.reading import TAGS, reports_of
from collector.store.shared import count_requests


class Forgetting(Counting):
    """Takes reports back."""

    def withdraw(
        self, asked: Sequence[tuple[int, int]], *, repeated: int = 0, invalid: int = 0
    ) -> list[Withdrawal]:
        """Forget devices in one transaction, between the batches of all workers."""
        with self._db.transaction():
            self.be_alone()
            self.take_row()
            done = [self._withdraw(campaign, device) for campaign, device in asked]
            gone = [report for each in done for report in each.reports]
            self.add_counts(gone, -1)
            self.feed(ReceiptKind.WITHDRAWN, gone)
            for outcome, n in count_requests(done, repeated, invalid).items():
                self._db.execute(
                    """INSERT INTO request VALUES (%s, %s)
                       ON CONFLICT (name) DO UPDATE SET n = request.n + excluded.n""",
                    (str(outcome), n),
                )
        return done

    def be_alone(self) -> None:
        """Take the rows of all workers, in order: no batch is under way until this ends."""
        self._db.rows("SELECT number FROM worker ORDER BY number FOR UPDATE")

    def _withdraw(self, campaign: int, device: int) -> Withdrawal:
        """The number of rounds goes on without a name, and the name's number without rounds."""
        key = (campaign, device)
        known = self._mark(key)
        if known == FORGOTTEN:
            return Withdrawal(*key, (), repeated=True)
        reports = tuple(
            Candidate(campaign, number, device, attribute, place // TAGS, place % TAGS, body)
            for number in self.rounds_with_reports(campaign)
            for attribute, place, body in self._db.rows(
                sql.SQL("DELETE FROM {} WHERE device = %s RETURNING attribute, place, body").format(
                    reports_of(campaign, number)
                ),
                (device,),
            )
        )
        if known is not None:
            self._db.execute(
                "UPDATE device SET device = %s WHERE campaign = %s AND device = %s",
                (-1 - secrets.randbits(63), *key),
            )
            self._mark(key)
        return Withdrawal(*key, reports, repeated=False)

    def _mark(self, key: tuple[int, int]) -> int | None:
        """Mark a device as forgotten, unless it has a row already: the attribute there. If the row
        is just being made, because a round with it is sealed, this waits for that."""
        added = self._db.row(
            """INSERT INTO device (campaign, device, attribute) VALUES (%s, %s, %s)
               ON CONFLICT DO NOTHING RETURNING attribute""",
            (*key, FORGOTTEN),
        )
        if added is not None:
            return None
        row = self._db.row(
            "SELECT attribute FROM device WHERE campaign = %s AND device = %s FOR UPDATE", key
        )
        return None if row is None else int(row[0])
