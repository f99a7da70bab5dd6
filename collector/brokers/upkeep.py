"""Keeps a broker's files as they should be: after an upgrade, and when a campaign is opened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from collector.brokers.directory import BrokerDirectory, rendered, storing


def altered(configured: BrokerDirectory) -> list[str]:
    """The broker's files that are not as this version writes them."""
    files = rendered(configured).items()
    return [name for name, text in files if _read(configured.path / name) != text]


def bring_up_to_date(configured: BrokerDirectory) -> None:
    """Write the files again if an earlier version wrote them, before the broker starts."""
    if altered(configured):
        with BrokerDirectory.changing(configured.path):
            BrokerDirectory.load(configured.path).write()


def name_campaigns(configured: BrokerDirectory, campaigns: Iterable[str]) -> None:
    """Let devices report to these campaigns, and to no others where the broker can tell."""
    configured.plan = replace(configured.plan, campaigns=tuple(sorted(campaigns)))
    with storing(configured.path):
        configured.write()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
