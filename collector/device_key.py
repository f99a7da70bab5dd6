"""From a device's name to a number that means nothing without the key.

The key lies in its own file, outside the database: a copy of the database alone links no row to a
device. 63 bits make two devices of a million share a number with probability 5e-8.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path

from collector.errors import StorageFailure
from protocol_spec import Manifest
from protocol_spec.programs.system import exposed_mode, write_durably


class DeviceKey:
    """The collector's secret, read or made once.

    `make` is for a collector that has received nothing yet: later, a missing key is a lost one.
    """

    def __init__(self, path: Path, *, make: bool = True) -> None:
        try:
            if make and not path.exists():
                write_durably(path, secrets.token_bytes(32))
            self._key = path.read_bytes()
            mode = exposed_mode(path)
        except FileNotFoundError:
            raise _not_the_key(path, "is missing") from None
        except OSError as error:
            raise StorageFailure(
                f"the device key {path} cannot be used: {error.strerror}. Nothing was changed; "
                "check the disk and the file's permissions"
            ) from None
        if len(self._key) != 32:
            raise _not_the_key(path, "is damaged")
        if mode is not None:
            raise StorageFailure(
                f"other users can read the device key {path} (mode {mode:o}); nothing was "
                f"changed. Run: chmod 600 {path}"
            )

    @property
    def fingerprint(self) -> bytes:
        """What tells this key from others, and nothing about it."""
        return hashlib.blake2b(key=self._key, person=b"fingerprint", digest_size=16).digest()

    def number(self, manifest: Manifest, device: str) -> int:
        """The device's number in a campaign; another campaign gives another."""
        return int.from_bytes(self.hashed(manifest)(device.encode("ascii"))) >> 1

    def hashed(self, manifest: Manifest) -> Callable[[bytes], bytes]:
        """From a device's name, in ASCII, to eight bytes: its number and one bit more."""
        begun = hashlib.blake2b(key=self._key, person=manifest.digest[:16], digest_size=8)

        def hashed(device: bytes) -> bytes:
            keyed = begun.copy()
            keyed.update(device)
            return keyed.digest()

        return hashed


def _not_the_key(path: Path, fault: str) -> StorageFailure:
    return StorageFailure(
        f"the device key {path} {fault}; nothing was changed. Restore it from a backup, or "
        "copy it from the data directory of another worker: with another key every device would "
        "look new and could be counted twice"
    )
