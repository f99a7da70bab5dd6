"""Devices that asked to be forgotten: their reports leave, and they are not counted again (A4).

Of a forgotten device its number stays, in a row of `device` without an attribute, until the end of
retention. Counting looks at that row in any case, for the device's attribute.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from collector.records import FORGOTTEN, Candidate, RequestOutcome, Withdrawal
from collector.store.shared import count_requests
from collector.store.sqlite.counting import Counting
from collector.store.sqlite.present import ABSENT, place_of
from collector.store.sqlite.schema import report_id

REQUEST: Final = "request "  # begins the names of counters of requests


class Forgetting(Counting):
    """Takes reports back."""

    def withdraw(
        self, asked: Sequence[tuple[int, int]], *, repeated: int = 0, invalid: int = 0
    ) -> list[Withdrawal]:
        """Forget devices in one transaction; what a device costs are its own rows."""
        with self.changing_reports():
            done = [self._withdraw(campaign, device) for campaign, device in asked]
            self.add_counts([report for each in done for report in each.reports], -1)
            counted = count_requests(done, repeated, invalid)
            self.raise_counters({f"{REQUEST}{outcome}": n for outcome, n in counted.items()})
        if not all(each.repeated for each in done):
            self._db.wipe_after_deleting()
        return done

    def _withdraw(self, campaign: int, device: int) -> Withdrawal:
        """The number of rounds goes on without a name, and the name's number without rounds."""
        key = (campaign, device)
        row = self._db.execute(
            "SELECT attribute FROM device WHERE campaign = ? AND device = ?", key
        ).fetchone()
        if row == (FORGOTTEN,):
            return Withdrawal(*key, (), repeated=True)
        reports = [
            Candidate(*found)
            for number in self.rounds_with_reports(campaign)
            for found in self._take_out(campaign, number, device)
        ]
        self._db.execute(
            "UPDATE device SET device = ? WHERE campaign = ? AND device = ?",
            (-1 - secrets.randbits(63), *key),
        )
        self._db.execute(
            "INSERT INTO device (campaign, device, attribute, rounds) VALUES (?, ?, ?, 0)",
            (*key, FORGOTTEN),
        )
        return Withdrawal(*key, tuple(reports), repeated=False)

    def _take_out(self, campaign: int, number: int, device: int) -> list[tuple[Any, ...]]:
        """Delete a device's report of a round; its row, if there was one."""
        present = self.present(campaign, number)
        (entry,) = present.find(np.array([device])).tolist()
        if entry == ABSENT:
            return []
        present.remove(device)
        return self._db.execute(
            """DELETE FROM report WHERE id = ?
               RETURNING campaign, round, device, attribute, page, tag, body""",
            (report_id(campaign, number, place_of(entry)),),
        ).fetchall()

    def requests(self) -> dict[RequestOutcome, int]:
        """Requests to be forgotten, ever, by what became of them."""
        rows = self._db.execute("SELECT name, n FROM counter WHERE name LIKE ?", (f"{REQUEST}%",))
        return {RequestOutcome(name.removeprefix(REQUEST)): n for name, n in rows}
