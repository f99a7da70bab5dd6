"""One SQLite connection: transactions that happen as a whole, and a log that is wiped.

Write-ahead log with `synchronous=FULL`: when a transaction has ended, it is on disk (I6).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from collector.errors import StorageFailure
from collector.store.sqlite.schema import show_as_upgraded, upgrade

Connect = Callable[..., sqlite3.Connection]
BUSY_SECONDS: Final = 30.0
LOG_PAGES: Final = 4000  # of 4 KiB: then the log is written back; it must not fill a small disk
LOG_BYTES: Final = LOG_PAGES * 4096
CACHE_KIB: Final = 8192  # reports are appended and not read again: more of them would fill it, too


class Connection:
    """A database file, open."""

    def __init__(self, path: Path, *, read_only: bool, connect: Connect) -> None:
        self.path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._unwiped = not read_only  # the log of a process that was killed may hold reports
        try:
            db = _open_to_read(path, connect) if read_only else _open_to_write(path, connect)
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageFailure(
                f"{path} cannot be used: {reason}. Nothing was changed; check the disk, or choose "
                "another directory with --data-dir"
            ) from None
        self.execute = db.execute
        self.executemany = db.executemany
        self.close = db.close

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside is on disk afterwards, or none of it is."""
        try:
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise StorageFailure(
                f"{self.path} cannot be written: {error}. Nothing of it was acknowledged; reports "
                "wait at the broker and on the devices. Free some space; no restart is needed"
            ) from None

    def wipe_after_deleting(self) -> None:
        """Something was deleted that must not stay in the log."""
        self._unwiped = True
        self.wipe_log()

    def wipe_log(self) -> None:
        """Empty the write-ahead log, if deleted reports are left in it, or if a reader was in the
        way when it should have been written back and it grows.

        A reader in the way is not waited for: call it again later.
        """
        if not self._unwiped and self._log_bytes() <= 2 * LOG_BYTES:
            return
        self.execute("PRAGMA busy_timeout = 0")
        with suppress(sqlite3.OperationalError):
            busy, *_ = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._unwiped = bool(busy)
        self.execute(_BUSY)

    def _log_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except FileNotFoundError:
            return 0


_BUSY: Final = f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}"


def _open_to_read(path: Path, connect: Connect) -> sqlite3.Connection:
    db = connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    db.execute(_BUSY)
    show_as_upgraded(db)
    return db


def _open_to_write(path: Path, connect: Connect) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = connect(path, isolation_level=None, timeout=BUSY_SECONDS)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    upgrade(db)
    db.execute(_BUSY)
    return db
