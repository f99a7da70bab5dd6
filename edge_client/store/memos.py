"""The permanent answers: one memo B' per (campaign, value), drawn once and never again (I2).

In other ways of reporting than the paper's the memo belongs to a value's cell, or is the bodies of
all levels; `Way.randomiser` says which.
"""

from __future__ import annotations

from edge_client.records import Memo
from edge_client.store.database import Database


class Memos:
    """The table `memo`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, campaign: str) -> dict[int, Memo]:
        """The memos drawn so far, by value."""
        rows = self._database.execute(
            "SELECT value, body, reports FROM memo WHERE campaign = ?", (campaign,)
        )
        return {row["value"]: Memo(*row) for row in rows}

    def add(self, campaign: str, value: int, body: bytes, at: int) -> None:
        """A new memo, inside a transaction; a second one for the value is refused by its key."""
        self._database.execute(
            "INSERT INTO memo (campaign, value, body, created) VALUES (?, ?, ?, ?)",
            (campaign, value, body, at),
        )

    def count_report(self, campaign: str, value: int) -> None:
        """One more report was drawn from a memo, inside a transaction."""
        self._database.execute(
            "UPDATE memo SET reports = reports + 1 WHERE campaign = ? AND value = ?",
            (campaign, value),
        )
