"""The state directory: private to its owner, and used by one agent at a time."""

from __future__ import annotations

import errno
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
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700, parents=True)
            directory.chmod(0o700)  # the umask may have taken more than it should
        state = directory.stat()
        if not stat.S_ISDIR(state.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is not a directory")
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


def open_private(path: Path, flags: int) -> int:
    """Open a file of the state; a new one is its owner's alone, whatever the umask is."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, flags | os.O_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    return descriptor


def private_files(directory: Path) -> None:
    """Insist that only the owner can read what is in it."""
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
    try:
        descriptor = open_private(path, os.O_RDWR)
    except OSError as error:
        raise StorageFailure(
            f"{path} cannot be opened: {error.strerror}; nothing was drawn or sent. "
            "Mend its permissions or free some space"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StateBusy(
            f"another agent (process {holder}) is using {path.parent}; nothing was drawn or sent. "
            "Stop it first, or choose another directory with --state-dir"
        ) from None
    with suppress(OSError):  # only a note for people: a full disk must not stop the agent
        os.pwrite(descriptor, f"{os.getpid():<19}\n".encode(), 0)
    return descriptor


def holds(path: Path, traces: list[bytes]) -> bool:
    """Whether a file still contains any of these byte strings."""
    content = path.read_bytes() if path.is_file() else b""
    return any(trace in content for trace in traces)
