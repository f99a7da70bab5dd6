"""Is the collector alive and well? Answered from a file, so that no port and no curl is needed.

The service writes its status to the heartbeat file every few seconds; `examine` reads it. Nothing
here knows the broker or the store, so the page's process can use it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from protocol_spec.programs.private_files import overwrite

FILE: Final = "heartbeat"
EVERY_SECONDS: Final = 2.0
STALE_SECONDS: Final = 30.0


@dataclass(slots=True)
class Status:
    """What the running service says of itself, for `status`, `health` and the metrics."""

    connected: bool = False
    trouble: str = "starting"
    received: int = 0
    accepted: int = 0
    batches: int = 0
    largest_batch: int = 0
    last_commit: float = 0.0
    storage_failures: int = 0
    since: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Beat:
    """One heartbeat: which process wrote it, when, how large it was, and its status."""

    pid: int
    at: float
    memory: int
    status: Status


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the collector is well, why or why not, and its last heartbeat if it is running."""

    well: bool
    finding: str
    beat: Beat | None = None

    @property
    def running(self) -> bool:
        """Whether a collector's process is there, well or not."""
        return self.beat is not None

    def facts(self) -> dict[str, Any]:
        """What `health --json` prints."""
        known = {} if self.beat is None else asdict(self.beat)
        status = known.pop("status", {})
        return {"healthy": self.well, "finding": self.finding, **known, **status}


class Heartbeat:
    """Writes the service's status every few seconds, in place."""

    def __init__(self, directory: Path, every_seconds: float = EVERY_SECONDS) -> None:
        self._path = directory / FILE
        self._every_seconds = every_seconds
        self._next = 0.0

    def beat(self, status: Status) -> None:
        """Write, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_seconds
        record = {
            "pid": os.getpid(),
            "at": time.time(),
            "memory": resident_memory(),
            **asdict(status),
        }
        record["trouble"] = str(record["trouble"])[:1000]
        with suppress(OSError):  # a full disk must not end the service; a silent one looks stuck
            overwrite(self._path, json.dumps(record).encode().ljust(4096))


def examine(directory: Path, clock: Callable[[], float] = time.time) -> Health:
    """Read the heartbeat of the collector on a data directory."""
    try:
        beat = _read(directory / FILE)
        os.kill(beat.pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return Health(False, f"no collector is running on {directory}")
    age = clock() - beat.at
    if age > STALE_SECONDS:
        return Health(
            False, f"the collector (process {beat.pid}) is stuck: silent for {age:.0f} s", beat
        )
    if beat.status.trouble:
        return Health(False, beat.status.trouble, beat)
    return Health(True, "connected and counting", beat)


def _read(path: Path) -> Beat:
    record: dict[str, Any] = json.loads(path.read_bytes())
    status = Status(**{f.name: record[f.name] for f in fields(Status) if f.name in record})
    return Beat(record["pid"], record["at"], record["memory"], status)


def resident_memory() -> int:
    """Memory of this process in bytes; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
