"""Which configuration a broker's directory holds: told apart by a digest of a few small files.

They hold what a running broker or collector cannot take over by reading its files again: where the
broker listens and with what, and how the collector connects to it. Users, passwords and access
lists are not among them: brokers reload those.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

OWN: Final = "credentials/Collector/collector.toml"
FILES: Final = ("nats.conf", "mosquitto.conf", OWN)


def fingerprint(directory: Path) -> str:
    """A digest of what is configured there; nothing where that cannot be seen."""
    digest = hashlib.sha256()
    try:
        if not directory.is_dir():
            return ""
        for name in FILES:
            file = directory / name
            digest.update(f"{name}\0".encode())
            if file.exists():
                digest.update(file.read_bytes() + b"\0")
    except OSError:
        return ""
    return digest.hexdigest()[:16]
