"""From a device's name to a number that means nothing without the key.

The key lies in its own file, outside the database: a copy of the database alone links no row to a
device. 63 bits make two devices of a million share a number with probability 5e-8.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from collector.errors import StorageFailure
from protocol_spec import Manifest


class DeviceKey:
    """The collector's secret, read or made once."""

    def __init__(self, path: Path) -> None:
        try:
            if not path.exists():
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    os.write(descriptor, secrets.token_bytes(32))
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            self._key = path.read_bytes()
        except OSError as error:
            raise StorageFailure(
                f"the device key {path} cannot be used: {error.strerror}"
            ) from None
        if len(self._key) != 32:
            raise StorageFailure(
                f"the device key {path} is damaged; put the right one back. With another key every "
                "device would look new and could be counted twice"
            )

    def number(self, manifest: Manifest, device: str) -> int:
        """The device's number in a campaign; another campaign gives another."""
        keyed = hashlib.blake2b(
            device.encode("ascii"), key=self._key, person=manifest.digest[:16], digest_size=8
        )
        return int.from_bytes(keyed.digest()) >> 1
