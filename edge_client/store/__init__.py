"""The device's memory: the one place with SQL.

Claims, each kept by one transaction on a write-ahead log with `synchronous=FULL`:
  I1  a report exists only together with the memo it was drawn from
  I2  one memo per (campaign, value), and its charge is booked with it; an answer without a memo is
      booked with itself, and given only in a round that was drawn for it
  I3  one payload per (campaign, round), and rounds only go forward
  I4  `Store.record` returns only when the report is on the disk: it is sent only after that
  I5  a row leaves the outbox only by `Store.finish` or because the owner left

Losing this memory would mean drawing a second memo for the same value, so a missing, damaged,
replaced or rolled-back database is refused, never recreated.

  opening.py    the schema; which directories and databases are opened, and which are refused
  highwater.py  the mark next to the database: how far it had come
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

from edge_client.errors import CampaignProblem, StorageFailure
from edge_client.records import (
    FORGOTTEN,
    PAIR,
    Draw,
    Fate,
    Invitation,
    LedgerLine,
    Membership,
    Memo,
    Queued,
    Status,
    Trace,
    no_trace,
)
from edge_client.store.highwater import (
    MARK_FILE,
    Mark,
    Participation,
    mark_of,
    meta,
    read_mark,
    write_mark,
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

KEPT_FOR_SHOW: Final = 20  # rounds whose reports stay readable for the owner after they left
LOSS_REASON: Final = "memory lost: all it was charged stays spent"


@lru_cache(maxsize=128)  # more than a device can join
def _manifest(content: bytes) -> Manifest:
    """Read once: what was joined never changes."""
    return Manifest.from_bytes(content)


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
    ) -> None:
        self.directory = directory
        self.path = directory / DATABASE_FILE
        self._trace = trace
        self._connect = connect
        self._lock: int | None = None
        private_directory(directory)
        if exclusive:
            self._lock = take_lock(directory / "lock")
        try:
            self._open(replacing)
        except BaseException:
            self._release()
            raise

    def _open(self, replacing: bool) -> None:
        self._db, mark = open_database(self.directory, replacing=replacing, connect=self._connect)
        try:
            self._require_readable()
            if mark is None or (self._lock is not None and mark.sequence < self.sequence):
                self._write_mark(mark_of(self._db))
        except BaseException:
            self._db.close()
            raise

    def _require_readable(self) -> None:
        """SQLite finds damage to its pages; damage inside of them shows when they are read."""
        try:
            self.ledger()
            for membership in self.memberships():
                self.reports(membership.name)
                self.spent(membership)
        except (sqlite3.Error, ValueError, TypeError, IndexError):
            raise lost(self.path, "is damaged") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- transactions ------------------------------------------------------------------------

    def execute(self, sql: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        """One statement, inside whatever transaction is open."""
        return self._db.execute(sql, tuple(values))

    @property
    def sequence(self) -> int:
        """How many draws, charges and wipes were made durable."""
        return int(meta(self._db, "sequence"))

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
            mark = mark_of(self._db)
            if not mark.fits:
                raise StorageFailure(
                    f"{self.directory} holds too many campaigns; nothing new was drawn or sent. "
                    "Use another --state-dir for the next one"
                )
        self._trace("before the mark")
        self._write_mark(mark)
        self._trace("mark written")

    def _write_mark(self, mark: Mark) -> None:
        path = self.directory / MARK_FILE
        try:
            write_mark(path, mark)
        except OSError as error:
            raise StorageFailure(f"{path} cannot be written: {error.strerror}") from None

    # --- campaigns ---------------------------------------------------------------------------

    def memberships(self) -> list[Membership]:
        """Every campaign this device knows, in the order of joining."""
        found = []
        for row in self.execute("SELECT * FROM campaign ORDER BY joined, name").fetchall():
            fields = {**row, "manifest": _manifest(row["manifest"])}
            if fields["manifest"].mechanisms[0].rules.draws_rounds:
                fields["drawn_rounds"] = self._drawn_rounds(row["name"])
            found.append(Membership(**fields))
        return found

    def _drawn_rounds(self, campaign: str) -> tuple[int, ...]:
        rows = self.execute(
            "SELECT round FROM drawn_round WHERE campaign = ? ORDER BY round", (campaign,)
        )
        return tuple(number for (number,) in rows)

    def join(
        self,
        invitation: Invitation,
        participation: Participation,
        at: int,
        *,
        rounds: Iterable[int] | None = None,
        known_broker: bool = True,
    ) -> None:
        """Remember consent, pseudonym, attribute and the rounds drawn; or take part again.

        What was drawn first is kept, also if another process has just joined. A signature that was
        verified once stays so: it is of the same manifest.
        """
        manifest = invitation.manifest
        name = manifest.campaign
        with self.transaction():
            is_new = not self.execute("SELECT 1 FROM campaign WHERE name = ?", (name,)).fetchone()
            joined = self.execute(
                """INSERT INTO campaign (name, manifest, broker, namespace, device, attribute_index,
                       last_round, answers, status, joined, operator, known_broker)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'joined', ?, ?, ?)
                   ON CONFLICT (name) DO UPDATE SET status = 'joined', broker = excluded.broker,
                       namespace = excluded.namespace, known_broker = excluded.known_broker,
                       operator = iif(length(excluded.operator), excluded.operator, operator)
                   WHERE manifest = excluded.manifest""",
                (
                    *(name, manifest.to_bytes(), str(invitation.broker), invitation.namespace),
                    *(*participation[:4], at, invitation.operator, known_broker),
                ),
            )
            if joined.rowcount != 1:
                raise CampaignProblem(
                    f"{name} is the name of another campaign that was joined at this moment; "
                    "nothing was changed. See allomfree-edge show"
                )
            if is_new and rounds is not None:
                self._db.executemany(
                    "INSERT INTO drawn_round VALUES (?, ?)", [(name, number) for number in rounds]
                )
            self._decide(name, "joined", at)

    def before_loss(self, campaign: str) -> Participation | None:
        """What a campaign had been shown before the memory was lost."""
        found = self.execute("SELECT * FROM before_loss WHERE campaign = ?", (campaign,)).fetchone()
        return None if found is None else Participation(*found[1:])

    def set_status(self, campaign: str, status: Status, at: int, why: str = "") -> None:
        """Pause, resume or leave, and remember it, with the reason if the owner did not decide it.
        Leaving withdraws what has not been counted yet."""
        with self.transaction():
            self.execute("UPDATE campaign SET status = ? WHERE name = ?", (status, campaign))
            for what in filter(None, (status, why)):
                self._decide(campaign, what, at)
            if status == "left":
                left = "UPDATE outbox SET fate = 'withdrawn' WHERE campaign = ? AND fate = 'queued'"
                self.execute(left, (campaign,))

    def set_mqtt(self, broker: str, version: int) -> None:
        """Remember which version a broker speaks: trying the other first costs a connection."""
        with self.transaction():
            self.execute("UPDATE campaign SET mqtt = ? WHERE broker = ?", (version, broker))

    def decisions(self, campaign: str) -> list[tuple[int, str]]:
        """What the owner or the policy decided about a campaign, and when."""
        rows = self.execute(
            "SELECT at, what FROM decision WHERE campaign = ? ORDER BY line", (campaign,)
        )
        return [(at, what) for at, what in rows]

    def _decide(self, campaign: str, what: str, at: int) -> None:
        self.execute(
            "INSERT INTO decision (at, campaign, what) VALUES (?, ?, ?)", (at, campaign, what)
        )

    # --- draws -------------------------------------------------------------------------------

    def record(self, membership: Membership, draw: Draw) -> None:
        """Make one round's draw durable, with its memo and charge if the value is new.

        When this returns, the bytes may be sent. When it raises, they never existed, or (if only
        the high-water mark could not be written) they are the ones stored for this round.
        """
        name, mechanism = membership.name, membership.mechanism
        report, memo = draw.report, draw.memo
        with self.marked_transaction():
            row = self.execute("SELECT status FROM campaign WHERE name = ?", (name,)).fetchone()
            if row["status"] != "joined":  # the owner decided while the value was being read
                raise CampaignProblem(f"{name} was paused or left; nothing was drawn or sent")
            if mechanism.rules.draws_rounds and report.round not in self._drawn_rounds(name):
                raise AssertionError("a round that was not drawn was about to be answered")
            if memo is None:
                self.execute("UPDATE campaign SET answers = answers + 1 WHERE name = ?", (name,))
            else:
                if draw.is_new:  # its key refuses a second one for the value
                    self.execute(
                        "INSERT INTO memo (campaign, value, body, created) VALUES (?, ?, ?, ?)",
                        (name, memo.value, memo.body, report.drawn),
                    )
                self.execute(
                    "UPDATE memo SET reports = reports + 1 WHERE campaign = ? AND value = ?",
                    (name, memo.value),
                )
            if (memo is None or draw.is_new) and not membership.is_trial:
                source, reason = PAIR.join(membership.sources), mechanism.booked_as
                self.book(LedgerLine(report.drawn, name, source, mechanism.charge, reason))
            self._queue(name, draw)

    def _queue(self, name: str, draw: Draw) -> None:
        """Add the report, whose key refuses a second one for the round; go on to that round, never
        back; drop reports that left long ago."""
        report, value = draw.report, None if draw.memo is None else draw.memo.value
        self.execute(
            "INSERT INTO outbox (campaign, round, payload, deadline, drawn) VALUES (?,?,?,?,?)",
            (name, report.round, report.payload, report.deadline, report.drawn),
        )
        moved = self.execute(
            """UPDATE campaign SET last_round = ?, last_value = ?, boot = ?, round_opened = ?
               WHERE name = ? AND last_round < ?""",
            (report.round, value, draw.boot, draw.round_opened, name, report.round),
        )
        if moved.rowcount != 1:
            raise AssertionError("a round was about to be drawn twice")
        self.execute(
            "DELETE FROM outbox WHERE campaign = ? AND fate != 'queued' AND round < ?",
            (name, report.round - KEPT_FOR_SHOW),
        )

    def memos(self, campaign: str) -> dict[int, Memo]:
        """The memos drawn so far, by value; or by what its mechanism memoizes instead."""
        rows = self.execute("SELECT value, body, reports FROM memo WHERE campaign = ?", (campaign,))
        return {row["value"]: Memo(*row) for row in rows}

    def reports(self, campaign: str, *, queued_only: bool = False) -> list[Queued]:
        """The reports of a campaign that are in the outbox or left lately, oldest first."""
        only = "AND fate = 'queued'" if queued_only else ""
        rows = self.execute(
            f"SELECT * FROM outbox WHERE campaign = ? {only} ORDER BY round",  # noqa: S608
            (campaign,),
        )
        return [Queued(**row) for row in rows]

    def finish(self, campaign: str, fates: dict[int, Fate]) -> None:
        """Let rows leave the outbox: counted, missed their deadline, or campaign closed."""
        with self.transaction():
            self._db.executemany(
                "UPDATE outbox SET fate = ? WHERE campaign = ? AND round = ? AND fate = 'queued'",
                [(fate, campaign, number) for number, fate in fates.items()],
            )

    # --- the ledger --------------------------------------------------------------------------

    def ledger(self) -> list[LedgerLine]:
        """Every charge ever made against a source of private values, oldest first."""
        rows = self.execute(
            "SELECT at, campaign, source, epsilon, reason FROM ledger ORDER BY line"
        )
        return [LedgerLine(*row) for row in rows]

    def charged(self, source: str | None = None) -> float:
        """What a source was charged in all campaigns, ever, alone and in pairs, with losses of
        unknown size (`*`); without a source, what all together were charged."""
        lines = self.ledger()
        return sum(
            each.epsilon for each in lines if source is None or {source, "*"} & {*each.sources}
        )

    def book(self, line: LedgerLine) -> None:
        """One more line, inside a transaction. Lines are never removed."""
        self.execute(
            "INSERT INTO ledger (at, campaign, source, epsilon, reason) VALUES (?, ?, ?, ?, ?)",
            (line.at, line.campaign, line.source, line.epsilon, line.reason),
        )

    def spent(self, membership: Membership) -> Spending:
        """What a campaign has cost so far, exactly and as booked; a trial costs nothing."""
        spent = self._drawn(membership)
        return replace(spent, exact=0.0, charged=0.0) if membership.is_trial else spent

    def _drawn(self, membership: Membership) -> Spending:
        mechanism = membership.mechanism
        if mechanism.memos == 0:  # each answer is booked when it is drawn
            spent = mechanism.spending([membership.answers])
            return replace(spent, charged=spent.exact)
        return mechanism.spending(memo.reports for memo in self.memos(membership.name).values())

    # --- forgetting --------------------------------------------------------------------------

    def forget(self, membership: Membership, at: int) -> None:
        """Wipe a campaign's memory and check that its bytes are gone. The ledger stays."""
        name, traces = membership.name, self._traces_of(membership)
        with self.marked_transaction():
            self.execute("DELETE FROM campaign WHERE name = ?", (name,))
            self.execute("DELETE FROM decision WHERE campaign = ?", (name,))
            self.execute("DELETE FROM before_loss WHERE campaign = ?", (name,))
            self._decide(name, FORGOTTEN, at)
        with suppress(sqlite3.OperationalError):  # no space, or a reader: the search will show it
            self.execute("VACUUM")
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with self.marked_transaction():
            pass  # twice, for both slots: the older one still names the device
        self._db.close()  # reading the file of an open database would cancel SQLite's locks on it
        left = [
            path.name
            for path in sorted(self.directory.iterdir())
            if path.is_file() and any(trace in path.read_bytes() for trace in traces)
        ]
        self._open(replacing=False)
        if left:
            raise StorageFailure(
                f"forgotten, but traces remain in {', '.join(left)} of {self.directory}; "
                "nothing more will be sent. Delete the directory to be sure; a rejoin is charged"
            )

    def _traces_of(self, membership: Membership) -> list[bytes]:
        """Byte strings that only this campaign can have left in the files.

        A body of zeros and a name that other campaigns use as well prove nothing.
        """
        name, device = membership.name, membership.device
        traces = [membership.manifest.to_bytes(), *(row.payload for row in self.reports(name))]
        memos = self.memos(name).values()
        traces += [memo.body for memo in memos if len(memo.body) - memo.body.count(0) >= 6]
        shared = any(m.device == device and m.name != name for m in self.memberships())
        return traces if shared or len(device) < 12 else [*traces, device.encode()]


def recover(
    directory: Path, at: int, unknown_charge: float, trace: Trace = no_trace
) -> dict[str, float]:
    """Replace a lost memory by an empty one that stays charged, and return the charges kept.

    They are what the high-water mark or the old database still knew. Without a mark nobody knows
    how much more there was, and `unknown_charge` is booked on every source.

    Claim I14: what the ledger shows is never below what was really revealed, also after a kill at
    any step in here. A kill leaves a memory that is refused like the lost one, and nothing
    forgotten.
    """
    private_directory(directory)
    lock = take_lock(directory / "lock")
    try:
        left = _left_over(directory, unknown_charge)
        trace("left-over read")
        write_mark(directory / MARK_FILE, left)
        trace("left-over marked")
        for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
            (directory / name).unlink(missing_ok=True)
            trace(f"{name} removed")
    finally:
        os.close(lock)
    with Store(directory, exclusive=True, replacing=True, trace=trace) as store:
        trace("empty memory opened")
        with store.marked_transaction():
            for source, epsilon in left.charged.items():
                store.book(LedgerLine(at, "", source, epsilon, LOSS_REASON))
            for name, shown in left.participations.items():
                store.execute("INSERT INTO before_loss VALUES (?, ?, ?, ?, ?, ?)", (name, *shown))
            store.execute("UPDATE meta SET value = ? WHERE key = 'sequence'", (left.sequence,))
        trace("inherited")
    return left.charged


def _left_over(directory: Path, unknown_charge: float) -> Mark:
    """What is still known after a loss, as the mark of no store at all."""
    mark, read = read_mark(directory / MARK_FILE), _still_readable(directory / DATABASE_FILE)
    charged, shown = dict(read.charged), read.participations
    if mark is None:
        charged["*"] = charged.get("*", 0.0) + unknown_charge
        return Mark("", 1, charged, shown)
    if read.store != mark.store:
        charged, shown = {}, {}
    for source, epsilon in mark.charged.items():
        charged[source] = max(epsilon, charged.get(source, 0.0))
    known = mark.participations
    later = {n: p for n, p in shown.items() if n not in known or p.last_round > known[n].last_round}
    return Mark("", mark.sequence + 1, charged, {**known, **later})


def _still_readable(path: Path) -> Mark:
    """What can be read of a database that may be old, damaged or missing."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as db:
            return mark_of(db)
    except (sqlite3.Error, TypeError, ValueError):
        return Mark("", 0)
