"""Reports from their draw until they were counted or missed: one payload per round (I3, I5)."""

from __future__ import annotations

from typing import Final

from edge_client.records import Draw, Fate, Queued
from edge_client.store.database import Database

KEPT_FOR_SHOW: Final = 20  # rounds whose reports stay readable for the owner after they left


class Outbox:
    """The table `outbox`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def rows(self, campaign: str, *, queued_only: bool = False) -> list[Queued]:
        """Reports of a campaign, oldest first."""
        only = "AND fate = 'queued'" if queued_only else ""
        rows = self._database.execute(
            f"SELECT * FROM outbox WHERE campaign = ? {only} ORDER BY round",  # noqa: S608
            (campaign,),
        )
        return [Queued(**row) for row in rows]

    def add(self, campaign: str, draw: Draw) -> None:
        """Queue a report, inside a transaction; the key refuses a second one for the round."""
        self._database.execute(
            "INSERT INTO outbox (campaign, round, payload, deadline, drawn) VALUES (?,?,?,?,?)",
            (campaign, draw.round, draw.payload, draw.deadline, draw.at),
        )

    def finish(self, campaign: str, fates: dict[int, Fate]) -> None:
        """Let rows leave the outbox: counted, missed their deadline, or campaign closed."""
        with self._database.transaction():
            self._database.connection.executemany(
                "UPDATE outbox SET fate = ? WHERE campaign = ? AND round = ? AND fate = 'queued'",
                [(fate, campaign, number) for number, fate in fates.items()],
            )

    def withdraw(self, campaign: str) -> None:
        """What has not been counted yet is not sent any more, inside a transaction."""
        self._database.execute(
            "UPDATE outbox SET fate = 'withdrawn' WHERE campaign = ? AND fate = 'queued'",
            (campaign,),
        )

    def prune(self, campaign: str) -> None:
        """Drop old rows that are no longer queued, inside a transaction."""
        self._database.execute(
            """DELETE FROM outbox WHERE campaign = ?1 AND fate != 'queued' AND round <
                   (SELECT last_round FROM campaign WHERE name = ?1) - ?2""",
            (campaign, KEPT_FOR_SHOW),
        )
