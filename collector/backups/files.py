"""Copies for their owner alone, and directories that end up empty again if something fails."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from collector.errors import CollectorError
from collector.settings import Settings
from protocol_spec.programs.system import make_private_directory, sync_directory

LOCK: Final = "lock"  # of the data directory: who holds it may be in the middle of something
PIECE: Final = 1 << 20


def refuse_shared(settings: Settings) -> None:
    """PostgreSQL has its own way to copy a database that others write."""
    if settings.store is not None:
        raise CollectorError(
            "the data is in PostgreSQL; nothing was changed. Use pg_dump and pg_restore for it; "
            f"keep copies of {settings.data_dir / 'device.key'} and {settings.broker_dir}"
        )


def copy_private(source: Path, target: Path) -> None:
    """Copy a file, synced, with the directories that it is in; never onto another."""
    for parent in reversed([parent for parent in target.parents if not parent.exists()]):
        make_private_directory(parent)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out, source.open("rb") as file:
        os.fchmod(descriptor, 0o600)  # the umask may have taken more than it should
        shutil.copyfileobj(file, out, PIECE)
        out.flush()
        os.fsync(descriptor)
    sync_directory(target.parent)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries(place: Path) -> list[str]:
    """What is in a directory, without the lock; nothing if there is none."""
    if not place.exists():
        return []
    return sorted(entry.name for entry in place.iterdir() if entry.name != LOCK)


@contextmanager
def all_or_nothing(places: Sequence[Path]) -> Iterator[None]:
    """Directories that were empty, or not there, are so again after any failure."""
    before = [place.exists() for place in places]
    try:
        yield
    except BaseException:
        for place, existed in zip(places, before):
            _take_away(place, existed)
        raise


def _take_away(place: Path, existed: bool) -> None:
    if not existed:
        shutil.rmtree(place, ignore_errors=True)
        return
    with suppress(OSError):
        for name in entries(place):
            if (place / name).is_dir():
                shutil.rmtree(place / name, ignore_errors=True)
            else:
                (place / name).unlink()
