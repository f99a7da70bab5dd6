"""One PostgreSQL connection: opened with care, opened again when lost, errors in plain words.

A transaction that ended is durable (I6). One whose end is unknown, because the connection broke,
counts as refused: whoever wrote enlists anew and writes again, and the keys make that harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from collector.errors import StorageFailure
from collector.store.postgres.arrays import ARRAYS
from collector.store.postgres.errors import refused, unusable
from collector.store.postgres.schema import applied, check_version, upgrade
from collector.store_address import StoreAddress

OLDEST: Final = 14
IDLE_SECONDS: Final = 15  # a process that stops inside a transaction holds up others no longer
LOCK_SECONDS: Final = 30

Rows = list[tuple[Any, ...]]
Answer = psycopg.Cursor[tuple[Any, ...]]
Query = LiteralString | sql.Composed

# A batch looks up rows by their keys, whatever the statistics of a fresh table say.
_WRITER: Final = (
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'",
    f"SET lock_timeout = '{LOCK_SECONDS}s'",
    "SET plan_cache_mode = force_generic_plan",
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
)
# What reads a table as a whole is planned as usual.
_WHOLE: Final = ("plan_cache_mode", "enable_seqscan", "enable_hashjoin", "enable_mergejoin")


class KeyTaken(StorageFailure):
    """A row is there already that was to be added."""


class Connection:
    """A database, open; `lost` counts how often the connection broke."""

    def __init__(self, address: StoreAddress, *, read_only: bool) -> None:
        self.address = address
        self.lost = 0
        self._read_only = read_only
        self._db: psycopg.Connection[tuple[Any, ...]] | None = None
        self._open()

    def close(self) -> None:
        """Release the connection."""
        if self._db is not None:
            self._db.close()

    def execute(self, query: Query, values: Sequence[object] = ()) -> Answer:
        """Run one statement; outside of a transaction it is one."""
        with self._explained():
            return self._alive().execute(query, values or None, binary=True)

    def rows(self, query: Query, values: Sequence[object] = ()) -> Rows:
        """All rows of a statement."""
        with self._explained():
            return self._alive().execute(query, values or None, binary=True).fetchall()

    def row(self, query: Query, values: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """The first row of a statement."""
        with self._explained():
            return self._alive().execute(query, values or None, binary=True).fetchone()

    @contextmanager
    def transaction(self, *, whole_tables: bool = False, pipelined: bool = False) -> Iterator[None]:
        """All that is written inside is durable afterwards, or none of it is.

        If it is pipelined, a statement waits for the server only when its answer is read.
        """
        db = self._alive()
        together = db.pipeline() if pipelined else nullcontext()
        with self._explained(), together, db.transaction():
            if whole_tables:
                for name in _WHOLE:
                    self.execute(sql.SQL("SET LOCAL {} TO DEFAULT").format(sql.Identifier(name)))
            yield
            if pipelined:  # whatever failed fails here, before the end is asked for
                db.execute("SELECT 1").fetchone()

    @contextmanager
    def in_one_go(self, meanwhile: Callable[[], None]) -> Iterator[None]:
        """A transaction whose last statements go to the server together with its end.

        While the server works on them, `meanwhile` is called. If one of them fails, the server
        drops those behind it, the end included.
        """
        db = self._alive()
        with self._explained():
            try:
                with db.pipeline():
                    db.execute("BEGIN")
                    yield
                    db.execute("COMMIT")
                    meanwhile()
            except BaseException:
                self._roll_back(db)
                raise

    def _roll_back(self, db: psycopg.Connection[tuple[Any, ...]]) -> None:
        """A connection on which even that fails is of no use."""
        try:
            if not db.closed and db.info.transaction_status != TransactionStatus.IDLE:
                db.execute("ROLLBACK")
        except psycopg.Error:
            db.close()

    def stream(self, query: Query, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """Rows of a large table, in portions, inside a transaction."""
        with self._explained(), self._alive().cursor("portions", binary=True) as cursor:
            cursor.itersize = 10_000
            yield from cursor.execute(query, values)

    def copy(self, query: Query, rows: Iterable[Sequence[object]]) -> None:
        """Many rows at once, inside a transaction."""
        with self._explained(), self._alive().cursor() as cursor, cursor.copy(query) as copying:
            for row in rows:
                copying.write_row(row)

    def _alive(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._db is None or self._db.closed:
            self._open()
        assert self._db is not None  # noqa: S101 - opened above, or it raised
        return self._db

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if self._db is not None and self._db.closed:
                self._db = None
                self.lost += 1
            failure = refused(self.address, error)
            if isinstance(error, psycopg.errors.UniqueViolation):
                raise KeyTaken(str(failure)) from None
            raise failure from None

    def _open(self) -> None:
        try:
            self._db = connect(self.address, read_only=self._read_only)
        except psycopg.Error as error:
            raise unusable(self.address, error) from None


def connect(address: StoreAddress, *, read_only: bool) -> psycopg.Connection[tuple[Any, ...]]:
    """A new connection, checked and with its tables as this program needs them."""
    where = make_conninfo(address.url, **address.options(), application_name="allomfree")
    db = psycopg.connect(where, autocommit=True, prepare_threshold=2)
    try:
        for name, dumper in ARRAYS:
            db.adapters.register_dumper(name, dumper)
        _check(db, address, read_only=read_only)
    except BaseException:
        with suppress(psycopg.Error):
            db.close()
        raise
    return db


def _check(
    db: psycopg.Connection[tuple[Any, ...]], address: StoreAddress, *, read_only: bool
) -> None:
    if db.info.server_version < OLDEST * 10_000:
        raise StorageFailure(
            f"{address} is PostgreSQL {db.info.parameter_status('server_version')}; version "
            f"{OLDEST} or newer is needed. Nothing was changed; update the server, or name another "
            "with --store"
        )
    if read_only:
        _check_tables(db, address)
        db.read_only = True
        return
    if db.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        raise StorageFailure(
            f"{address} is a replica that only reads; nothing was changed. Name the primary server "
            "with --store, or add ?target_session_attrs=read-write and all hosts to the address"
        )
    upgrade(db)
    for setting in _WRITER:
        db.execute(setting)
    if db.execute("SHOW synchronous_commit").fetchone() == ("off",):
        db.execute("SET synchronous_commit = on")


def _check_tables(db: psycopg.Connection[tuple[Any, ...]], address: StoreAddress) -> None:
    version = applied(db)
    if version is None:
        raise StorageFailure(
            f"{address} holds no collector's tables; open a campaign first, or name the right "
            "database with --store"
        )
    check_version(version)
