"""A mark beside the database that remembers how far it had come.

A database restored from a backup, or replaced by an empty one, would draw again for rounds that
have already been reported, and that is a privacy failure. The mark holds the store's identity and
sequence number; a database behind its mark is refused. It also carries what must survive the loss
of the database: how much each source was charged, which attribute each campaign drew, how many of
its answers are used up, and which manifest it was, by its whole digest.

Two slots are written in turn, each with its checksum, in place: a torn write leaves the other slot
good, and a full disk cannot stop it, because the first write takes the room for both.
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
    answers: int = 0
    digest: str = ""  # of the manifest, in hex; empty if an earlier version wrote it down


@dataclass(frozen=True)
class Mark:
    """Identity and progress of a store, and what outlives it."""

    store: str
    sequence: int
    charged: dict[str, float] = field(default_factory=dict)
    participations: dict[str, Participation] = field(default_factory=dict)

    @cached_property
    def record(self) -> bytes:
        """As it is written: made once, for `fits` and for `write`."""
        return _format(self)


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


def fits(mark: Mark) -> bool:
    """Whether a mark can be written at all: a device may know some eighty campaigns."""
    return len(mark.record) <= SLOT


def _format(mark: Mark) -> bytes:
    fields = {
        "store": mark.store,
        "sequence": mark.sequence,
        "charged": mark.charged,
        "lives": {n: _short(p) for n, p in mark.participations.items()},  # an earlier name
    }
    digests = [_shorter(shown.digest) for _, shown in sorted(mark.participations.items())]
    whole = _record(fields | {"digests": digests} if any(digests) else fields)
    return whole if len(whole) <= SLOT else _record(fields)  # after a loss, names must do


def _record(fields: dict[str, Any]) -> bytes:
    text = _COMPACT.encode(fields).encode()
    return b"%08x %s" % (zlib.crc32(text), text)


def _short(shown: Participation) -> tuple[str | int, ...]:
    """As earlier versions wrote it, where there is nothing more to write."""
    return shown[:4] if shown.answers else shown[:3]


def _shorter(digest: str) -> str:
    """In base64: there is little room."""
    return b64encode(bytes.fromhex(digest)).decode().rstrip("=")


def _parse(record: bytes) -> Mark | None:
    checksum, _, text = record.rstrip(b" \0").partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        fields = json.loads(text)
        shown = {
            name: Participation(str(device), int(attribute), int(last), int((*answers, 0)[0]))
            for name, (device, attribute, last, *answers) in fields["lives"].items()
        }
        for name, digest in zip(sorted(shown), fields.get("digests", ())):
            shown[name] = shown[name]._replace(digest=b64decode(digest + "=" * 3).hex())
        return Mark(fields["store"], fields["sequence"], fields["charged"], shown)
    except (ValueError, KeyError, TypeError):
        return None


# --- What outlives a database, read from its tables: the content of the high-water mark.


_KEPT: Final = "life "  # the key under which earlier versions keep a participation after a loss


def meta(db: sqlite3.Connection, key: str) -> Any:
    """A value of the store itself: its identity `store` or its `sequence`."""
    return db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]


def mark_of(db: sqlite3.Connection) -> Mark:
    """The mark that belongs to a database as it is now."""
    known = _all_meta(db)
    return Mark(known["store"], known["sequence"], charges(db), _participations(db, known))


def charges(db: sqlite3.Connection) -> dict[str, float]:
    """What each source was charged, ever."""
    rows = db.execute("SELECT source, sum(epsilon) FROM ledger GROUP BY source")
    return dict(rows.fetchall())


def participations(db: sqlite3.Connection) -> dict[str, Participation]:
    """Every pseudonym and attribute that has been shown, here or before a loss."""
    return _participations(db, _all_meta(db))


def _all_meta(db: sqlite3.Connection) -> dict[str, Any]:
    return dict(db.execute("SELECT key, value FROM meta").fetchall())


def _participations(db: sqlite3.Connection, known: dict[str, Any]) -> dict[str, Participation]:
    kept = {key.removeprefix(_KEPT): text for key, text in known.items() if key.startswith(_KEPT)}
    shown = {name: _parse_participation(text) for name, text in kept.items()}
    rows = db.execute(
        "SELECT name, device, attribute, last_round, manifest FROM campaign WHERE last_round >= 0"
    )
    answers = _answers(db)
    return shown | {
        name: Participation(device, attribute, last, answers.get(name, 0), _digest(manifest))
        for name, device, attribute, last, manifest in rows.fetchall()
    }


def _digest(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()


def _answers(db: sqlite3.Connection) -> dict[str, int]:
    """Answers given without a memo; a database may have been lost before it had the table."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'answered'").fetchone():
        return {}
    return dict(db.execute("SELECT campaign, answers FROM answered").fetchall())


def kept_participation(db: sqlite3.Connection, campaign: str) -> Participation | None:
    """What a campaign had been shown before the memory was lost, if it was."""
    found = db.execute("SELECT value FROM meta WHERE key = ?", (_KEPT + campaign,)).fetchone()
    return None if found is None else _parse_participation(found[0])


def keep_participations(db: sqlite3.Connection, shown: dict[str, Participation]) -> None:
    """Store what was shown before a loss."""
    db.executemany(
        "INSERT OR REPLACE INTO meta VALUES (?, ?)",
        [(_KEPT + name, " ".join(map(str, fields))) for name, fields in shown.items()],
    )


def drop_participation(db: sqlite3.Connection, campaign: str) -> None:
    """Forget what was shown before a loss."""
    db.execute("DELETE FROM meta WHERE key = ?", (_KEPT + campaign,))


def _parse_participation(text: str) -> Participation:
    device, attribute, last, *more = text.split(" ")
    answers, digest = (*more, *("0", "")[len(more) :])
    return Participation(device, int(attribute), int(last), int(answers), digest)
