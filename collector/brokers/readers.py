"""Readers, such as dashboards: they read results, and nothing that they write is ever counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from collector.brokers.access import COLLECTOR, READER, READER_PROBE, Role
from collector.brokers.credentials import CredentialFiles
from collector.brokers.directory import BrokerDirectory, storing


def enrol_readers(configured: BrokerDirectory, names: Iterable[str]) -> dict[str, Path]:
    """Create credentials that can read and never report; the names they got, and where.

    With the first one comes another of our own, with which `doctor` tries what readers can do.
    """
    wanted = [f"{READER}{name}" for name in names]
    ours = [READER_PROBE] if READER_PROBE not in configured.users else []
    places = configured.enrol([*wanted, *ours], Role.READER)
    return dict(zip(wanted, places))


def readers(configured: BrokerDirectory) -> list[str]:
    """The readers that may connect, without our own."""
    found = (user for user in configured.users.values() if user.role is Role.READER)
    return [user.name for user in found if not user.revoked and user.name != READER_PROBE]


def announce_below(configured: BrokerDirectory, home_assistant: str | None) -> None:
    """Let the collector announce campaigns to Home Assistant, and readers read that."""
    configured.plan = replace(configured.plan, home_assistant=home_assistant)
    own = CredentialFiles(COLLECTOR, configured.credentials_dir(COLLECTOR))
    with storing(configured.path):
        own.write_configuration(configured.plan)
        configured.write()
