"""Locks between processes: held by an open file, released by the end of the process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protocol_spec.programs.private_files import open_private


def try_lock(path: Path) -> int | None:
    """Lock a file without waiting: the descriptor that holds the lock, or None if it is taken.

    The lock ends when the descriptor is closed or its process ends, however it ends.
    """
    descriptor = open_private(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    with suppress(OSError):  # only a note for people: a full disk must not stop anybody
        os.pwrite(descriptor, f"{os.getpid():<19}\n".encode(), 0)
    return descriptor


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, after waiting for whoever holds it."""
    descriptor = open_private(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def holder(path: Path) -> str:
    """The process that took a lock last, as it noted itself; `unknown` if it did not."""
    with suppress(OSError):
        return path.read_bytes()[:20].decode(errors="replace").strip() or "unknown"
    return "unknown"
