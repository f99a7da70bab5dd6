"""The device's memory: the one place with SQL.

Claims, each kept by one transaction on a write-ahead log with `synchronous=FULL`:
  I1  a report exists only together with the memo it was drawn from
  I2  one memo per (campaign, value), and its charge is booked with it
  I3  one payload per (campaign, round), and rounds only go forward
  I5  a row leaves the outbox only by `finish`

Losing this memory would mean drawing a second memo for the same value, so a missing, damaged,
replaced or rolled-back database is refused, never recreated.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from edge_client import highwater, schema
from edge_client.directory import (
    holds,
    open_private,
    private_directory,
    private_files,
    take_lock,
)
from edge_client.errors import CampaignProblem, StateLost, StateTooNew, StorageFailure
from edge_client.highwater import Life, Mark
from edge_client.records import Draw, Fate, LedgerLine, Membership, Memo, Queued, Status
from protocol_spec import Manifest, Spending, spending

KEPT_FOR_SHOW: Final = 20
DATABASE: Final = "state.db"
SMALLEST: Final = 512  # bytes of one SQLite page; SQLite itself would take less for an empty file
RECOVER: Final = "allomfree-edge forget --lost"


class Store:
    """The state directory, open. With `exclusive`, as the one agent that may draw from it."""

    def __init__(self, directory: Path, *, exclusive: bool, replacing: bool = False) -> None:
        self.directory = directory
        self.path = directory / DATABASE
        self._mark_path = directory / "highwater"
        self._lock: int | None = None
        private_directory(directory)
        if exclusive:
            self._lock = take_lock(directory / "lock")
        try:
            self._db = self._open(replacing)
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and let another agent in."""
        self._db.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- campaigns ---------------------------------------------------------------------------

    def memberships(self) -> list[Membership]:
        """Every campaign this device knows, in the order of joining."""
        rows = self._db.execute("SELECT * FROM campaign ORDER BY joined, name").fetchall()
        return [_membership(row) for row in rows]

    def changed_elsewhere(self) -> int:
        """A number that changes when another process, such as the owner's `pause`, wrote."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def join(
        self,
        manifest: Manifest,
        *,
        broker: str,
        namespace: str,
        device: str,
        attribute: int,
        at: int,
        last_round: int = -1,
    ) -> None:
        """Remember consent, pseudonym and attribute; or take part again after `leave`."""
        with self._transaction():
            self._db.execute(
                """INSERT INTO campaign (name, manifest, broker, namespace, device, attribute,
                       status, joined, last_round) VALUES (?, ?, ?, ?, ?, ?, 'joined', ?, ?)
                   ON CONFLICT (name) DO UPDATE SET status = 'joined',
                       broker = excluded.broker, namespace = excluded.namespace""",
                (
                    manifest.campaign,
                    manifest.to_bytes(),
                    broker,
                    namespace,
                    device,
                    attribute,
                    at,
                    last_round,
                ),
            )
            self._decide(manifest.campaign, "joined", at)

    def set_status(self, campaign: str, status: Status, at: int) -> None:
        """Pause, resume or leave. Leaving withdraws what has not been counted yet."""
        with self._transaction():
            self._db.execute("UPDATE campaign SET status = ? WHERE name = ?", (status, campaign))
            self._decide(campaign, status, at)
            if status == "left":
                self._db.execute(
                    "UPDATE outbox SET fate = 'withdrawn' WHERE campaign = ? AND fate = 'queued'",
                    (campaign,),
                )

    def decisions(self, campaign: str) -> list[tuple[int, str]]:
        """What the owner or the policy decided about a campaign, and when."""
        rows = self._db.execute(
            "SELECT at, what FROM decision WHERE campaign = ? ORDER BY line", (campaign,)
        )
        return [(at, what) for at, what in rows]

    def decide(self, campaign: str, what: str, at: int) -> None:
        """Remember a decision that changes nothing else."""
        with self._transaction():
            self._decide(campaign, what, at)

    def _decide(self, campaign: str, what: str, at: int) -> None:
        self._db.execute(
            "INSERT INTO decision (at, campaign, what) VALUES (?, ?, ?)", (at, campaign, what)
        )

    def kept_life(self, campaign: str) -> Life | None:
        """Pseudonym, attribute and last round of a campaign before the memory was lost."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (f"life {campaign}",))
        found = row.fetchone()
        if found is None:
            return None
        return _life(found[0])

    # --- memos, draws, outbox ----------------------------------------------------------------

    def memos(self, campaign: str) -> dict[int, Memo]:
        """The permanent answers drawn so far, by value."""
        rows = self._db.execute(
            "SELECT value, body, reports FROM memo WHERE campaign = ?", (campaign,)
        )
        return {row["value"]: Memo(*row) for row in rows}

    def record(self, membership: Membership, draw: Draw) -> None:
        """Make one round's draw durable, with its memo and charge if the value is new.

        When this returns, the bytes may be sent. When it raises, they never existed, or (if only
        the high-water mark could not be written) they are the ones stored for this round.
        """
        name = membership.name
        with self._marked():
            self._insist_on_joined(name)
            if draw.new_memo is not None:
                self._db.execute(
                    "INSERT INTO memo (campaign, value, body, created) VALUES (?, ?, ?, ?)",
                    (name, draw.value, draw.new_memo, draw.at),
                )
                epsilon = membership.manifest.eps_inf
                self._charge(draw.at, name, membership.attribute.name, epsilon, "memo drawn")
            self._db.execute(
                "UPDATE memo SET reports = reports + 1 WHERE campaign = ? AND value = ?",
                (name, draw.value),
            )
            self._db.execute(
                "INSERT INTO outbox (campaign, round, payload, deadline, drawn) VALUES (?,?,?,?,?)",
                (name, draw.round, draw.payload, draw.deadline, draw.at),
            )
            moved = self._db.execute(
                """UPDATE campaign SET last_round = ?, last_value = ?, boot = ?, round_opened = ?
                   WHERE name = ? AND last_round < ?""",
                (draw.round, draw.value, draw.boot, draw.round_opened, name, draw.round),
            )
            if moved.rowcount != 1:
                raise AssertionError("a round was about to be drawn twice")
            self._prune(name)

    def _insist_on_joined(self, campaign: str) -> None:
        """The owner may have paused or left while the value was being read."""
        rows = self._db.execute("SELECT status FROM campaign WHERE name = ?", (campaign,))
        if rows.fetchone()["status"] != "joined":
            raise CampaignProblem(f"{campaign} was paused or left; nothing was drawn or sent")

    def _prune(self, campaign: str) -> None:
        self._db.execute(
            """DELETE FROM outbox WHERE campaign = ?1 AND fate != 'queued' AND round <
                   (SELECT last_round FROM campaign WHERE name = ?1) - ?2""",
            (campaign, KEPT_FOR_SHOW),
        )

    def outbox(self, campaign: str, *, queued_only: bool = False) -> list[Queued]:
        """Reports of a campaign, oldest first."""
        only = "AND fate = 'queued'" if queued_only else ""
        rows = self._db.execute(
            f"SELECT * FROM outbox WHERE campaign = ? {only} ORDER BY round",  # noqa: S608
            (campaign,),
        )
        return [Queued(**row) for row in rows]

    def finish(self, campaign: str, fates: dict[int, Fate]) -> None:
        """Let rows leave the outbox: counted, missed their deadline, or campaign closed."""
        with self._transaction():
            self._db.executemany(
                "UPDATE outbox SET fate = ? WHERE campaign = ? AND round = ? AND fate = 'queued'",
                [(fate, campaign, number) for number, fate in fates.items()],
            )

    # --- ledger ------------------------------------------------------------------------------

    def ledger(self) -> list[LedgerLine]:
        """Every charge, oldest first. Lines are never removed."""
        rows = self._db.execute(
            "SELECT at, campaign, source, epsilon, reason FROM ledger ORDER BY line"
        )
        return [LedgerLine(*row) for row in rows]

    def charged(self, source: str) -> float:
        """What a source was charged in all campaigns, ever. A loss of unknown size is `*`."""
        return sum(line.epsilon for line in self.ledger() if line.source in (source, "*"))

    def spent(self, membership: Membership) -> Spending:
        """What a campaign has cost so far, exactly and as booked."""
        memos = self.memos(membership.name).values()
        return spending(membership.calibration, (memo.reports for memo in memos))

    def charge(self, at: int, campaign: str, source: str, epsilon: float, reason: str) -> None:
        """Book a charge that no memo of this store explains, such as a lost one."""
        with self._marked():
            self._charge(at, campaign, source, epsilon, reason)

    def inherit(self, left: Mark, at: int) -> None:
        """Take over what a lost memory is known to have spent and shown, all of it or nothing."""
        with self._marked():
            for source, epsilon in left.charged.items():
                self._charge(at, "", source, epsilon, "memory lost: all it was charged stays spent")
            self._db.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [(f"life {name}", " ".join(map(str, life))) for name, life in left.lives.items()],
            )
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'sequence'", (left.sequence,))

    def _charge(self, at: int, campaign: str, source: str, epsilon: float, reason: str) -> None:
        self._db.execute(
            "INSERT INTO ledger (at, campaign, source, epsilon, reason) VALUES (?, ?, ?, ?, ?)",
            (at, campaign, source, epsilon, reason),
        )

    # --- forgetting --------------------------------------------------------------------------

    def forget(self, membership: Membership, at: int) -> None:
        """Wipe a campaign's memory and check that its bytes are gone. The ledger stays."""
        name = membership.name
        traces = self._traces(membership)
        with self._marked():
            self._db.execute("DELETE FROM campaign WHERE name = ?", (name,))
            self._db.execute("DELETE FROM decision WHERE campaign = ?", (name,))
            self._db.execute("DELETE FROM meta WHERE key = ?", (f"life {name}",))
            self._decide(name, "forgotten", at)
        with suppress(sqlite3.OperationalError):  # no space, or a reader: the search will tell
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with self._marked():
            pass  # twice, for both slots: the older one still names the device
        self._db.close()  # to read a file of an open database would cancel SQLite's locks on it
        left = [path.name for path in sorted(self.directory.iterdir()) if holds(path, traces)]
        self._db = self._open(replacing=False)
        if left:
            raise StorageFailure(
                f"forgotten, but traces remain in {', '.join(left)} of {self.directory}; "
                "nothing more will be sent. Delete the directory to be sure; a rejoin is charged"
            )

    def _traces(self, membership: Membership) -> list[bytes]:
        """Byte strings that only this campaign can have left in the files.

        A body of zeros and a name that other campaigns use as well prove nothing.
        """
        name, device = membership.name, membership.device
        traces = [membership.manifest.to_bytes(), *(row.payload for row in self.outbox(name))]
        bodies = (memo.body for memo in self.memos(name).values())
        traces += [body for body in bodies if len(body) - body.count(0) >= 6]
        others = {m.device for m in self.memberships() if m.name != name}
        return traces if device in others or len(device) < 12 else [*traces, device.encode()]

    # --- opening -----------------------------------------------------------------------------

    def _open(self, replacing: bool) -> sqlite3.Connection:
        mark = highwater.read(self._mark_path)  # before the database: it may be behind, not ahead
        private_files(self.directory)
        size = self.path.stat().st_size if self.path.exists() else 0
        if 0 < size < SMALLEST:
            raise self._lost("is damaged")
        if size == 0:
            if not replacing:
                self._insist_on_new()
            os.close(open_private(self.path, os.O_RDWR))
        self._db = self._connect_or_explain()
        try:
            if not replacing:
                self._check_mark(self._db, mark)
            self._insist_on_readable()
            if mark is None or (self._lock is not None and mark.sequence < self.sequence):
                self._write_mark(self._mark())
        except BaseException:
            self._db.close()
            raise
        return self._db

    def _insist_on_readable(self) -> None:
        """SQLite finds damage to its pages; damage inside of them shows when they are read."""
        try:
            self.ledger()
            for membership in self.memberships():
                self.outbox(membership.name)
                self.spent(membership)
        except (sqlite3.Error, ValueError, TypeError, IndexError):
            raise self._lost("is damaged") from None

    def _insist_on_new(self) -> None:
        """No database is right only where there never was one."""
        what = "is empty" if self.path.exists() else "is missing"
        for left in (self._mark_path, self.directory / f"{DATABASE}-wal"):
            if left.exists():
                raise self._lost(what)

    def _connect_or_explain(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 1) == sqlite3.SQLITE_ERROR:  # not our tables
                raise self._lost("is damaged") from None
            raise StorageFailure(
                f"{self.path} cannot be opened: {error}; nothing was drawn or sent. "
                "Free some space or mend its permissions, and start again"
            ) from None
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            raise self._lost("is damaged") from None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, timeout=5.0)
        try:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA secure_delete = ON")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(schema.STEPS):
                raise StateTooNew(
                    f"{self.path} was written by a later version (schema {version}, this agent "
                    f"knows {len(schema.STEPS)}); nothing was drawn or sent. Upgrade the agent"
                )
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError
            tables = "meta" if version else "sqlite_schema"
            known = db.execute(f"SELECT 1 FROM {tables}").fetchall()  # noqa: S608
            if (version == 0) == bool(known):
                raise sqlite3.DatabaseError  # somebody else's: not a byte of it is changed
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            if version < len(schema.STEPS):
                schema.migrate(db)
            _identify(db)
        except BaseException:
            db.close()
            raise
        return db

    def _check_mark(self, db: sqlite3.Connection, mark: Mark | None) -> None:
        store, sequence = _meta(db, "store"), _meta(db, "sequence")
        if mark is None:
            if sequence > 0:
                raise self._lost("has lost its high-water mark, so it may be an old copy")
        elif mark.store != store:
            raise self._lost("is not the one this device used")
        elif mark.sequence > sequence:
            raise self._lost("is an old copy: the device had come further")

    def _lost(self, what: str) -> StateLost:
        return StateLost(
            f"the memory of earlier answers, {self.path}, {what}. Drawing again would reveal more, "
            "so nothing was drawn or sent. Put the newest copy back, or accept the loss with "
            f"`{RECOVER}`, which books it as spent"
        )

    @property
    def sequence(self) -> int:
        """How many draws, charges and wipes this store has made durable."""
        return int(_meta(self._db, "sequence"))

    def _mark(self) -> Mark:
        identity = _meta(self._db, "store")
        return Mark(identity, self.sequence, _charges(self._db), _lives(self._db))

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """A transaction that the high-water mark must know of."""
        with self._transaction():
            yield
            self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'sequence'")
            mark = self._mark()
            if not highwater.fits(mark):
                raise StorageFailure(
                    f"{self.directory} holds too many campaigns; nothing new was drawn or sent. "
                    "Use another --state-dir for the next one"
                )
        self._write_mark(mark)

    def _write_mark(self, mark: Mark) -> None:
        try:
            highwater.write(self._mark_path, mark)
        except OSError as error:
            raise StorageFailure(f"{self._mark_path} cannot be written: {error.strerror}") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise StorageFailure(
                f"{self.path} cannot be written: {error}. Nothing new was drawn or sent; what is "
                "already stored will still be sent. Free some space; no restart is needed"
            ) from None


def recover(directory: Path, at: int, unknown_charge: float) -> dict[str, float]:
    """Replace a lost memory by an empty one that is charged for everything it may have said.

    Returns the charges kept: what the high-water mark or the old database still knew. Without a
    mark nobody knows how much more there was, and `unknown_charge` is booked on every source.
    A kill in between leaves a memory that is refused like the lost one, and nothing forgotten.
    """
    private_directory(directory)
    lock = take_lock(directory / "lock")
    try:
        left = _left_over(directory, unknown_charge)
        highwater.write(directory / "highwater", left)
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
            (directory / name).unlink(missing_ok=True)
    finally:
        os.close(lock)
    with Store(directory, exclusive=True, replacing=True) as store:
        store.inherit(left, at)
    return left.charged


def _left_over(directory: Path, unknown_charge: float) -> Mark:
    """What is still known after a loss, as the mark of no store at all."""
    mark = highwater.read(directory / "highwater")
    store, charged, lives = _still_readable(directory / DATABASE)
    if mark is None:
        charged["*"] = charged.get("*", 0.0) + unknown_charge
        return Mark("", 1, charged, lives)
    if store != mark.store:
        charged, lives = {}, {}
    for source, epsilon in mark.charged.items():
        charged[source] = max(epsilon, charged.get(source, 0.0))
    later = {n: life for n, life in lives.items() if life.last_round > _last(mark.lives.get(n))}
    return Mark("", mark.sequence + 1, charged, {**mark.lives, **later})


def _last(life: Life | None) -> int:
    return -1 if life is None else life.last_round


def _still_readable(path: Path) -> tuple[str, dict[str, float], dict[str, Life]]:
    """Identity, charges and lives of a database that may be old, damaged or not there."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as db:
            return str(_meta(db, "store")), _charges(db), _lives(db)
    except (sqlite3.Error, TypeError):
        return "", {}, {}


def _identify(db: sqlite3.Connection) -> None:
    db.execute("INSERT OR IGNORE INTO meta VALUES ('store', ?)", (os.urandom(8).hex(),))
    db.execute("INSERT OR IGNORE INTO meta VALUES ('sequence', 0)")


def _meta(db: sqlite3.Connection, key: str) -> Any:
    return db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]


def _charges(db: sqlite3.Connection) -> dict[str, float]:
    """What each source was charged, ever."""
    rows = db.execute("SELECT source, sum(epsilon) FROM ledger GROUP BY source")
    return dict(rows.fetchall())


def _lives(db: sqlite3.Connection) -> dict[str, Life]:
    """Every pseudonym and attribute that has been shown, here or before a loss."""
    kept = db.execute("SELECT substr(key, 6), value FROM meta WHERE key LIKE 'life %'")
    lives = {name: _life(text) for name, text in kept}
    rows = db.execute(
        "SELECT name, device, attribute, last_round FROM campaign WHERE last_round >= 0"
    )
    return lives | {name: Life(*life) for name, *life in rows}


def _life(text: str) -> Life:
    device, attribute, last_round = text.split(" ")
    return Life(device, int(attribute), int(last_round))


def _membership(row: sqlite3.Row) -> Membership:
    fields = dict(row)
    fields["manifest"] = Manifest.from_bytes(fields["manifest"])
    fields["attribute_index"] = fields.pop("attribute")
    return Membership(**fields)
