"""What the running agent is doing, for `status` from another process and for systemd.

The file has a fixed size and is overwritten in place, so that a full disk can still be reported.
It is for information only: nothing is decided by it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypedDict

from protocol_spec.programs.private_files import overwrite

SIZE: Final = 1024
FILE: Final = "heartbeat"


class Beat(TypedDict):
    """What an agent last wrote: its process, its state in words, and how many reports wait."""

    pid: int
    state: str
    queued: int
    at: int


class Heartbeat:
    """Writes the present state whenever it changes."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.time) -> None:
        self._path = directory / FILE
        self._now = now
        self.text = ""
        self._last: tuple[str, int] | None = None

    def write(self, text: str, queued: int) -> None:
        """Note the state in words and the number of queued reports."""
        self.text = text
        if self._last == (text, queued):
            return
        self._last = (text, queued)
        # At most 440 bytes of text: even if each needs escaping, the record fits.
        state = text.encode(errors="replace")[:440].decode(errors="ignore")
        beat = Beat(pid=os.getpid(), state=state, queued=queued, at=int(self._now()))
        with suppress(OSError):
            overwrite(self._path, json.dumps(beat, ensure_ascii=False).encode().ljust(SIZE))


def last_heartbeat(directory: Path) -> Beat | None:
    """What a running agent last said, or None when none is running."""
    try:
        beat: Beat = json.loads((directory / FILE).read_bytes())
        os.kill(beat["pid"], 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return beat
