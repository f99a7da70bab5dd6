"""Continuing after a loss: an empty memory that is charged for all the lost one may have revealed.

Claim I14: what the ledger shows is never below what was really revealed, also after a kill at any
step in here. A kill leaves a memory that is refused like the lost one, and nothing forgotten.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from edge_client.records import LedgerLine, Trace, no_trace
from edge_client.store import Store
from edge_client.store.highwater import MARK_FILE, Mark, mark_of, read_mark, write_mark
from edge_client.store.opening import DATABASE_FILE, private_directory, take_lock

REASON: Final = "memory lost: all it was charged stays spent"


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
        write_mark(directory / MARK_FILE, left)
        trace("left-over marked")
        for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
            (directory / name).unlink(missing_ok=True)
            trace(f"{name} removed")
    finally:
        os.close(lock)
    with Store(directory, exclusive=True, replacing=True, trace=trace) as store:
        trace("empty memory opened")
        with store.marked_transaction():
            for source, epsilon in left.charged.items():
                store.book(LedgerLine(at, "", source, epsilon, REASON))
            for name, shown in left.participations.items():
                store.execute("INSERT INTO before_loss VALUES (?, ?, ?, ?, ?, ?)", (name, *shown))
            store.execute("UPDATE meta SET value = ? WHERE key = 'sequence'", (left.sequence,))
        trace("inherited")
    return left.charged


def _left_over(directory: Path, unknown_charge: float) -> Mark:
    """What is still known after a loss, as the mark of no store at all."""
    mark, read = read_mark(directory / MARK_FILE), _still_readable(directory / DATABASE_FILE)
    charged, shown = dict(read.charged), read.participations
    if mark is None:
        charged["*"] = charged.get("*", 0.0) + unknown_charge
        return Mark("", 1, charged, shown)
    if read.store != mark.store:
        charged, shown = {}, {}
    for source, epsilon in mark.charged.items():
        charged[source] = max(epsilon, charged.get(source, 0.0))
    known = mark.participations
    later = {n: p for n, p in shown.items() if n not in known or p.last_round > known[n].last_round}
    return Mark("", mark.sequence + 1, charged, {**known, **later})


def _still_readable(path: Path) -> Mark:
    """What can be read of a database that may be old, damaged or missing."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as db:
            return mark_of(db)
    except (sqlite3.Error, TypeError, ValueError):
        return Mark("", 0)
