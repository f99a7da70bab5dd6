"""Wiping a campaign from the files, and searching them for what is left of it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from edge_client.records import LedgerLine, Trace, no_trace
from edge_client.store import Store, highwater
from edge_client.store.highwater import (
    Mark,
    Participation,
    charges,
    keep_participations,
    meta,
    participations,
)
from edge_client.store.opening import DATABASE_FILE, private_directory, take_lock

# --- Continuing after a loss: an empty memory charged for everything the lost one may have said.


def recover(
    directory: Path, at: int, unknown_charge: float, trace: Trace = no_trace
) -> dict[str, float]:
    """Replace a lost memory by an empty one, and return the charges kept.

    They are what the high-water mark or the old database still knew. Without a mark nobody knows
    how much more there was, and `unknown_charge` is booked on every source.
    """
    private_directory(directory)
    lock = take_lock(directory / "lock")
    try:
        left = _left_over(directory, unknown_charge)
        trace("left-over read")
        highwater.write_mark(directory / highwater.MARK_FILE, left)
        trace("left-over marked")
        for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
            (directory / name).unlink(missing_ok=True)
            trace(f"{name} removed")
    finally:
        os.close(lock)
    with Store(directory, exclusive=True, replacing=True, trace=trace) as store:
        trace("empty memory opened")
        _inherit(store, left, at)
        trace("inherited")
    return left.charged


def _inherit(store: Store, left: Mark, at: int) -> None:
    """Take over what a lost memory is known to have spent and shown, all of it or nothing."""
    reason = "memory lost: all it was charged stays spent"
    with store.database.marked_transaction():
        for source, epsilon in left.charged.items():
            store.ledger.add(LedgerLine(at, "", source, epsilon, reason))
        keep_participations(store.database.connection, left.participations)
        store.database.execute("UPDATE meta SET value = ? WHERE key = 'sequence'", (left.sequence,))


def _left_over(directory: Path, unknown_charge: float) -> Mark:
    """What is still known after a loss, as the mark of no store at all."""
    mark = highwater.read_mark(directory / highwater.MARK_FILE)
    store, charged, shown = _still_readable(directory / DATABASE_FILE)
    if mark is None:
        charged["*"] = charged.get("*", 0.0) + unknown_charge
        return Mark("", 1, charged, shown)
    if store != mark.store:
        charged, shown = {}, {}
    for source, epsilon in mark.charged.items():
        charged[source] = max(epsilon, charged.get(source, 0.0))
    known = mark.participations
    later = {n: p for n, p in shown.items() if n not in known or p.last_round > known[n].last_round}
    return Mark("", mark.sequence + 1, charged, {**known, **later})


def _still_readable(path: Path) -> tuple[str, dict[str, float], dict[str, Participation]]:
    """Identity, charges and participations of a database that may be old, damaged or missing."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as db:
            return str(meta(db, "store")), charges(db), participations(db)
    except (sqlite3.Error, TypeError, ValueError):
        return "", {}, {}
