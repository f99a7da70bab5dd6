"""The open state directory, and the one transaction that records a draw."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from edge_client.errors import StorageFailure
from edge_client.records import Draw, LedgerLine, Membership
from edge_client.store import schema
from edge_client.store.campaigns import Campaigns
from edge_client.store.database import Database
from edge_client.store.directory import private_directory, take_lock
from edge_client.store.ledger import Ledger
from edge_client.store.memos import Memos
from edge_client.store.opening import Connect, lost, open_database
from edge_client.store.outbox import Outbox
from edge_client.trace import Trace, no_trace
from protocol_spec import Spending

REASONS: Final = {
    "memoized": "memo drawn",
    "once": "answer drawn",
    "hashed": "memo of a group drawn",
    "nested": "memo of all levels drawn",
}


class Store:
    """The state directory, open. With `exclusive`, as the one agent that may draw from it."""

    def __init__(
        self,
        directory: Path,
        *,
        exclusive: bool,
        replacing: bool = False,
        trace: Trace = no_trace,
        connect: Connect = sqlite3.connect,
        steps: Sequence[schema.Step] = schema.STEPS,
    ) -> None:
        self.directory = directory
        self._trace = trace
        self._connect = connect
        self._steps = steps
        self._lock: int | None = None
        private_directory(directory)
        if exclusive:
            self._lock = take_lock(directory / "lock")
        try:
            self._open(replacing)
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and let another agent in."""
        self.database.close()
        self._release()

    @property
    def path(self) -> Path:
        """The database's file."""
        return self.database.path

    @property
    def sequence(self) -> int:
        """How many draws, charges and wipes this store has made durable."""
        return self.database.sequence

    def changed_elsewhere(self) -> int:
        """A number that changes when another process, such as the owner's `pause`, wrote."""
        return self.database.changed_elsewhere()

    def record(self, membership: Membership, draw: Draw) -> None:
        """Make one round's draw durable, with its memo and charge if the value is new.

        When this returns, the bytes may be sent. When it raises, they never existed, or (if only
        the high-water mark could not be written) they are the ones stored for this round.
        """
        name = membership.name
        with self.database.marked_transaction():
            self.campaigns.require_joined(name)
            if draw.value is None:
                self.campaigns.count_answer(membership, draw.round)
                self._charge(membership, membership.manifest.eps_1, draw.at)
            else:
                self._remember(membership, draw.value, draw)
            self.outbox.add(name, draw)
            self.campaigns.advance(name, draw)
            self.outbox.prune(name)

    def _remember(self, membership: Membership, key: int, draw: Draw) -> None:
        """The memo that a report was drawn from, and its charge if it is new."""
        if draw.new_memo is not None:
            self.memos.add(membership.name, key, draw.new_memo, draw.at)
            self._charge(membership, membership.manifest.eps_inf, draw.at)
        self.memos.count_report(membership.name, key)

    def _charge(self, membership: Membership, epsilon: float, at: int) -> None:
        source, reason = membership.attribute.name, REASONS[membership.manifest.reporting]
        self.ledger.add(LedgerLine(at, membership.name, source, epsilon, reason))

    def spent(self, membership: Membership) -> Spending:
        """What a campaign has cost so far, exactly and as booked."""
        way = membership.way
        if way.memos == 0:  # each answer is booked when it is drawn
            told = way.spending([membership.answers])
            return replace(told, charged=told.exact)
        return way.spending(memo.reports for memo in self.memos.of(membership.name).values())

    def forget(self, membership: Membership, at: int) -> None:
        """Wipe a campaign's memory and check that its bytes are gone. The ledger stays."""
        from edge_client.store import forgetting  # noqa: PLC0415 - rarely needed

        name = membership.name
        others = [m for m in self.campaigns.all() if m.name != name]
        memos, reports = self.memos.of(name).values(), self.outbox.rows(name)
        traces = forgetting.traces_of(membership, memos, reports, others)
        forgetting.erase(self.database, self.campaigns, name, at)
        self.database.close()
        left = forgetting.files_with(self.directory, traces)
        self._open(replacing=False)
        if left:
            raise StorageFailure(
                f"forgotten, but traces remain in {', '.join(left)} of {self.directory}; "
                "nothing more will be sent. Delete the directory to be sure; a rejoin is charged"
            )

    def _open(self, replacing: bool) -> None:
        connection, mark = open_database(
            self.directory, replacing=replacing, connect=self._connect, steps=self._steps
        )
        self.database = Database(self.directory, connection, self._trace)
        self.ledger = Ledger(self.database)
        self.memos = Memos(self.database)
        self.outbox = Outbox(self.database)
        self.campaigns = Campaigns(self.database, self.outbox)
        try:
            self._require_readable()
            if mark is None or (self._lock is not None and mark.sequence < self.sequence):
                self.database.write_mark()
        except BaseException:
            self.database.close()
            raise

    def _require_readable(self) -> None:
        """SQLite finds damage to its pages; damage inside of them shows when they are read."""
        try:
            self.ledger.lines()
            for membership in self.campaigns.all():
                self.outbox.rows(membership.name)
                self.spent(membership)
        except (sqlite3.Error, ValueError, TypeError, IndexError):
            raise lost(self.path, "is damaged") from None

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
