"""From a device's name to a number that means nothing without the key.

The key lies in its own file, outside the database: a copy of the database alone links no row to a
device. 63 bits make two devices of a million share a number with probability 5e-8.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path

from collector.errors import StorageFailure
from protocol_spec import Manifest


class DeviceKey:
    """The collector's secret, read or made once.

    `make` is for a collector that has received nothing yet: later, a missing key is a lost one.
    """

    def __init__(self, path: Path, *, make: bool = True) -> None:
        try:
            if make and not path.exists():
                _make(path)
            self._key = path.read_bytes()
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            raise _not_the_key(path, "is missing") from None
        except OSError as error:
            raise StorageFailure(
                f"the device key {path} cannot be used: {error.strerror}"
            ) from None
        if len(self._key) != 32:
            raise _not_the_key(path, "is damaged")
        if mode & 0o077:
            raise StorageFailure(
                f"the device key {path} can be read by other users (mode {mode:o}); nothing was "
                f"changed. Run: chmod 600 {path}"
            )

    def number(self, manifest: Manifest, device: str) -> int:
        """The device's number in a campaign; another campaign gives another."""
        keyed = hashlib.blake2b(
            device.encode("ascii"), key=self._key, person=manifest.digest[:16], digest_size=8
        )
        return int.from_bytes(keyed.digest()) >> 1


def _make(path: Path) -> None:
    """Write beside and rename, so that a process killed meanwhile leaves no damaged key."""
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(32))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)


def _not_the_key(path: Path, fault: str) -> StorageFailure:
    return StorageFailure(
        f"the device key {path} {fault}; put the right one back. With another key every device "
        "would look new and could be counted twice"
    )
