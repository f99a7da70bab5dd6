"""The collector's SQLite file: its tables, transactions, a log that is wiped, and copies of it.

Write-ahead log with `synchronous=FULL`: when a transaction has ended, it is on disk (I6). Times are
Unix seconds. Other tools may read the file: `result`, `tally` and `outcome` are meant for it, see
docs/results.md.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from collector.errors import StorageFailure
from collector.store.common import INDEX, TABLES, WORKER_TABLES, Row, Table, condition
from protocol_spec.programs.system import open_private

# sqlite-utils loads pandas wherever it is installed, to accept its tables: 0.4 seconds at every
# start and 66 MB of memory for nothing. `None` is how Python marks a module as not installed.
_hidden = "pandas" not in sys.modules
if _hidden:
    sys.modules["pandas"] = None  # type: ignore[assignment]
try:
    from sqlite_utils import Database
finally:
    if _hidden:
        del sys.modules["pandas"]

Connect = Callable[..., sqlite3.Connection]
BUSY_SECONDS: Final = 30.0
PAGE: Final = 4096
LOG_BYTES: Final = 4000 * PAGE  # then the log is written back to the file, ...
LOG_SHARE: Final = 4  # ... or when it takes this part of the space left: the file has to grow, too
LEAST_LOG_BYTES: Final = 8 * PAGE
CACHE_KIB: Final = 8192  # reports are appended and not read again: a larger cache holds only them
APPLICATION_ID: Final = 0x616C_6672  # "alfr"; files of earlier development have another or none
VERSION: Final = 1
_BUSY: Final = f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}"

_TYPES: Final = {
    "integer": "INTEGER", "bigint": "INTEGER", "smallint": "INTEGER", "boolean": "INTEGER",
    "bytea": "BLOB", "''": "x''", "double precision": "REAL", "CREATE TABLE": "CREATE TEMP TABLE",
    "bigserial PRIMARY KEY": "INTEGER PRIMARY KEY AUTOINCREMENT",
}  # fmt: skip


def _statement(name: str, table: Table) -> str:
    """A table of the hot path needs no rowid; sqlite-utils, which has the others, needs one."""
    made = _translated(table.ddl(name, shared=False)).replace("TEMP ", "")
    return f"{made} {'WITHOUT ROWID, STRICT' if table.hot else 'STRICT'};\n"


def _translated(ddl: str) -> str:
    words = "|".join(rf"\b{word}\b" if word[0].isalpha() else word for word in _TYPES)
    return re.sub(words, lambda found: _TYPES[found[0]], ddl)


# Reports of open rounds, in the order in which they came; they live until their round is sealed.
# The key is campaign, round and place in one number, see `report_id`. That a device is counted once
# is held by `DeviceIndex`.
SCHEMA: Final = f"""
{"".join(_statement(*each) for each in TABLES.items())}
{INDEX};
CREATE TABLE report (
    campaign INTEGER GENERATED ALWAYS AS (id >> 48) VIRTUAL,
    round INTEGER GENERATED ALWAYS AS ((id >> 32) & 65535) VIRTUAL,
    device INTEGER NOT NULL, attribute INTEGER NOT NULL,
    page INTEGER NOT NULL, tag INTEGER NOT NULL, body BLOB NOT NULL,
    id INTEGER PRIMARY KEY
) STRICT;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""
IN_MEMORY: Final = f"PRAGMA temp_store = MEMORY; {_translated(WORKER_TABLES)}"


def report_id(campaign: int, number: int, place: int) -> int:
    """The key of a report: reports of one round are next to each other, in order of arrival."""
    return campaign << 48 | number << 32 | place


def ids_of_round(campaign: int, number: int) -> tuple[int, int]:
    """The smallest and the largest key that a report of a round can have."""
    return report_id(campaign, number, 0), report_id(campaign, number, (1 << 32) - 1)


class SqliteDatabase:
    """A database file, open. Ordinary tables are sqlite-utils'; inside a transaction of ours it
    uses savepoints, so that `transaction` alone decides what is committed."""

    def __init__(
        self, path: Path, *, read_only: bool, connect: Connect, now: Callable[[], float]
    ) -> None:
        self.path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._unwiped = not read_only  # the log of a process that was killed may hold reports
        step = "move it away" if path.is_dir() else "check the disk"
        other = f". Nothing was changed; {step}, or choose another directory with --data-dir"
        with _explained(path, "used", other):
            db = _open_to_read(path, connect) if read_only else _open_to_write(path, connect)
        db.create_function("now", 0, now)
        self.lost = 0
        self._log_bytes = 0  # not bounded yet
        self.execute = db.execute
        self.executemany = db.executemany
        self.close = db.close
        self._tables = Database(db, recursive_triggers=False, execute_plugins=False)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside is on disk afterwards, or none of it is."""
        try:
            self._bound_log()
            with _all_or_nothing(self.execute):
                yield
        except sqlite3.OperationalError as error:
            raise StorageFailure(
                f"{self.path} cannot be written: {error}. Nothing of it was acknowledged; reports "
                "wait at the broker and on the devices. Free some space; no restart is needed"
            ) from None

    # --- ordinary tables -------------------------------------------------------------------------

    def rows(
        self, table: str, where: Mapping[str, object] | None = None, *, limit: int | None = None
    ) -> Iterator[Row]:
        of, (matching, values) = TABLES[table], condition(where or {})
        return self._tables.table(table).rows_where(
            matching, values, ", ".join(of.key), ", ".join(of.columns), limit
        )

    def add(self, table: str, row: Row) -> None:
        self._tables.table(table).insert(row, ignore=True)

    def put(self, table: str, row: Row) -> None:
        self._tables.table(table).insert(row, replace=True)

    def update(self, table: str, key: Mapping[str, object], values: Mapping[str, object]) -> None:
        self._tables.table(table).update([key[c] for c in TABLES[table].key], dict(values))

    def delete(self, table: str, where: Mapping[str, object]) -> None:
        self._tables.table(table).delete_where(*condition(where))

    def query(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return self.execute(sql, values).fetchall()

    def stream(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        yield from self.execute(sql, values)

    # --- the log ---------------------------------------------------------------------------------

    def _bound_log(self) -> None:
        """Keep the write-ahead log to a part of the space that is left, so that it can always be
        written back: on a full disk the file cannot grow, and the log would stay."""
        disk, size = os.statvfs(self.path.parent), self._log_size()
        left = disk.f_bavail * disk.f_frsize + size
        most = max(LEAST_LOG_BYTES, min(LOG_BYTES, left // LOG_SHARE))
        if most != self._log_bytes:
            self._log_bytes = most
            self.execute(f"PRAGMA wal_autocheckpoint = {most // PAGE}")
            self.execute(f"PRAGMA journal_size_limit = {most}")
        if size > most and most < LOG_BYTES:
            self.wipe_log(deleted=True)

    def _log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def wipe_log(self, *, deleted: bool) -> None:
        """Empty the write-ahead log if deleted reports are left in it, or if it grows because a
        reader kept it from being written back.

        This does not wait for readers: call it again later.
        """
        self._unwiped = self._unwiped or deleted
        grown = self._log_size() > 2 * LOG_BYTES
        if not self._unwiped and not grown:
            return
        self.execute("PRAGMA busy_timeout = 0")
        with suppress(sqlite3.OperationalError):
            busy, *_ = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._unwiped = bool(busy)
        self.execute(_BUSY)


# --- opening -------------------------------------------------------------------------------------


@contextmanager
def _explained(path: Path, what: str, step: str = "") -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        if path.is_dir():
            reason = "it is a directory, and must be a file"
        raise StorageFailure(f"{path} cannot be {what}: {reason}{step}") from None


@contextmanager
def _all_or_nothing(execute: Callable[[str], object]) -> Iterator[None]:
    execute("BEGIN IMMEDIATE")
    try:
        yield
        execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            execute("ROLLBACK")
        raise


def _open_to_read(path: Path, connect: Connect = sqlite3.connect) -> sqlite3.Connection:
    db = connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    db.executescript(IN_MEMORY)
    db.execute(_BUSY)
    check_schema(db)
    return db


def _open_to_write(path: Path, connect: Connect) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = connect(path, isolation_level=None, timeout=BUSY_SECONDS)
    db.executescript(IN_MEMORY)
    is_new = _is_empty(db)
    if not is_new:
        check_schema(db)  # before anything is changed
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    if is_new:
        with _all_or_nothing(db.execute):
            if _is_empty(db):  # another process may have made the tables meanwhile
                Database(db, recursive_triggers=False, execute_plugins=False).executescript(SCHEMA)
    db.execute(_BUSY)
    return db


def _is_empty(db: sqlite3.Connection) -> bool:
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(tables == 0)


def check_schema(db: sqlite3.Connection) -> None:
    """Raise unless this program's tables are in the file."""
    if _is_empty(db):
        raise sqlite3.DatabaseError("it is empty")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise sqlite3.DatabaseError(
            "it was made by an earlier version of this program, or by another program, and cannot "
            "be read by this one"
        )
    if version > VERSION:
        raise sqlite3.DatabaseError("a newer version of this program made it")


# --- copies --------------------------------------------------------------------------------------


def copy_database(source: Path, target: Path) -> None:
    """Write a copy for its owner alone, synced. It is one snapshot: all pages are read in one
    transaction, which in a database with a write-ahead log blocks nobody."""
    os.close(open_private(target, os.O_RDWR))
    with _explained(target, "copied"), closing(_open_to_read(source)) as db:
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            db.backup(copy, pages=-1)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, whole by itself
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_database(path: Path) -> None:
    """Raise what is wrong with a copy: damaged, not one of ours, or of a newer version."""
    with _explained(path, "read"), closing(_open_to_read(path)) as db:
        found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(f"it is damaged ({found})")
