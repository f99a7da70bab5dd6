"""The data directory: private, and written by one service at a time."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.errors import DataBusy, StorageFailure, UnknownCampaign
from collector.settings import Settings
from collector.store.sqlite import SqliteStore
from protocol_spec.programs.names import unguessable
from protocol_spec.programs.private_files import write_durably


def make_private(directory: Path) -> None:
    """Create the directory if need be, and insist that only its owner can enter (R22)."""
    try:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True)
            directory.chmod(0o700)  # the umask may have taken more than it should
        mode = stat.S_IMODE(directory.stat().st_mode)
    except OSError as error:
        raise StorageFailure(
            f"the data directory {directory} cannot be used: {error.strerror}. Nothing was "
            "changed; choose another with --data-dir"
        ) from None
    if mode & 0o077:
        raise StorageFailure(
            f"the data directory {directory} is open to other users (mode {mode:o}); nothing was "
            f"changed. Run: chmod 700 {directory}"
        )


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
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageFailure(
            f"{directory / 'lock'} cannot be opened: {error.strerror}; nothing was changed. Mend "
            "its permissions, or choose another directory with --data-dir"
        ) from None
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
        write_durably(file, name)
        return name
