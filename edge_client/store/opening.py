"""The database's tables, as an append-only list of steps. A step that has shipped never changes."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Final

from edge_client.errors import StateBusy, StateExposed, StateLost, StateTooNew, StorageFailure
from edge_client.store import highwater
from edge_client.store.highwater import Mark, meta
from protocol_spec.programs.system import (
    create_durably,
    exposed_mode,
    holder,
    make_private_directory,
    sync_directory,
    try_lock,
    write_durably,
)

Step = Callable[[sqlite3.Connection], None]

DATABASE_FILE: Final = "state.db"
APPLICATION_ID: Final = 0x414C4F46  # "ALOF", so that `file` and others can tell


def _first_tables(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID, STRICT")
    db.execute(
        """CREATE TABLE campaign (
            name TEXT PRIMARY KEY,
            manifest BLOB NOT NULL,
            broker TEXT NOT NULL,
            namespace TEXT NOT NULL,
            device TEXT NOT NULL,
            attribute INTEGER NOT NULL,
            status TEXT NOT NULL,
            joined INTEGER NOT NULL,
            last_round INTEGER NOT NULL DEFAULT -1,
            last_value INTEGER,
            boot TEXT NOT NULL DEFAULT '',
            round_opened REAL NOT NULL DEFAULT 0
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE memo (
            campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
            value INTEGER NOT NULL,
            body BLOB NOT NULL,
            created INTEGER NOT NULL,
            reports INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (campaign, value)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE outbox (
            campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
            round INTEGER NOT NULL,
            payload BLOB NOT NULL,
            deadline INTEGER NOT NULL,
            drawn INTEGER NOT NULL,
            fate TEXT NOT NULL DEFAULT 'queued',
            PRIMARY KEY (campaign, round)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute("CREATE INDEX outbox_queued ON outbox (campaign) WHERE fate = 'queued'")
    db.execute(
        """CREATE TABLE ledger (
            line INTEGER PRIMARY KEY,
            at INTEGER NOT NULL,
            campaign TEXT NOT NULL,
            source TEXT NOT NULL,
            epsilon REAL NOT NULL,
            reason TEXT NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE decision (
            line INTEGER PRIMARY KEY,
            at INTEGER NOT NULL,
            campaign TEXT NOT NULL,
            what TEXT NOT NULL
        ) STRICT"""
    )


def _drawn_rounds(db: sqlite3.Connection) -> None:
    """For campaigns that a device answers in some rounds only, without a memo.

    Tables of their own: an agent of the version before may still be running when another process
    takes this step, and reads every column of the tables it knows.
    """
    db.execute(
        """CREATE TABLE drawn_round (
            campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
            round INTEGER NOT NULL,
            PRIMARY KEY (campaign, round)
        ) WITHOUT ROWID, STRICT"""
    )
    db.execute(
        """CREATE TABLE answered (
            campaign TEXT PRIMARY KEY REFERENCES campaign(name) ON DELETE CASCADE,
            answers INTEGER NOT NULL
        ) WITHOUT ROWID, STRICT"""
    )


def _trust(db: sqlite3.Connection) -> None:
    """What was known of a campaign's broker and signer when it was joined.

    Without a row it was joined by an earlier version: credentials were shown to its broker.
    """
    db.execute(
        """CREATE TABLE trust (
            campaign TEXT PRIMARY KEY REFERENCES campaign(name) ON DELETE CASCADE,
            known_broker INTEGER NOT NULL,
            operator BLOB NOT NULL
        ) WITHOUT ROWID, STRICT"""
    )


STEPS: Final[tuple[Step, ...]] = (_first_tables, _drawn_rounds, _trust)


def migrate(db: sqlite3.Connection, steps: Sequence[Step]) -> None:
    """Bring a database to the latest schema: all steps or none, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for number, step in enumerate(steps[version:], start=version + 1):
            step(db)
            db.execute(f"PRAGMA user_version = {number}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


# --- The state directory: private to its owner, and used by one agent at a time.


STATE_FILES: Final = (
    *("state.db", "state.db-wal", "state.db-shm", "highwater", "lock", "heartbeat"),
    "credentials.json",
)


def private_directory(directory: Path) -> None:
    """Make the state directory if need be, and refuse one that others can enter."""
    try:
        make_private_directory(directory)
        owner = directory.stat().st_uid
        if not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is not a directory")
    except OSError as error:
        raise StorageFailure(
            f"the state directory {directory} cannot be used: {error.strerror}. Nothing was drawn "
            "or sent. Choose another with --state-dir, or correct its permissions"
        ) from None
    if owner != os.geteuid():
        raise StateExposed(
            f"{directory} belongs to another user; nothing was drawn or sent. Run as that user, "
            "or choose another with --state-dir"
        )
    _check_mode(directory, "700")


def private_files(directory: Path) -> None:
    """Refuse files of the state that others can read."""
    for path in (directory / name for name in STATE_FILES):
        with suppress(FileNotFoundError):
            _check_mode(path, "600")


def sync_parents(directory: Path) -> None:
    """Make the directory itself survive a power cut: else it would be new, and draw again."""
    for parent in directory.absolute().parents:
        with suppress(OSError):  # a directory that we may enter but not read
            sync_directory(parent)


def _check_mode(path: Path, wanted: str) -> None:
    mode = exposed_mode(path)
    if mode is not None:
        raise StateExposed(
            f"{path} can be read by other users (mode {mode:o}); nothing was drawn "
            f"or sent. Run: chmod {wanted} {path}"
        )


def take_lock(path: Path) -> int:
    """Become the only agent on this directory; the lock ends with the process, however it ends."""
    try:
        descriptor = try_lock(path)
    except OSError as error:
        raise StorageFailure(
            f"{path} cannot be opened: {error.strerror}; nothing was drawn or sent. "
            "Correct its permissions or free some space"
        ) from None
    if descriptor is None:
        raise StateBusy(
            f"another agent (process {holder(path)}) is using {path.parent}; nothing was drawn or "
            "sent. Stop it first, or choose another directory with --state-dir"
        )
    return descriptor


# --- Which databases are opened, and which are refused because the memory in them is not the last.


Connect = Callable[..., sqlite3.Connection]

RECOVER: Final = "allomfree-edge forget --lost"
SMALLEST: Final = 512  # bytes of one SQLite page; SQLite itself would take less for an empty file


def open_database(
    directory: Path,
    *,
    replacing: bool,
    connect: Connect = sqlite3.connect,
    steps: Sequence[Step] = STEPS,
) -> tuple[sqlite3.Connection, Mark | None]:
    """The database and its mark, if they belong together; `replacing` begins an empty one."""
    mark = highwater.read_mark(
        directory / highwater.MARK_FILE
    )  # first: it may be behind, never ahead
    private_files(directory)
    path = directory / DATABASE_FILE
    size = path.stat().st_size if path.exists() else 0
    if path.is_file() and 0 < size < SMALLEST:
        raise lost(path, "is damaged")
    if size == 0:
        if not replacing:
            _require_new(path)
        _create(path, steps)
    db = _connect_or_explain(path, connect, steps)
    try:
        if not replacing:
            _check_mark(path, db, mark)
    except BaseException:
        db.close()
        raise
    return db, mark


def _create(path: Path, steps: Sequence[Step]) -> None:
    """An empty database, whole or not at all; one that another process has just made stays."""
    try:
        if path.exists():  # and is empty: an earlier version made the file first
            write_durably(path, _empty(steps))
        else:
            create_durably(path, _empty(steps))
        sync_parents(path.parent)
    except OSError as error:
        raise StorageFailure(
            f"{path} cannot be made: {error.strerror}; nothing was drawn or sent. "
            "Free some space or correct its permissions, and start again"
        ) from None


def _empty(steps: Sequence[Step]) -> bytes:
    """The bytes of a database that nothing was ever drawn from, with an identity of its own."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(_tables(tuple(steps)))
        _identify(db)
        return db.serialize()


@cache
def _tables(steps: tuple[Step, ...]) -> bytes:
    """The same for every device."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, steps)
        return db.serialize()


def _identify(db: sqlite3.Connection) -> None:
    db.execute("INSERT OR IGNORE INTO meta VALUES ('store', ?)", (os.urandom(8).hex(),))
    db.execute("INSERT OR IGNORE INTO meta VALUES ('sequence', 0)")


def lost(path: Path, what: str) -> StateLost:
    """The refusal, with the one command that helps."""
    return StateLost(
        f"the memory of earlier answers, {path}, {what}. Drawing again would reveal more, "
        "so nothing was drawn or sent. Put the newest copy back, or accept the loss with "
        f"`{RECOVER}`, which books it as spent"
    )


def _require_new(path: Path) -> None:
    """No database is right only where there never was one."""
    what = "is empty" if path.exists() else "is missing"
    for left in (path.with_name(highwater.MARK_FILE), path.with_name(f"{DATABASE_FILE}-wal")):
        if left.exists():
            raise lost(path, what)


def _check_mark(path: Path, db: sqlite3.Connection, mark: Mark | None) -> None:
    store, sequence = meta(db, "store"), meta(db, "sequence")
    if mark is None:
        if sequence > 0:
            raise lost(path, "has lost its high-water mark, so it may be an old copy")
    elif mark.store != store:
        raise lost(path, "is not the one this device used")
    elif mark.sequence > sequence:
        raise lost(path, "is an old copy: the device had come further")


def _connect_or_explain(path: Path, connect: Connect, steps: Sequence[Step]) -> sqlite3.Connection:
    try:
        return _connect(path, connect, steps)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 1) == sqlite3.SQLITE_ERROR:  # not our tables
            raise lost(path, "is damaged") from None
        raise StorageFailure(
            f"{path} cannot be opened: {error}; nothing was drawn or sent. "
            "Free some space or correct its permissions, and start again"
        ) from None
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        raise lost(path, "is damaged") from None


def _connect(path: Path, connect: Connect, steps: Sequence[Step]) -> sqlite3.Connection:
    db = connect(path, isolation_level=None, timeout=5.0)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")
        version = _known_version(path, db, steps)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if version < len(steps):
            migrate(db, steps)
        _identify(db)
    except BaseException:
        db.close()
        raise
    return db


def _known_version(path: Path, db: sqlite3.Connection, steps: Sequence[Step]) -> int:
    """The schema's version, if the database is sound and one of ours."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(steps):
        raise StateTooNew(
            f"{path} was written by a later version (schema {version}, this agent "
            f"knows {len(steps)}); nothing was drawn or sent. Upgrade the agent"
        )
    if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise sqlite3.DatabaseError
    tables = "meta" if version else "sqlite_schema"
    known = db.execute(f"SELECT 1 FROM {tables}").fetchall()  # noqa: S608
    if (version == 0) == bool(known):
        raise sqlite3.DatabaseError  # somebody else's: not a byte of it is changed
    return version
