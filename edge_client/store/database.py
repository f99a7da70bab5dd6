"""The connection, its transactions, and the high-water mark in step with them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from edge_client.errors import StorageFailure
from edge_client.store import highwater
from edge_client.store.highwater import Mark
from edge_client.store.surviving import mark_of, meta
from edge_client.trace import Trace

FILE: Final = "state.db"


class Database:
    """A state directory's database, open. The tables' modules speak to it, and nobody else."""

    def __init__(self, directory: Path, connection: sqlite3.Connection, trace: Trace) -> None:
        self.directory = directory
        self.path = directory / FILE
        self.connection = connection
        self._mark_path = directory / highwater.FILE
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
            highwater.write(self._mark_path, mark or mark_of(self.connection))
        except OSError as error:
            raise StorageFailure(f"{self._mark_path} cannot be written: {error.strerror}") from None
