"""Which databases are opened, and which are refused because the memory in them is not the last.

Nothing is changed in a file that is refused: it may be somebody else's, or be repaired by hand.

Claim F7: a first start that a power cut ends is no loss. A database gets its name when it is whole
and on the disk, so that one that is damaged or missing beside its mark has really been used.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final

from edge_client.errors import StateLost, StateTooNew, StorageFailure
from edge_client.store import highwater, schema
from edge_client.store.database import FILE
from edge_client.store.directory import private_files, sync_parents
from edge_client.store.highwater import Mark
from edge_client.store.surviving import meta
from protocol_spec.programs.private_files import create_durably, write_durably

Connect = Callable[..., sqlite3.Connection]

RECOVER: Final = "allomfree-edge forget --lost"
SMALLEST: Final = 512  # bytes of one SQLite page; SQLite itself would take less for an empty file


def open_database(
    directory: Path,
    *,
    replacing: bool,
    connect: Connect = sqlite3.connect,
    steps: Sequence[schema.Step] = schema.STEPS,
) -> tuple[sqlite3.Connection, Mark | None]:
    """The database and its mark, if they belong together; `replacing` begins an empty one."""
    mark = highwater.read(directory / highwater.FILE)  # first: it may be behind, never ahead
    private_files(directory)
    path = directory / FILE
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


def _create(path: Path, steps: Sequence[schema.Step]) -> None:
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


def _empty(steps: Sequence[schema.Step]) -> bytes:
    """The bytes of a database that nothing was ever drawn from, with an identity of its own."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(_tables(tuple(steps)))
        _identify(db)
        return db.serialize()


@cache
def _tables(steps: tuple[schema.Step, ...]) -> bytes:
    """The same for every device."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        schema.migrate(db, steps)
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
    for left in (path.with_name(highwater.FILE), path.with_name(f"{FILE}-wal")):
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


def _connect_or_explain(
    path: Path, connect: Connect, steps: Sequence[schema.Step]
) -> sqlite3.Connection:
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


def _connect(path: Path, connect: Connect, steps: Sequence[schema.Step]) -> sqlite3.Connection:
    db = connect(path, isolation_level=None, timeout=5.0)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")
        version = _known_version(path, db, steps)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if version < len(steps):
            schema.migrate(db, steps)
        _identify(db)
    except BaseException:
        db.close()
        raise
    return db


def _known_version(path: Path, db: sqlite3.Connection, steps: Sequence[schema.Step]) -> int:
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
