"""What the programs write: no control or invisible character leaves them unescaped (A10).

Modules show foreign text with `protocol_spec.errors`. `Gate` is the last check after all of them:
while a command runs, standard output and standard error go through it, and so does what click, a
library or a log writes there. It passes line ends and tabs, and colours only for a command that
asked for them. JSON is escaped as JSON, so that a program still reads exactly the same text.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from protocol_spec.errors import escaped, nearest, pattern_for, quoted, short, shown

__all__ = [
    "Gate",
    "allow_colours",
    "as_json",
    "clear_screen",
    "escaped",
    "gated",
    "json_escaped",
    "nearest",
    "quoted",
    "set_up_logging",
    "shown",
]

LONGEST_LINE: Final = 2000  # characters of a message on standard error

_KEPT: Final = re.compile("([\n\t]+)")
_KEPT_WITH_COLOURS: Final = re.compile("([\n\t]+|\x1b\\[[0-9]{1,2}m)")


class Gate:
    """A text stream in front of another one."""

    def __init__(self, stream: TextIO, longest_line: int | None = None) -> None:
        self._stream = stream
        self._longest_line = longest_line
        self.colours = False

    @property
    def encoding(self) -> str:
        return self._stream.encoding or "utf-8"

    @property
    def errors(self) -> str:
        return self._stream.errors or "strict"

    def write(self, text: str) -> int:
        """Write it escaped; on standard error, also short."""
        if not isinstance(text, str):
            raise TypeError("only text is written here")
        if self._longest_line is not None and len(text) > self._longest_line:
            text = "\n".join(short(line, self._longest_line) for line in text.split("\n"))
        if pattern_for(text).search(text):
            pieces = (_KEPT_WITH_COLOURS if self.colours else _KEPT).split(text)
            pieces[::2] = map(escaped, pieces[::2])  # what lies between the kept ones
            text = "".join(pieces)
        self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
        return len(text)

    def clear(self) -> None:
        """Start at the top of an empty screen, if there is one."""
        if self._stream.isatty():
            self._stream.write("\x1b[2J\x1b[H")

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True


@contextmanager
def gated() -> Iterator[None]:
    """Write both streams through gates inside this block."""
    before = sys.stdout, sys.stderr
    for stream in before:
        _prefer_utf8(stream)
    sys.stdout = Gate(before[0])
    sys.stderr = Gate(before[1], LONGEST_LINE)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout, sys.stderr = before


def allow_colours() -> None:
    """Let colours pass from now on; foreign text must have been escaped before."""
    if isinstance(sys.stdout, Gate):
        sys.stdout.colours = True


def clear_screen() -> bool:
    """Empty the screen; False where there is none, as in a file or a pipe."""
    if not isinstance(sys.stdout, Gate) or not sys.stdout.isatty():
        return False
    sys.stdout.clear()
    return True


def as_json(facts: Any, indent: int | None = None) -> str:
    """JSON that reads the same and shows nothing hidden: `\\u009b` instead of the character."""
    return json_escaped(json.dumps(facts, ensure_ascii=False, indent=indent))


def json_escaped(text: str) -> str:
    """JSON text with every hidden character, all of which are inside its strings, escaped."""
    return pattern_for(text).sub(
        lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text
    )


def _prefer_utf8(stream: TextIO) -> None:
    """Without a locale Python would write ASCII only."""
    if (stream.encoding or "").lower() in ("ascii", "us-ascii", "ansi_x3.4-1968"):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8")


# --- Logs: plain lines on a terminal, one JSON object a line elsewhere. Nothing private is in them.


LONGEST: Final = 1000  # characters of one message


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds")
        fields = {"at": at, "level": record.levelname.lower(), "message": _message(record)}
        state = getattr(record, "state", None)
        return as_json({**fields, "state": state} if state else fields)


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = self.formatTime(record)
        return f"{at} {record.levelname} " + _message(record).replace("\n", "\n    ")


def _message(record: logging.LogRecord) -> str:
    """It may quote foreign text. Further lines are indented, so that none looks like a new one."""
    return "\n".join(map(escaped, short(record.getMessage(), LONGEST).split("\n")))


def set_up_logging(level: str) -> None:
    """Send the program's log to standard error, and nothing that libraries log: what matters of it
    is in our own words, and theirs may hold anything, in any form."""
    logging.getLogger().addHandler(logging.NullHandler())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines() if sys.stderr.isatty() else _JsonLines())
    logger = logging.getLogger("allomfree")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
