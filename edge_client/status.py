"""How the agent says what it is doing: states and problems in fixed words, and the heartbeat file.

The file is for `status` in another process and for systemd. It has a fixed size and is overwritten
in place, so that a full disk can still be reported. Nothing is decided by it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from protocol_spec.programs.system import overwrite


class Problem(StrEnum):
    """What keeps a report from being drawn or delivered, as `status` and the log show it."""

    DISK_FULL = "DISK_FULL"
    REFUSED = "REFUSED"
    BROKER_AWAY = "BROKER_AWAY"
    REPORT_REFUSED = "REPORT_REFUSED"


class ReportState(StrEnum):
    """What became of a campaign's latest report."""

    COUNTED = "counted"
    SENT = "sent, no receipt yet"
    QUEUED = "queued"
    MISSED = "missed"
    CLOSED = "closed"
    WITHDRAWN = "withdrawn"
    DUE = "due"
    WAITING = "waiting"


HEARTBEAT_BYTES: Final = 1024
HEARTBEAT_FILE: Final = "heartbeat"


class Heartbeat:
    """Writes the present state whenever it changes."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.time) -> None:
        self._path = directory / HEARTBEAT_FILE
        self._now = now
        self.text = ""
        self._last: tuple[str, int] | None = None

    def write(self, text: str, queued: int) -> None:
        self.text = text
        if self._last == (text, queued):
            return
        self._last = (text, queued)
        # At most 440 bytes of text: even if each needs escaping, the record fits.
        state = text.encode(errors="replace")[:440].decode(errors="ignore")
        beat = {"pid": os.getpid(), "state": state, "queued": queued, "at": int(self._now())}
        with suppress(OSError):
            overwrite(
                self._path, json.dumps(beat, ensure_ascii=False).encode().ljust(HEARTBEAT_BYTES)
            )


def last_heartbeat(directory: Path) -> dict[str, Any] | None:
    """What a running agent last wrote (`pid`, `state`, `queued`, `at`); None if none is running."""
    try:
        beat: dict[str, Any] = json.loads((directory / HEARTBEAT_FILE).read_bytes())
        os.kill(beat["pid"], 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return beat
