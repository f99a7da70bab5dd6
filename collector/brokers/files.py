"""Files with secrets: whole or not at all, and for their owner only."""

from __future__ import annotations

import os
from pathlib import Path

from collector.errors import StorageFailure


def make_directory(directory: Path) -> None:
    """A directory that only its owner can enter, whatever the umask."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        raise _refused(directory, error) from None


def write_private(file: Path, content: str | bytes) -> None:
    """Replace a file's content in one step; a crash leaves the old one or the new one."""
    data = content.encode() if isinstance(content, str) else content
    temporary = file.with_name(f".{file.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(descriptor)
        temporary.replace(file)
    except OSError as error:
        raise _refused(file, error) from None


def _refused(path: Path, error: OSError) -> StorageFailure:
    return StorageFailure(
        f"{path} cannot be written: {error.strerror}. Nothing that was there is lost; choose "
        "another directory with --broker-dir, or mend its permissions"
    )
