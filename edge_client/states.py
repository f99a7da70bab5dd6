"""The words with which the agent says how it is doing."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

FORGOTTEN: Final = "forgotten"  # the decision that stays of a campaign that was wiped


class Problem(StrEnum):
    """What keeps a report from being drawn or delivered, as `status` and the log show it."""

    DISK_FULL = "DISK_FULL"
    NO_VALUE = "NO_VALUE"
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
