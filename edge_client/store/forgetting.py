"""Wiping a campaign from the files, and searching them for what is left of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edge_client.records import Membership, Memo, Queued
from edge_client.store.campaigns import Campaigns
from edge_client.store.database import Database
from edge_client.store.surviving import drop_participation


def erase(database: Database, campaigns: Campaigns, campaign: str, at: int) -> None:
    """Remove a campaign's rows, and their bytes from the database, its log and the mark."""
    with database.marked_transaction():
        campaigns.erase(campaign, at)
        drop_participation(database.connection, campaign)
    with suppress(sqlite3.OperationalError):  # no space, or a reader: the search will tell
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with database.marked_transaction():
        pass  # twice, for both slots: the older one still names the device


def traces_of(
    membership: Membership,
    memos: Iterable[Memo],
    reports: Iterable[Queued],
    others: Iterable[Membership],
) -> list[bytes]:
    """Byte strings that only this campaign can have left in the files.

    A body of zeros and a name that other campaigns use as well prove nothing.
    """
    traces = [membership.manifest.to_bytes(), *(row.payload for row in reports)]
    traces += [m.body for m in memos if len(m.body) - m.body.count(0) >= 6]
    device = membership.device
    shared = any(other.device == device for other in others)
    return traces if shared or len(device) < 12 else [*traces, device.encode()]


def files_with(directory: Path, traces: list[bytes]) -> list[str]:
    """The files of a directory that contain any of these byte strings.

    The database must be closed: to read a file of an open one would cancel SQLite's locks on it.
    """
    return [path.name for path in sorted(directory.iterdir()) if _holds(path, traces)]


def _holds(path: Path, traces: list[bytes]) -> bool:
    content = path.read_bytes() if path.is_file() else b""
    return any(trace in content for trace in traces)
