"""What outlives a database, read from its tables: the content of the high-water mark.

Functions of a bare connection, because they also read what is left of a damaged database.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any, Final

from edge_client.store.highwater import Mark, Participation

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
    shown = {name: _parse(text) for name, text in kept.items()}
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
    return None if found is None else _parse(found[0])


def keep_participations(db: sqlite3.Connection, shown: dict[str, Participation]) -> None:
    """Store what was shown before a loss."""
    db.executemany(
        "INSERT OR REPLACE INTO meta VALUES (?, ?)",
        [(_KEPT + name, " ".join(map(str, fields))) for name, fields in shown.items()],
    )


def drop_participation(db: sqlite3.Connection, campaign: str) -> None:
    """Forget what was shown before a loss."""
    db.execute("DELETE FROM meta WHERE key = ?", (_KEPT + campaign,))


def _parse(text: str) -> Participation:
    device, attribute, last, *more = text.split(" ")
    answers, digest = (*more, *("0", "")[len(more) :])
    return Participation(device, int(attribute), int(last), int(answers), digest)
