"""The device's memory: the one place with SQL.

Claims, each kept by one transaction on a write-ahead log with `synchronous=FULL`:
  I1  a report exists only together with the memo it was drawn from
  I2  one memo per (campaign, value), and its charge is booked with it; an answer without a memo is
      booked with itself, and given only in a round that was drawn for it
  I3  one payload per (campaign, round), and rounds only go forward
  I4  `Store.record` returns only when the report is on the disk: whoever sends it sends it later
  I5  a row leaves the outbox only by `Outbox.finish` or because the owner left

Losing this memory would mean drawing a second memo for the same value, so a missing, damaged,
replaced or rolled-back database is refused, never recreated.

  store.py       the open state directory; the one transaction that records a draw
  campaigns.py   consent, pseudonym, attribute, drawn rounds, progress; the owner's decisions
  memos.py       the permanent answers
  outbox.py      reports, from their draw until they were counted or missed
  ledger.py      every charge, for ever
  forgetting.py  wiping a campaign, and searching the files for what is left of it
  recovery.py    going on after a loss, charged for everything that may have been said
  opening.py     which databases are opened and which are refused
  database.py    the connection, its transactions, and the high-water mark in step with them
  highwater.py   the mark beside the database: how far it had come
  surviving.py   what the mark carries over a loss, read from the tables
  schema.py      the tables, as append-only steps
  directory.py   the state directory: private, and used by one agent at a time
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

from edge_client.errors import CampaignProblem, StorageFailure
from edge_client.records import (
    FORGOTTEN,
    Draw,
    Fate,
    LedgerLine,
    Membership,
    Memo,
    Queued,
    Status,
    Trace,
    no_trace,
)
from edge_client.store import highwater, opening
from edge_client.store.highwater import (
    Mark,
    Participation,
    drop_participation,
    kept_participation,
    mark_of,
    meta,
)
from edge_client.store.opening import (
    DATABASE_FILE,
    Connect,
    lost,
    open_database,
    private_directory,
    take_lock,
)
from protocol_spec import Manifest, Spending

# --- The connection, its transactions, and the high-water mark in step with them.


class Database:
    """A state directory's database, open. The tables' modules speak to it, and nobody else."""

    def __init__(self, directory: Path, connection: sqlite3.Connection, trace: Trace) -> None:
        self.directory = directory
        self.path = directory / DATABASE_FILE
        self.connection = connection
        self._mark_path = directory / highwater.MARK_FILE
        self._trace = trace

    def close(self) -> None:
        """Close the connection; its files can be read or replaced then."""
        self.connection.close()

    def execute(self, sql: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        """One statement, inside whatever transaction is open."""
        return self.connection.execute(sql, tuple(values))

    @property
    def sequence(self) -> int:
        """How many draws, charges and wipes were made durable."""
        return int(meta(self.connection, "sequence"))

    def changed_elsewhere(self) -> int:
        """A number that changes when another process, such as the owner's `pause`, wrote."""
        return int(self.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and on the disk when it ends without an error."""
        try:
            try:
                self.execute("BEGIN IMMEDIATE")
                self._trace("transaction begun")
                yield
                self._trace("committing")
                self.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise StorageFailure(
                f"{self.path} cannot be written: {error}. Nothing new was drawn or sent; what is "
                "already stored will still be sent. Free some space; no restart is needed"
            ) from None

    @contextmanager
    def marked_transaction(self) -> Iterator[None]:
        """A transaction that the high-water mark must know of."""
        with self.transaction():
            yield
            self.execute("UPDATE meta SET value = value + 1 WHERE key = 'sequence'")
            mark = mark_of(self.connection)
            if not highwater.fits(mark):
                raise StorageFailure(
                    f"{self.directory} holds too many campaigns; nothing new was drawn or sent. "
                    "Use another --state-dir for the next one"
                )
        self._trace("before the mark")
        self.write_mark(mark)
        self._trace("mark written")

    def write_mark(self, mark: Mark | None = None) -> None:
        """Write the mark of the database as it is now."""
        try:
            highwater.write_mark(self._mark_path, mark or mark_of(self.connection))
        except OSError as error:
            raise StorageFailure(f"{self._mark_path} cannot be written: {error.strerror}") from None


# --- The permanent answers: one memo B' per (campaign, value), drawn once and never again (I2).


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


# --- Reports from their draw until they were counted or missed: one payload per round (I3, I5).


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


# --- The campaigns joined: consent, pseudonym, attribute and progress, and the owner's decisions.


@lru_cache(maxsize=128)  # more than a device can join
def _manifest(content: bytes) -> Manifest:
    """Read once: what was joined never changes."""
    return Manifest.from_bytes(content)


class Campaigns:
    """The tables `campaign` and `decision`."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        self._database = database
        self._outbox = outbox

    def all(self) -> list[Membership]:
        """Every campaign this device knows, in the order of joining."""
        rows = self._database.execute(
            """SELECT campaign.*, operator, known_broker FROM campaign
               LEFT JOIN trust ON trust.campaign = name ORDER BY joined, name"""
        )
        return [self._membership(row) for row in rows.fetchall()]

    def join(
        self,
        manifest: Manifest,
        *,
        broker: str,
        namespace: str,
        participation: Participation,
        at: int,
        rounds: Iterable[int] | None = None,
        operator: bytes = b"",
        known_broker: bool = True,
    ) -> None:
        """Remember consent, pseudonym, attribute and the rounds drawn; or take part again."""
        shown, answers = participation[:3], participation.answers
        with self._database.transaction():
            joined = self._database.execute(
                """INSERT INTO campaign (name, manifest, broker, namespace, device, attribute,
                       last_round, status, joined) VALUES (?, ?, ?, ?, ?, ?, ?, 'joined', ?)
                   ON CONFLICT (name) DO UPDATE SET status = 'joined',
                       broker = excluded.broker, namespace = excluded.namespace
                   WHERE manifest = excluded.manifest""",
                (manifest.campaign, manifest.to_bytes(), broker, namespace, *shown, at),
            )
            if joined.rowcount != 1:
                raise CampaignProblem(
                    f"{manifest.campaign} is the name of another campaign that was joined at this "
                    "moment; nothing was changed. See allomfree-edge show"
                )
            self._trust(manifest.campaign, operator, known_broker)
            if rounds is not None:
                self._add_rounds(manifest.campaign, rounds, answers)
            self._decide(manifest.campaign, "joined", at)

    def _trust(self, campaign: str, operator: bytes, known_broker: bool) -> None:
        """A signature that was verified once stays so: it is of the same manifest."""
        self._database.execute(
            """INSERT INTO trust VALUES (?, ?, ?) ON CONFLICT (campaign) DO UPDATE SET
               known_broker = excluded.known_broker,
               operator = iif(length(excluded.operator), excluded.operator, operator)""",
            (campaign, known_broker, operator),
        )

    def known_brokers(self) -> list[str]:
        """The brokers that credentials were for when campaigns were joined there."""
        rows = self._database.execute(
            """SELECT DISTINCT broker FROM campaign LEFT JOIN trust ON campaign = name
               WHERE known_broker IS NOT 0 ORDER BY broker"""
        )
        return [broker for (broker,) in rows.fetchall()]

    def _add_rounds(self, campaign: str, rounds: Iterable[int], answers: int) -> None:
        """For life: another process may have joined meanwhile, and then its draw stands."""
        first = self._database.execute(
            "INSERT OR IGNORE INTO answered VALUES (?, ?)", (campaign, answers)
        )
        if first.rowcount == 1:
            self._database.connection.executemany(
                "INSERT INTO drawn_round (campaign, round) VALUES (?, ?)",
                [(campaign, number) for number in rounds],
            )

    def set_status(self, campaign: str, status: Status, at: int) -> None:
        """Pause, resume or leave. Leaving withdraws what has not been counted yet."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE campaign SET status = ? WHERE name = ?", (status, campaign)
            )
            self._decide(campaign, status, at)
            if status == "left":
                self._outbox.withdraw(campaign)

    def require_joined(self, campaign: str) -> None:
        """The owner may have paused or left while the value was being read."""
        rows = self._database.execute("SELECT status FROM campaign WHERE name = ?", (campaign,))
        if rows.fetchone()["status"] != "joined":
            raise CampaignProblem(f"{campaign} was paused or left; nothing was drawn or sent")

    def advance(self, campaign: str, draw: Draw) -> None:
        """Move on to the round that is being drawn: never back, and never twice the same."""
        moved = self._database.execute(
            """UPDATE campaign SET last_round = ?, last_value = ?, boot = ?, round_opened = ?
               WHERE name = ? AND last_round < ?""",
            (draw.round, draw.value, draw.boot, draw.round_opened, campaign, draw.round),
        )
        if moved.rowcount != 1:
            raise AssertionError("a round was about to be drawn twice")

    def count_answer(self, membership: Membership, number: int) -> None:
        """One more answer without a memo, in a round drawn for it, inside a transaction."""
        if number not in self._drawn_rounds(membership.name):
            raise AssertionError("a round that was not drawn was about to be answered")
        self._database.execute(
            "UPDATE answered SET answers = answers + 1 WHERE campaign = ?", (membership.name,)
        )

    def before_loss(self, campaign: str) -> Participation | None:
        """What a campaign had been shown before the memory was lost."""
        return kept_participation(self._database.connection, campaign)

    def decisions(self, campaign: str) -> list[tuple[int, str]]:
        """What the owner or the policy decided about a campaign, and when."""
        rows = self._database.execute(
            "SELECT at, what FROM decision WHERE campaign = ? ORDER BY line", (campaign,)
        )
        return [(at, what) for at, what in rows]

    def decide(self, campaign: str, what: str, at: int) -> None:
        """Remember a decision that changes nothing else."""
        with self._database.transaction():
            self._decide(campaign, what, at)

    def erase(self, campaign: str, at: int) -> None:
        """Remove a campaign and all that belongs to it, inside a transaction."""
        self._database.execute("DELETE FROM campaign WHERE name = ?", (campaign,))
        self._database.execute("DELETE FROM decision WHERE campaign = ?", (campaign,))
        self._decide(campaign, FORGOTTEN, at)

    def _decide(self, campaign: str, what: str, at: int) -> None:
        self._database.execute(
            "INSERT INTO decision (at, campaign, what) VALUES (?, ?, ?)", (at, campaign, what)
        )

    def _membership(self, row: sqlite3.Row) -> Membership:
        fields = dict(row)
        fields["manifest"] = _manifest(fields["manifest"])
        fields["attribute_index"] = fields.pop("attribute")
        if fields["operator"] is None:  # joined by an earlier version, which left no trust
            del fields["operator"], fields["known_broker"]
        if fields["manifest"].reporting == "once":
            fields["drawn_rounds"] = self._drawn_rounds(row["name"])
            fields["answers"] = self._answers(row["name"])
        return Membership(**fields)

    def _drawn_rounds(self, campaign: str) -> tuple[int, ...]:
        rows = self._database.execute(
            "SELECT round FROM drawn_round WHERE campaign = ? ORDER BY round", (campaign,)
        )
        return tuple(number for (number,) in rows)

    def _answers(self, campaign: str) -> int:
        rows = self._database.execute(
            "SELECT answers FROM answered WHERE campaign = ?", (campaign,)
        )
        return int(rows.fetchone()[0])


# --- The ledger: every charge against a source of private values. Lines are never removed.


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


# --- The open state directory, and the one transaction that records a draw.


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
        steps: Sequence[opening.Step] = opening.STEPS,
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
        name = membership.name
        others = [m for m in self.campaigns.all() if m.name != name]
        memos, reports = self.memos.of(name).values(), self.outbox.rows(name)
        traces = traces_of(membership, memos, reports, others)
        erase_campaign(self.database, self.campaigns, name, at)
        self.database.close()
        left = files_with(self.directory, traces)
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


# --- wiping a campaign ---


def erase_campaign(database: Database, campaigns: Campaigns, campaign: str, at: int) -> None:
    """Remove a campaign's rows, and their bytes from the database, its log and the mark."""
    with database.marked_transaction():
        campaigns.erase(campaign, at)
        drop_participation(database.connection, campaign)
    with suppress(sqlite3.OperationalError):  # no space, or a reader: the search will tell
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with database.marked_transaction():
        pass  # twice, for both slots: the older one still names the device


def traces_of(
    membership: Membership,
    memos: Iterable[Memo],
    reports: Iterable[Queued],
    others: Iterable[Membership],
) -> list[bytes]:
    """Byte strings that only this campaign can have left in the files.

    A body of zeros and a name that other campaigns use as well prove nothing.
    """
    traces = [membership.manifest.to_bytes(), *(row.payload for row in reports)]
    traces += [m.body for m in memos if len(m.body) - m.body.count(0) >= 6]
    device = membership.device
    shared = any(other.device == device for other in others)
    return traces if shared or len(device) < 12 else [*traces, device.encode()]


def files_with(directory: Path, traces: list[bytes]) -> list[str]:
    """The files of a directory that contain any of these byte strings.

    The database must be closed: to read a file of an open one would cancel SQLite's locks on it.
    """
    return [path.name for path in sorted(directory.iterdir()) if _holds(path, traces)]


def _holds(path: Path, traces: list[bytes]) -> bool:
    content = path.read_bytes() if path.is_file() else b""
    return any(trace in content for trace in traces)
