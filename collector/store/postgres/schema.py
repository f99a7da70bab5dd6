"""The tables in PostgreSQL, as append-only migrations. A migration that has shipped never changes.

Times are Unix seconds, counts are little-endian 64-bit integers, as `records.Tally` has them. Other
tools may read `result`, and sum `tally` and `outcome` over workers, see docs/postgresql.md. Nothing
here is special: no extension, no advisory lock, no temporary table, no trigger.

What a worker adds to often is in rows of its own, so that nobody waits for another's row; worker 0
stands for stores that never enlisted, and for sums of sealed rounds.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

import psycopg

from collector.errors import StorageFailure

MIGRATIONS: Final[tuple[LiteralString, ...]] = (
    """
    CREATE TABLE version (n bigint NOT NULL);
    INSERT INTO version VALUES (0);
    CREATE TABLE setting (name text PRIMARY KEY, value bytea NOT NULL);
    CREATE TABLE campaign (
        id integer PRIMARY KEY,
        name text NOT NULL UNIQUE,
        manifest bytea NOT NULL,
        opened bigint NOT NULL,
        closed bigint
    );
    CREATE TABLE signature (
        campaign integer PRIMARY KEY REFERENCES campaign,
        signature bytea NOT NULL
    );
    CREATE TABLE revoked (device text PRIMARY KEY, at bigint NOT NULL);

    -- `ended`: no batch counts for it any more; `sealed`: it is final; `stored`: it has a table
    -- report_<campaign>_<number> of its own, until it is sealed.
    CREATE TABLE round (
        campaign integer NOT NULL REFERENCES campaign,
        number integer NOT NULL,
        stored boolean NOT NULL DEFAULT false,
        ended boolean NOT NULL DEFAULT false,
        sealed bigint,
        receipts_cleared boolean NOT NULL DEFAULT false,
        PRIMARY KEY (campaign, number)
    );
    CREATE INDEX round_with_receipts ON round (campaign)
        WHERE sealed IS NOT NULL AND NOT receipts_cleared;
    CREATE INDEX round_not_sealed ON round (campaign) WHERE sealed IS NULL;

    -- Devices of sealed rounds. `device` is a keyed hash; the key is not in this database.
    CREATE TABLE device (
        campaign integer NOT NULL,
        device bigint NOT NULL,
        attribute smallint NOT NULL,
        rounds integer NOT NULL DEFAULT 0,
        unreleased integer NOT NULL DEFAULT 0,
        PRIMARY KEY (campaign, device)
    ) WITH (fillfactor = 80);

    CREATE TABLE tally (
        campaign integer NOT NULL,
        round integer NOT NULL,
        attribute smallint NOT NULL,
        worker bigint NOT NULL,
        n bigint NOT NULL,
        counts bytea NOT NULL,
        PRIMARY KEY (campaign, round, attribute, worker)
    );
    CREATE TABLE outcome (
        campaign integer NOT NULL,
        round integer NOT NULL,
        name text NOT NULL,
        worker bigint NOT NULL,
        n bigint NOT NULL,
        PRIMARY KEY (campaign, round, name, worker)
    );
    CREATE TABLE outcome_total (
        campaign integer NOT NULL,
        name text NOT NULL,
        worker bigint NOT NULL,
        n bigint NOT NULL,
        PRIMARY KEY (campaign, name, worker)
    );
    CREATE TABLE request (name text PRIMARY KEY, n bigint NOT NULL);

    CREATE TABLE round_sum (
        campaign integer NOT NULL,
        attribute smallint NOT NULL,
        released boolean NOT NULL,
        first integer NOT NULL,
        last integer NOT NULL,
        rounds integer NOT NULL,
        n bigint NOT NULL,
        counts bytea NOT NULL,
        PRIMARY KEY (campaign, attribute, released)
    );
    CREATE TABLE released_total (
        campaign integer NOT NULL,
        attribute smallint NOT NULL,
        first integer NOT NULL,
        last integer NOT NULL,
        rounds integer NOT NULL,
        n bigint NOT NULL,
        counts bytea NOT NULL,
        PRIMARY KEY (campaign, attribute)
    );
    CREATE TABLE result (
        campaign integer NOT NULL,
        attribute smallint NOT NULL,
        round integer NOT NULL,
        message bytea NOT NULL,
        PRIMARY KEY (campaign, attribute, round)
    );
    CREATE TABLE unpublished (
        campaign integer NOT NULL,
        round integer NOT NULL,
        attribute smallint NOT NULL,
        PRIMARY KEY (campaign, round, attribute)
    );

    CREATE TABLE worker (
        number bigint PRIMARY KEY,
        name text NOT NULL,
        started double precision NOT NULL,
        seen double precision NOT NULL,
        drained double precision NOT NULL DEFAULT 0,
        fenced boolean NOT NULL DEFAULT false,
        received bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    INSERT INTO worker (number, name, started, seen) VALUES (0, '', 0, 0);
    CREATE SEQUENCE worker_number;
    CREATE TABLE lease (
        holder bigint NOT NULL,
        epoch bigint NOT NULL,
        until double precision NOT NULL
    );
    INSERT INTO lease VALUES (0, 0, 0);

    -- What the leader has to put on receipt pages; a place is page * 2^32 + tag, big-endian.
    CREATE TABLE receipt_feed (
        sequence bigserial PRIMARY KEY,
        worker bigint NOT NULL,
        kind smallint NOT NULL,
        campaign integer NOT NULL,
        round integer NOT NULL,
        places bytea NOT NULL
    );
    CREATE TABLE answer (number bigserial PRIMARY KEY, topic text NOT NULL, payload bytea NOT NULL)
    """,
)


def upgrade(db: psycopg.Connection[Any]) -> None:
    """Apply what the database has not seen, one process at a time; refuse one from the future."""
    for attempt in range(3):
        try:
            with db.transaction():
                _upgrade(db)
                return
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
            if attempt == 2:  # not another process that began at the same moment
                raise


def applied(db: psycopg.Connection[Any]) -> int | None:
    """How many migrations a database has seen; None if it never was a collector's."""
    if db.execute("SELECT to_regclass('allomfree_schema')").fetchone() == (None,):
        return None
    row = db.execute("SELECT version FROM allomfree_schema").fetchone()
    return int(row[0]) if row else 0


def check_version(version: int) -> None:
    """A database that a newer program made is not touched."""
    if version > len(MIGRATIONS):
        raise StorageFailure(
            f"a newer version of this program made the tables (version {version}, this program "
            f"knows {len(MIGRATIONS)}). Nothing was changed; update allomfree on this machine"
        )


def _upgrade(db: psycopg.Connection[Any]) -> None:
    version = applied(db)
    if version is None:
        db.execute("CREATE TABLE allomfree_schema (version integer NOT NULL)")
        db.execute("INSERT INTO allomfree_schema VALUES (0)")
    check_version(version or 0)
    if version == len(MIGRATIONS):
        return
    db.execute("LOCK TABLE allomfree_schema IN EXCLUSIVE MODE")
    version = applied(db) or 0
    for step in MIGRATIONS[version:]:
        db.execute(step)
    db.execute("UPDATE allomfree_schema SET version = %s", (len(MIGRATIONS),))
