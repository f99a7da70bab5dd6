"""The data directory: private, written by one service at a time, and where the store is chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from collector.errors import DataBusy, StorageFailure, UnknownCampaign
from collector.settings import Settings
from collector.store import Store
from collector.store.sqlite import SqliteStore
from protocol_spec.programs.locks import try_lock
from protocol_spec.programs.names import unguessable
from protocol_spec.programs.private_files import (
    exposed_mode,
    make_private_directory,
    write_durably,
)

DATABASE: Final = "collector.db"


def make_private(directory: Path) -> None:
    """Create the directory if need be, and insist that only its owner can enter (R22)."""
    try:
        make_private_directory(directory)
        if not directory.is_dir():
            raise NotADirectoryError(0, "it is a file")
        mode = exposed_mode(directory)
    except OSError as error:
        raise StorageFailure(
            f"the data directory {directory} cannot be used: {error.strerror}. Nothing was "
            "changed; choose another with --data-dir"
        ) from None
    if mode is not None:
        raise StorageFailure(
            f"other users can read the data directory {directory} (mode {mode:o}); nothing was "
            f"changed. Run: chmod 700 {directory}"
        )


def open_store(directory: Path) -> Store:
    """The database, made if need be."""
    make_private(directory)
    return SqliteStore(directory / DATABASE)


def read_store(directory: Path) -> Store:
    """The database for reading only; it never waits for the service, nor the service for it."""
    path = directory / DATABASE
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
    try:
        lock = try_lock(directory / "lock")
    except OSError as error:
        raise StorageFailure(
            f"{directory / 'lock'} cannot be opened: {error.strerror}; nothing was changed. "
            "Correct its permissions, or choose another directory with --data-dir"
        ) from None
    if lock is None:
        raise DataBusy(
            f"another collector is running on {directory}; nothing was changed. Stop it first, or "
            "choose another directory with --data-dir"
        )
    try:
        yield
    finally:
        os.close(lock)


def client_id(settings: Settings) -> str:
    """The name of our session at the broker: the one set, or one made up once."""
    return settings.client_id or session_name(settings.data_dir)


def session_name(directory: Path) -> str:
    """The name of our session at the broker: made once, and nobody else can guess it.

    Whoever connects to a broker under a session's name takes the session over, and where the
    broker does not tie names to users, not knowing the name is all that keeps others out.
    """
    file = directory / "session"
    try:
        return file.read_text(encoding="ascii")
    except FileNotFoundError:
        name = unguessable("coll")
    try:
        write_durably(file, name)
    except OSError as error:
        raise StorageFailure(
            f"{file} cannot be written: {error.strerror}. Nothing was changed; check the disk"
        ) from None
    return name
