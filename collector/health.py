"""Is the collector alive and well? Answered from a file, so that no port and no curl is needed."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from collector.service import Standing

FILE: Final = "heartbeat"
EVERY: Final = 2.0
STALE: Final = 30.0


class Heartbeat:
    """Writes the service's standing every few seconds, in place."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._next = 0.0

    def beat(self, standing: Standing) -> None:
        """Write, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        record = {
            "pid": os.getpid(),
            "at": time.time(),
            "memory": resident_memory(),
            **asdict(standing),
        }
        record["trouble"] = str(record["trouble"])[:1000]
        with suppress(OSError):  # a full disk must not end the service; a silent one looks stuck
            self._write(json.dumps(record).encode().ljust(4096))

    def _write(self, record: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, record, 0)
        finally:
            os.close(descriptor)


def examine(directory: Path) -> tuple[bool, str, dict[str, Any]]:
    """(well, in words, the last standing)."""
    try:
        record: dict[str, Any] = json.loads((directory / FILE).read_bytes())
        os.kill(record["pid"], 0)
    except (OSError, ValueError, KeyError):
        return False, f"no collector is running on {directory}", {}
    age = time.time() - record["at"]
    if age > STALE:
        return (
            False,
            f"the collector (process {record['pid']}) is stuck: silent {age:.0f} s",
            record,
        )
    if record["trouble"]:
        return False, record["trouble"], record
    return True, "connected and counting", record


def resident_memory() -> int:
    """Memory of this process in bytes; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
