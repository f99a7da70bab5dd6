"""The state directory: private to its owner, and used by one agent at a time."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_client.errors import StateBusy, StateExposed, StorageFailure

STATE_FILES: Final = ("state.db", "state.db-wal", "state.db-shm", "highwater", "lock", "heartbeat")


def private_directory(directory: Path) -> None:
    """Make the state directory if need be, and insist that only its owner can enter."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = directory.stat()
    except OSError as error:
        raise StorageFailure(
            f"the state directory {directory} cannot be used: {error.strerror}. Nothing was drawn "
            "or sent. Choose another with --state-dir, or mend its permissions"
        ) from None
    if state.st_uid != os.geteuid():
        raise StateExposed(
            f"{directory} belongs to another user; nothing was drawn or sent. Run as that user, "
            "or choose another with --state-dir"
        )
    _check_mode(directory, state.st_mode)


def private_files(directory: Path) -> None:
    """Insist that only the owner can read what is in it, whatever the umask was."""
    for path in (directory / name for name in STATE_FILES):
        with suppress(FileNotFoundError):
            _check_mode(path, path.stat().st_mode)


def _check_mode(path: Path, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o077:
        wanted = "700" if stat.S_ISDIR(mode) else "600"
        raise StateExposed(
            f"{path} can be read by other users (mode {stat.S_IMODE(mode):o}); nothing was drawn "
            f"or sent. Run: chmod {wanted} {path}"
        )


def take_lock(path: Path) -> int:
    """Become the only agent on this directory; the lock ends with the process, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StateBusy(
            f"another agent (process {holder}) is using {path.parent}; nothing was drawn or sent. "
            "Stop it first, or choose another directory with --state-dir"
        ) from None
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holds(path: Path, traces: list[bytes]) -> bool:
    """Whether a file still contains any of these byte strings."""
    content = path.read_bytes()
    return any(trace in content for trace in traces)
