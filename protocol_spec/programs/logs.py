"""Logs: plain lines on a terminal, one JSON object a line elsewhere. Nothing private is in them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds")
        fields = {"at": at, "level": record.levelname.lower(), "message": record.getMessage()}
        state = getattr(record, "state", None)
        return json.dumps({**fields, "state": state} if state else fields, ensure_ascii=False)


def set_up(level: str) -> None:
    """Send the program's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if not sys.stderr.isatty():
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("allomfree")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
