"""The state directory: private to its owner, and used by one agent at a time."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_client.errors import StateBusy, StateExposed, StorageFailure
from protocol_spec.programs.locks import holder, try_lock
from protocol_spec.programs.private_files import (
    exposed_mode,
    make_private_directory,
    sync_directory,
)

STATE_FILES: Final = (
    *("state.db", "state.db-wal", "state.db-shm", "highwater", "lock", "heartbeat"),
    "credentials.json",
)


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


def private_files(directory: Path) -> None:
    """Refuse files of the state that others can read."""
    for path in (directory / name for name in STATE_FILES):
        with suppress(FileNotFoundError):
            _check_mode(path, "600")


def sync_parents(directory: Path) -> None:
    """Make the directory itself survive a power cut: else it would be new, and draw again."""
    for parent in directory.absolute().parents:
        with suppress(OSError):  # a directory that we may enter but not read
            sync_directory(parent)


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
