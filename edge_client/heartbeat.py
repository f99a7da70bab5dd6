"""How the running agent stands, for `status` from another process and for systemd.

The file has a fixed size and is overwritten in place, so that a full disk can still be reported.
It is a courtesy, not memory: nothing is decided by it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from edge_client.directory import open_private

SIZE: Final = 1024
FILE: Final = "heartbeat"


class Heartbeat:
    """Writes the present state whenever it changes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
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
        fields = {"pid": os.getpid(), "state": state, "queued": queued, "at": int(time.time())}
        record = json.dumps(fields, ensure_ascii=False).encode().ljust(SIZE)
        with suppress(OSError):
            descriptor = open_private(self._path, os.O_WRONLY)
            try:
                os.pwrite(descriptor, record, 0)
            finally:
                os.close(descriptor)


def last_heartbeat(directory: Path) -> dict[str, Any] | None:
    """What a running agent last said, or None when none is running."""
    try:
        fields: dict[str, Any] = json.loads((directory / FILE).read_bytes())
        os.kill(fields["pid"], 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return fields
