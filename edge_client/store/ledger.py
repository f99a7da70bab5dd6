"""The ledger: every charge against a source of private values. Lines are never removed."""

from __future__ import annotations

from edge_client.records import LedgerLine
from edge_client.store.database import Database


class Ledger:
    """The table `ledger`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lines(self) -> list[LedgerLine]:
        """Every charge, oldest first."""
        rows = self._database.execute(
            "SELECT at, campaign, source, epsilon, reason FROM ledger ORDER BY line"
        )
        return [LedgerLine(*row) for row in rows]

    def charged(self, source: str) -> float:
        """What a source was charged in all campaigns, ever. A loss of unknown size is `*`."""
        return sum(line.epsilon for line in self.lines() if line.source in (source, "*"))

    def charged_in_all(self) -> float:
        """What all sources together were charged, ever."""
        return sum(line.epsilon for line in self.lines())

    def charge(self, line: LedgerLine) -> None:
        """Book a charge that no memo of this store explains, such as a lost one."""
        with self._database.marked_transaction():
            self.add(line)

    def add(self, line: LedgerLine) -> None:
        """One more line, inside a transaction."""
        self._database.execute(
            "INSERT INTO ledger (at, campaign, source, epsilon, reason) VALUES (?, ?, ?, ?, ?)",
            (line.at, line.campaign, line.source, line.epsilon, line.reason),
        )
