"""A copy of the database as it is at one moment, also while the service writes, and its check."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from collector.errors import StorageFailure
from collector.store.sqlite.schema import check_known
from protocol_spec.programs.system import open_private


def copy_database(source: Path, target: Path) -> None:
    """Write a copy for its owner alone, synced. It is one snapshot: all pages are read in one
    transaction, which in a database with a write-ahead log holds up nobody."""
    os.close(open_private(target, os.O_RDWR))
    with _clear(target, "copied"), closing(_read_only(source)) as db:
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            db.backup(copy, pages=-1)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, whole by itself
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_database(path: Path) -> None:
    """Raise what is wrong with a copy: damaged, no database of ours, or of a newer version."""
    with _clear(path, "read"), closing(_read_only(path)) as db:
        found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(f"it is damaged ({found})")
        check_known(db)
        db.execute("SELECT count(*) FROM campaign").fetchone()


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


@contextmanager
def _clear(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageFailure(f"{path} cannot be {what}: {error}") from None
    except OSError as error:
        raise StorageFailure(f"{path} cannot be {what}: {error.strerror}") from None
