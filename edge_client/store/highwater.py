"""A mark next to the database that remembers how far it had come.

A database restored from a backup, or replaced by an empty one, would draw again for rounds that
have already been reported, and that is a privacy failure. The mark holds the store's identity and
sequence number; a database behind its mark is refused. It also carries what must survive the loss
of the database: how much each source was charged, which attribute each campaign drew, how many of
its answers are used up, and which manifest it was, by its whole digest.

Two slots are written in turn, each with its checksum, in place: a torn write leaves the other slot
good, and a full disk cannot stop it, because the first write allocates both.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from protocol_spec.programs.system import open_private, sync_directory

MARK_FILE: Final = "highwater"
SLOT: Final = 8_192
_COMPACT: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True)


class Participation(NamedTuple):
    """What a campaign has been shown of this device, and how far its rounds had come."""

    device: str
    attribute: int
    last_round: int
    answers: int
    digest: bytes  # of the manifest


@dataclass(frozen=True)
class Mark:
    """Identity and progress of a store, and what outlives it."""

    store: str
    sequence: int
    charged: dict[str, float] = field(default_factory=dict)
    participations: dict[str, Participation] = field(default_factory=dict)

    @cached_property
    def record(self) -> bytes:
        """As it is written: encoded once, for `fits` and for `write_mark`."""
        shown = {
            name: [*each[:4], b64encode(each.digest).decode().rstrip("=")]  # short: space is scarce
            for name, each in self.participations.items()
        }
        text = _COMPACT.encode([self.store, self.sequence, self.charged, shown]).encode()
        return b"%08x %s" % (zlib.crc32(text), text)

    @property
    def fits(self) -> bool:
        """Whether it can be written at all: there is space for some seventy campaigns."""
        return len(self.record) <= SLOT


def read_mark(path: Path) -> Mark | None:
    """The later of the two slots, or None when there is no intact mark."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = (_parse(content[:SLOT]), _parse(content[SLOT : 2 * SLOT]))
    return max((s for s in slots if s is not None), key=lambda mark: mark.sequence, default=None)


def write_mark(path: Path, mark: Mark) -> None:
    """Store a mark durably, in the slot that does not hold the latest one."""
    descriptor = open_private(path, os.O_WRONLY)
    try:
        is_new = os.fstat(descriptor).st_size < 2 * SLOT
        if is_new:
            os.posix_fallocate(descriptor, 0, 2 * SLOT)
        os.pwrite(descriptor, mark.record.ljust(SLOT), mark.sequence % 2 * SLOT)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_directory(path.parent)  # before anything is drawn: a mark that is gone is refused


def _parse(record: bytes) -> Mark | None:
    checksum, _, text = record.rstrip(b" \0").partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        store, sequence, charged, shown = json.loads(text)
        known = {
            name: Participation(device, attribute, last, answers, b64decode(digest + "="))
            for name, (device, attribute, last, answers, digest) in shown.items()
        }
        return Mark(store, sequence, charged, known)
    except (ValueError, TypeError, AttributeError):
        return None


def meta(db: sqlite3.Connection, key: str) -> Any:
    """A value of the store itself: its identity `store` or its `sequence`."""
    return db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]


def mark_of(db: sqlite3.Connection) -> Mark:
    """The mark that belongs to a database as it is now."""
    rows = db.execute("SELECT source, sum(epsilon) FROM ledger GROUP BY source")
    return Mark(meta(db, "store"), meta(db, "sequence"), dict(rows.fetchall()), _participations(db))


def _participations(db: sqlite3.Connection) -> dict[str, Participation]:
    """Every pseudonym and attribute that has been shown, here or before a loss."""
    kept = db.execute("SELECT * FROM before_loss").fetchall()
    rows = db.execute(
        """SELECT name, device, attribute_index, last_round, answers, manifest FROM campaign
           WHERE last_round >= 0"""
    )
    return {name: Participation(*shown) for name, *shown in kept} | {
        name: Participation(device, attribute, last, answers, hashlib.sha256(manifest).digest())
        for name, device, attribute, last, answers, manifest in rows.fetchall()
    }
