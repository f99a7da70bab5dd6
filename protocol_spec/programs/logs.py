"""Logs: plain lines on a terminal, one JSON object a line elsewhere. Nothing private is in them."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

from protocol_spec.programs.output import as_json
from protocol_spec.shown import escaped, short

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
    """It may quote others. A further line of it is indented, so that none looks like a new one."""
    return "\n".join(map(escaped, short(record.getMessage(), LONGEST).split("\n")))


def set_up(level: str) -> None:
    """Send the program's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines() if sys.stderr.isatty() else _JsonLines())
    logger = logging.getLogger("allomfree")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
