"""The link by which owners join: the broker's address with a campaign's whole digest (P3).

The page is a process of its own and knows no broker, so the address is kept beside the data. It
holds no secret: whoever has the link still needs what `enrol` gives, where the broker asks for it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from collector.settings import Settings
from protocol_spec import Manifest
from protocol_spec.programs.address import parse_broker
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.private_files import write_durably

FILE: Final = "join-address"


def remember_address(settings: Settings) -> str:
    """Keep the address that devices use, for the page; returns it."""
    # Here and not above: the page, which only reads, does without brokers.
    from collector.brokers.choose import address_for_devices, choose_broker  # noqa: PLC0415

    address = f"{address_for_devices(settings)}/{choose_broker(settings)[0].namespace}"
    if _remembered(settings.data_dir) != address:
        with suppress(OSError):  # a full disk is told by whoever stores something
            write_durably(settings.data_dir / FILE, address)
    return address


def join_link(directory: Path, manifest: Manifest) -> str | None:
    """What an owner scans or pastes; None while no address is known."""
    address = _remembered(directory)
    return None if address is None else f"{address}/{manifest.full_name}"


def is_for_others(link: str) -> bool:
    """Whether other machines can use a link: one to this very machine is of no use to them."""
    try:
        return not parse_broker(link).is_loopback
    except SettingsError:
        return False


def _remembered(directory: Path) -> str | None:
    try:
        return (directory / FILE).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
