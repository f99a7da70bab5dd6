"""What PostgreSQL answers, in words that say what to do. Passwords are in none of them."""

from __future__ import annotations

from typing import Final

import psycopg

from collector.errors import StorageFailure
from collector.store_address import StoreAddress
from protocol_spec.programs.output import shown

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
    said = "" if what == text else f" ({text})"
    return StorageFailure(
        f"{address} cannot be used: {what}{said}. Nothing of it was acknowledged; reports wait at "
        f"the broker and on the devices. {step}"
    )


def _text(error: psycopg.Error) -> str:
    """The server's first line; details may hold rows, and are left out."""
    told = error.diag.message_primary or str(error) or type(error).__name__
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return shown(lines[0].rstrip(".") if lines else told, 300)
