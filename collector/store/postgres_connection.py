"""One PostgreSQL connection: its tables, transactions, and errors in plain words.

A transaction that ended is durable (I6). One whose end is unknown, because the connection broke,
counts as refused: the worker enlists again and writes again, and the keys make that harmless.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, LiteralString

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.conninfo import make_conninfo
from psycopg.pq import Format, TransactionStatus

from collector.errors import StorageFailure
from collector.settings import StoreAddress
from collector.store.common import (
    INDEX,
    TABLES,
    WORKER_TABLES,
    Row,
    condition,
    insertion,
    replacement,
)
from protocol_spec.programs.output import shown

OLDEST: Final = 14
IDLE_SECONDS: Final = 15  # a process that stops inside a transaction holds up others no longer
LOCK_SECONDS: Final = 30

Answer = psycopg.Cursor[tuple[Any, ...]]
Query = LiteralString | bytes | sql.Composed

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


# --- tables --------------------------------------------------------------------------------------

VERSION: Final = 1

# Nothing here is special: no extension, no advisory lock, no temporary table, no trigger.
#
# A round is `ended` when no batch counts for it any more, `sealed` when it is final, and `stored`
# while it has a table of its own, report_<campaign>_<number>, until it is sealed.
SCHEMA: Final = f"""
    {"; ".join(table.ddl(name, shared=True) for name, table in TABLES.items())};
    {INDEX};
    CREATE TABLE allomfree (version integer NOT NULL, changes bigint NOT NULL);
    INSERT INTO allomfree VALUES ({VERSION}, 0);
    ALTER TABLE round ADD COLUMN stored boolean NOT NULL DEFAULT false,
                      ADD COLUMN ended boolean NOT NULL DEFAULT false;
    CREATE INDEX round_not_sealed ON round (campaign) WHERE sealed IS NULL;
    ALTER TABLE device SET (fillfactor = 80);
    {WORKER_TABLES}
    ALTER TABLE worker SET (fillfactor = 50)
"""  # noqa: S608 - names of ours


def make_tables(db: psycopg.Connection[Any]) -> None:
    """Make the tables in an empty schema; one process at a time."""
    for attempt in range(3):
        try:
            with db.transaction():
                if not has_tables(db):
                    db.execute(SCHEMA.encode())
                return
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
            if attempt == 2:  # not another process that began at the same moment
                raise


def has_tables(db: psycopg.Connection[Any]) -> bool:
    """Whether this program's tables are there; raises if those of another version are."""
    ours, earlier = db.execute(
        "SELECT to_regclass('allomfree'), to_regclass('allomfree_store')"
    ).fetchone() or (None, None)
    if earlier is not None:
        raise StorageFailure(
            "the tables were made by an earlier version of this program, and cannot be read by "
            "this one. Nothing was changed; name an empty database with --store"
        )
    if ours is None:
        return False
    ((version,),) = db.execute("SELECT version FROM allomfree").fetchall()
    if version > VERSION:
        raise StorageFailure(
            f"a newer version of this program made the tables (version {version}, this program "
            f"knows {VERSION}). Nothing was changed; update allomfree on this machine"
        )
    return True


# --- the connection ------------------------------------------------------------------------------


class KeyTaken(StorageFailure):
    """A row with the same key is there."""


class Connection:
    """A database, open; `lost` counts how often the connection broke."""

    def __init__(self, address: StoreAddress, *, read_only: bool) -> None:
        self.address = address
        self.lost = 0
        self._read_only = read_only
        self._db: psycopg.Connection[tuple[Any, ...]] | None = None
        self._open()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def execute(self, query: Query, values: Sequence[object] = ()) -> Answer:
        """Run one statement; outside of a transaction it is one."""
        with self._explained():
            return self._alive().execute(query, values or None, binary=True)

    def fetch(self, query: Query, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        with self._explained():
            return self._alive().execute(query, values or None, binary=True).fetchall()

    def fetch_one(self, query: Query, values: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """The first row of a statement."""
        with self._explained():
            return self._alive().execute(query, values or None, binary=True).fetchone()

    # --- ordinary tables -------------------------------------------------------------------------

    def rows(
        self, table: str, where: Mapping[str, object] | None = None, *, limit: int | None = None
    ) -> Iterator[Row]:
        of, (matching, values) = TABLES[table], condition(where or {})
        most = "" if limit is None else f"LIMIT {limit:d}"
        rows = self.query(
            f"""SELECT {", ".join(of.columns)} FROM {table} WHERE {matching}
                ORDER BY {", ".join(of.key)} {most}""",  # noqa: S608 - names of ours
            values,
        )
        return (dict(zip(of.columns, row)) for row in rows)

    def add(self, table: str, row: Row) -> None:
        self.query(*insertion(table, row, "ON CONFLICT DO NOTHING"))

    def put(self, table: str, row: Row) -> None:
        key = TABLES[table].key
        values = {column: value for column, value in row.items() if column not in key}
        self.query(*replacement(table, {column: row[column] for column in key}, values))

    def update(self, table: str, key: Mapping[str, object], values: Mapping[str, object]) -> None:
        matching, found = condition(key)
        changed = ", ".join(f"{column} = ?" for column in values)
        self.query(
            f"UPDATE {table} SET {changed} WHERE {matching}",  # noqa: S608 - names of ours
            (*values.values(), *found),
        )

    def delete(self, table: str, where: Mapping[str, object]) -> None:
        matching, values = condition(where)
        self.query(f"DELETE FROM {table} WHERE {matching}", values)  # noqa: S608 - names of ours

    def query(self, text: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        done = self.ask(text, values)
        with self._explained():
            return done.fetchall() if done.description else []

    def ask(self, text: str, values: Sequence[object]) -> Answer:
        """As `query`; in a pipeline, the answer may be read later."""
        return self.execute(text.replace("?", "%s").encode(), values)

    # --- transactions ----------------------------------------------------------------------------

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
            if pipelined:  # a statement that failed raises here, before the commit
                db.execute("SELECT 1").fetchone()

    @contextmanager
    def in_one_go(self, meanwhile: Callable[[], None]) -> Iterator[None]:
        """A transaction whose last statements go to the server together with its COMMIT.

        While the server works on them, `meanwhile` is called. If one of them fails, the server
        skips those after it, the COMMIT included.
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
                try:
                    if not db.closed and db.info.transaction_status != TransactionStatus.IDLE:
                        db.execute("ROLLBACK")
                except psycopg.Error:
                    db.close()
                raise

    def stream(self, text: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        query = text.replace("?", "%s").encode()
        cursor = self._alive().cursor("chunks", binary=True, withhold=True)
        with self._explained(), cursor:
            cursor.itersize = 10_000
            yield from cursor.execute(query, values)

    def copy(self, query: Query, rows: Iterable[Sequence[object]]) -> int:
        """Many rows at once, inside a transaction; how many."""
        with self._explained(), self._alive().cursor() as cursor:
            with cursor.copy(query) as copying:
                for row in rows:
                    copying.write_row(row)
            return cursor.rowcount

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
        for array, oid in _ARRAYS.items():
            db.adapters.register_dumper(array, type("_Dumper", (_Raw,), {"oid": oid}))
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
        if not has_tables(db):
            raise StorageFailure(
                f"{address} holds no collector's tables; open a campaign first, or name the right "
                "database with --store"
            )
        db.read_only = True
        return
    if db.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        raise StorageFailure(
            f"{address} is a replica that only reads; nothing was changed. Name the primary server "
            "with --store, or add ?target_session_attrs=read-write and all hosts to the address"
        )
    if not has_tables(db):
        make_tables(db)
    for setting in _WRITER:
        db.execute(setting)
    if db.execute("SHOW synchronous_commit").fetchone() == ("off",):
        db.execute("SET synchronous_commit = on")


# --- errors --------------------------------------------------------------------------------------

# A refused connection has no code in libpq, only a text; what is not found here is shown as it is.
_CONNECTING: Final = (
    (
        ("password authentication failed", "no password supplied", "scram"),
        "the server refuses the user or its password",
        "Put the password into a file and name it with --store-password-file, or use PGPASSFILE",
    ),
    (
        ("too many clients", "remaining connection slots", "too many connections"),
        "the server has no connection left",
        (
            "Raise its max_connections, or the role's or database's limit; each worker needs one "
            "connection, its page and each command one more"
        ),
    ),
    (
        ("does not exist",),
        "the server has no such database or user",
        "Make them (docs/postgresql.md), or correct --store",
    ),
    (
        ("no pg_hba.conf entry", "permission denied for database"),
        "the server does not let this user in from here",
        "Correct pg_hba.conf, or grant CONNECT on the database to the user",
    ),
    (
        ("certificate", "ssl", "tls"),
        "there is no TLS connection that can be trusted",
        (
            "Name the authority of the server's certificate with sslrootcert=FILE in the address, "
            "and the server as its certificate does"
        ),
    ),
    (
        ("starting up", "shutting down", "recovery mode"),
        "the server is starting or stopping",
        "Wait a moment",
    ),
)

_WRITING: Final = {
    "42501": (
        "the database user may not do this",
        "GRANT it CREATE and USAGE on the schema; all tables must be its own (docs/postgresql.md)",
    ),
    "3F000": (
        "the schema is missing, or the database user may not use it",
        "Make it, and GRANT the user CREATE and USAGE on it (docs/postgresql.md)",
    ),
    "53100": ("the server's disk is full", "Free some space there; no restart is needed"),
    "53200": ("the server is out of memory", "Give it more; no restart is needed"),
    "53300": ("the server has no connection left", "Raise its max_connections"),
    "25006": (
        "the server only reads",
        "It is a replica, or was set to read only: name the primary with --store",
    ),
    "55P03": (
        "another process holds a row for too long",
        "It is tried again; see pg_stat_activity if it stays so",
    ),
    "42P01": (
        "a table is missing",
        "Was the database changed by hand? Restore a whole backup of it",
    ),
}


def unusable(address: StoreAddress, error: psycopg.Error) -> StorageFailure:
    """The error for a connection that could not be made or whose tables could not be."""
    if error.sqlstate in _WRITING:
        return refused(address, error)
    text = _text(error)
    for words, what, step in _CONNECTING:
        if any(word in text.lower() for word in words):
            return StorageFailure(
                f"{address} cannot be used: {what} ({text}). Nothing was changed. {step}"
            )
    return StorageFailure(
        f"{address} cannot be used: {text}. Nothing was changed; check that PostgreSQL runs there, "
        "or correct --store"
    )


def refused(address: StoreAddress, error: psycopg.Error) -> StorageFailure:
    """The error for a statement or transaction that failed."""
    text = _text(error)
    what, step = _WRITING.get(error.sqlstate or "", (text, "It is tried again"))
    details = "" if what == text else f" ({text})"
    return StorageFailure(
        f"{address} cannot be used: {what}{details}. Nothing of it was acknowledged; reports wait "
        f"at the broker and on the devices. {step}"
    )


def _text(error: psycopg.Error) -> str:
    """The server's first line; details may hold rows, and are left out."""
    text = error.diag.message_primary or str(error) or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shown(lines[0].rstrip(".") if lines else text, 300)


# --- arrays --------------------------------------------------------------------------------------
# Columns of a batch in PostgreSQL's binary form of arrays: made by numpy, not number by number.

_BIGINT, _SMALLINT, _BYTEA = 20, 21, 17


class Bigints(bytes):
    """A bigint[]."""


class Smallints(bytes):
    """A smallint[]."""


class Byteas(bytes):
    """A bytea[]."""


def bigints(numbers: Sequence[int] | npt.NDArray[np.int64]) -> Bigints:
    values = np.asarray(numbers, dtype=np.int64)
    return Bigints(_head(_BIGINT, len(numbers)) + _cells(values, ">i8", 8))


def smallints(numbers: Sequence[int] | npt.NDArray[np.int64]) -> Smallints:
    values = np.asarray(numbers, dtype=np.int64)
    return Smallints(_head(_SMALLINT, len(numbers)) + _cells(values, ">i2", 2))


def byteas(texts: Sequence[bytes]) -> Byteas:
    head, lengths = _head(_BYTEA, len(texts)), set(map(len, texts))
    if len(lengths) == 1 and (length := lengths.pop()):  # nearly always
        kind = f"V{length}"
        return Byteas(head + _cells(np.frombuffer(b"".join(texts), dtype=kind), kind, length))
    return Byteas(head + b"".join(struct.pack(">i", len(text)) + text for text in texts))


def _head(element: int, count: int) -> bytes:
    """One dimension that begins at 1, without nulls; an empty array has no dimension."""
    if count:
        return struct.pack(">iiIii", 1, 0, element, count, 1)
    return struct.pack(">iiI", 0, 0, element)


def _cells(values: npt.NDArray[Any], kind: str, size: int) -> bytes:
    cells = np.empty(len(values), dtype=[("length", ">i4"), ("value", kind)])
    cells["length"] = size
    cells["value"] = values
    return cells.tobytes()


class _Raw(Dumper):
    """Passes on what is in binary form already."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return bytes(obj)


_ARRAYS: Final = {Bigints: 1016, Smallints: 1005, Byteas: 1001}  # their oids
