"""Which state directories and databases are opened, and which are refused.

A directory must be private to its owner, and one agent uses it at a time. A database is refused
when the memory in it is not the last, or was written by another version. Nothing is changed in a
file that is refused: it may be somebody else's, or be repaired by hand.

Claim F7: a first start that a power cut ends is no loss. A database gets its name when it is whole
and on the disk, so that one that is damaged, or missing while its mark exists, was really used.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from edge_client.errors import (
    StateBusy,
    StateExposed,
    StateLost,
    StateOfOtherVersion,
    StorageFailure,
)
from edge_client.store.highwater import MARK_FILE, Mark, meta, read_mark
from protocol_spec.programs.system import (
    create_durably,
    exposed_mode,
    holder,
    make_private_directory,
    sync_directory,
    try_lock,
)

Connect = Callable[..., sqlite3.Connection]

DATABASE_FILE: Final = "state.db"
STATE_FILES: Final = (
    *(DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"),
    *(MARK_FILE, "lock", "heartbeat", "credentials.json"),
)
RECOVER: Final = "allomfree-edge forget --lost"

APPLICATION_ID: Final = 0x414C4645  # "ALFE", recognised by `file` and other tools
UNRELEASED_ID: Final = 0x414C4F46  # of databases made before the first release
SCHEMA_VERSION: Final = 1
SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID, STRICT;
CREATE TABLE campaign (
    name TEXT PRIMARY KEY,
    manifest BLOB NOT NULL,
    broker TEXT NOT NULL,
    namespace TEXT NOT NULL,
    device TEXT NOT NULL,
    attribute_index INTEGER NOT NULL,
    status TEXT NOT NULL,
    joined INTEGER NOT NULL,
    last_round INTEGER NOT NULL,
    last_value INTEGER,
    boot TEXT NOT NULL DEFAULT '',
    round_opened REAL NOT NULL DEFAULT 0,
    answers INTEGER NOT NULL,       -- given so far, where no memo counts them
    operator BLOB NOT NULL,         -- whose signature was verified when it was joined
    known_broker INTEGER NOT NULL,  -- whether credentials were for its broker then
    mqtt INTEGER NOT NULL DEFAULT 5 -- the version that its broker speaks: 5, or 4 for 3.1.1
) STRICT;
CREATE TABLE drawn_round (          -- where a device answers in some rounds only
    campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
    round INTEGER NOT NULL,
    PRIMARY KEY (campaign, round)
) WITHOUT ROWID, STRICT;
CREATE TABLE memo (
    campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
    value INTEGER NOT NULL,
    body BLOB NOT NULL,
    created INTEGER NOT NULL,
    reports INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (campaign, value)
) WITHOUT ROWID, STRICT;
CREATE TABLE outbox (
    campaign TEXT NOT NULL REFERENCES campaign(name) ON DELETE CASCADE,
    round INTEGER NOT NULL,
    payload BLOB NOT NULL,
    deadline INTEGER NOT NULL,
    drawn INTEGER NOT NULL,
    fate TEXT NOT NULL DEFAULT 'queued',
    PRIMARY KEY (campaign, round)
) WITHOUT ROWID, STRICT;
CREATE INDEX outbox_queued ON outbox (campaign) WHERE fate = 'queued';
CREATE TABLE ledger (
    line INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    campaign TEXT NOT NULL,
    source TEXT NOT NULL,
    epsilon REAL NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE TABLE decision (
    line INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    campaign TEXT NOT NULL,
    what TEXT NOT NULL
) STRICT;
CREATE TABLE before_loss (          -- participations in campaigns of a memory that was lost
    campaign TEXT PRIMARY KEY,
    device TEXT NOT NULL,
    attribute INTEGER NOT NULL,
    last_round INTEGER NOT NULL,
    answers INTEGER NOT NULL,
    digest BLOB NOT NULL
) WITHOUT ROWID, STRICT;
"""


# --- the directory -------------------------------------------------------------------------------


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


# --- the database --------------------------------------------------------------------------------


def open_database(
    directory: Path, *, replacing: bool, connect: Connect = sqlite3.connect
) -> tuple[sqlite3.Connection, Mark | None]:
    """The database and its mark, if they belong together; `replacing` begins an empty one."""
    mark = read_mark(directory / MARK_FILE)  # first: it may be behind, never ahead
    for name in STATE_FILES:
        with suppress(FileNotFoundError):
            _check_mode(directory / name, "600")
    path = directory / DATABASE_FILE
    if not path.exists():
        left = [path.with_name(MARK_FILE), path.with_name(f"{DATABASE_FILE}-wal")]
        if not replacing and any(each.exists() for each in left):
            raise lost(path, "is missing")
        _create(path)
    _refuse_other_versions(path)
    db = _connect(path, connect)
    if not replacing and (why := _rolled_back(db, mark)):
        db.close()
        raise lost(path, why)
    return db, mark


def lost(path: Path, what: str) -> StateLost:
    """The refusal, with the one command that helps."""
    return StateLost(
        f"the memory of earlier answers, {path}, {what}. Drawing again would reveal more, "
        "so nothing was drawn or sent. Put the newest copy back, or accept the loss with "
        f"`{RECOVER}`, which books it as spent"
    )


def _create(path: Path) -> None:
    """An empty database, whole or not at all; one that another process has just made stays."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript(SCHEMA)
        db.execute("INSERT INTO meta VALUES ('store', ?)", (os.urandom(8).hex(),))
        db.execute("INSERT INTO meta VALUES ('sequence', 0)")
        content = db.serialize()
    try:
        create_durably(path, content)
        for parent in path.parent.absolute().parents:
            with suppress(OSError):  # a directory that we may enter but not read
                sync_directory(parent)  # else the state directory could be new, and draw again
    except OSError as error:
        raise StorageFailure(
            f"{path} cannot be made: {error.strerror}; nothing was drawn or sent. "
            "Free some space or correct its permissions, and start again"
        ) from None


def _rolled_back(db: sqlite3.Connection, mark: Mark | None) -> str:
    """Why this may not be the database that the mark belongs to; empty if it is."""
    sequence = meta(db, "sequence")
    if mark is None:
        return "has lost its high-water mark, so it may be an old copy" if sequence else ""
    if mark.store != meta(db, "store"):
        return "is not the one this device used"
    return "is an old copy: the device had come further" if mark.sequence > sequence else ""


def _refuse_other_versions(path: Path) -> None:
    """Read the header as if it were on a read-only medium: not a byte of the database is changed,
    nor of its write-ahead log. Damage is found by `_connect`, which also reads the log."""
    application = version = 0
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with suppress(sqlite3.Error), closing(sqlite3.connect(address, uri=True)) as db:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    if application == UNRELEASED_ID:
        raise StateOfOtherVersion(
            f"{path} was written by a version before the first release, which this agent does not "
            "read; nothing was changed, drawn or sent. Choose another --state-dir"
        )
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise StateOfOtherVersion(
            f"{path} was written by a later version (schema {version}, this agent knows "
            f"{SCHEMA_VERSION}); nothing was changed, drawn or sent. Upgrade the agent"
        )


def _connect(path: Path, connect: Connect) -> sqlite3.Connection:
    """Open the database; one that is not ours or is damaged is refused, and not changed."""
    try:
        db = connect(path, isolation_level=None, timeout=5.0)
        try:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA secure_delete = ON")
            application = db.execute("PRAGMA application_id").fetchone()[0]
            version = db.execute("PRAGMA user_version").fetchone()[0]
            is_ours = (application, version) == (APPLICATION_ID, SCHEMA_VERSION)
            if not is_ours or db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
        except BaseException:
            db.close()
            raise
        return db
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 1) == sqlite3.SQLITE_ERROR:  # not our tables
            raise lost(path, "is damaged") from None
        raise StorageFailure(
            f"{path} cannot be opened: {error}; nothing was drawn or sent. "
            "Free some space or correct its permissions, and start again"
        ) from None
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        raise lost(path, "is damaged") from None
