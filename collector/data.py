"""The data directory: private, and written by one service at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.errors import DataBusy, StorageFailure, UnknownCampaign
from collector.store.sqlite import SqliteStore


def make_private(directory: Path) -> None:
    """Create the directory, for its owner only."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFailure(
            f"the data directory {directory} cannot be used: {error.strerror}. Nothing was "
            "changed; choose another with --data-dir"
        ) from None


def open_store(directory: Path) -> SqliteStore:
    """The database, made if need be."""
    make_private(directory)
    return SqliteStore(directory / "collector.db")


def read_store(directory: Path) -> SqliteStore:
    """The database for reading only; it never waits for the service, nor the service for it."""
    path = directory / "collector.db"
    if not path.exists():
        raise UnknownCampaign(
            f"there is no collector's database in {directory}; open a campaign first, or name the "
            "right directory with --data-dir"
        )
    return SqliteStore(path, read_only=True)


@contextmanager
def only_service(directory: Path) -> Iterator[None]:
    """Be the one service on this data; the lock ends with the process, however it ends."""
    make_private(directory)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataBusy(
                f"another collector is running on {directory}; nothing was changed. Stop it "
                "first, or choose another directory with --data-dir"
            ) from None
        yield
    finally:
        os.close(descriptor)
