"""Private, durable files: for their owner only, and whole or not at all.

Everything here raises plain `OSError`; each program says in its own words what that means.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def make_private_directory(directory: Path) -> None:
    """Create a directory, with its parents, that only its owner can enter; keep one that exists."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
        directory.chmod(0o700)  # the umask may have taken more than it should


def exposed_mode(path: Path) -> int | None:
    """The permissions of a file or directory that other users can access; None if they cannot."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return mode if mode & 0o077 else None


def open_private(path: Path, flags: int) -> int:
    """Open a file, or create it for its owner alone, whatever the umask is."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, flags | os.O_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    return descriptor


def write_durably(file: Path, content: str | bytes) -> None:
    """Replace a file in one step: after a crash or power cut it holds the old content or the new.

    The file is synced before it gets its name, and the directory after that, because a rename is
    a change of the directory.
    """
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        _write_synced(temporary, content)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(file.parent)


def create_durably(file: Path, content: str | bytes) -> None:
    """Create a file in one step; keep the one that exists, also if it was created a moment ago."""
    temporary = file.with_name(f".{file.name}.{os.urandom(8).hex()}")
    try:
        _write_synced(temporary, content)
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(file.parent)


def _write_synced(file: Path, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        os.fchmod(descriptor, 0o600)  # the umask may have taken more than it should
        out.write(data)
        out.flush()
        os.fsync(descriptor)


def overwrite(path: Path, record: bytes) -> None:
    """Overwrite the beginning of a private file in place, which a full disk cannot refuse.

    For notes that are written often and may be lost, such as a heartbeat.
    """
    descriptor = open_private(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, record, 0)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make names created or replaced in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
