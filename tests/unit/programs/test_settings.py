"""Addresses as the specification's vectors have them."""

from __future__ import annotations

from typing import Any

import pytest

from protocol_spec.programs.settings import SettingsError, parse_invitation
from tests.support.protocol import vectors

ADDRESSES = vectors.load("topics.json")["addresses"]


def parsed(address: str) -> dict[str, Any] | None:
    """What a device would join, or None: plain text is refused towards other machines."""
    try:
        broker, namespace, campaign, digest = parse_invitation(address)
        broker.check_plaintext(allowed=False)
    except SettingsError:
        return None
    place = {"tls": broker.tls, "host": broker.host, "port": broker.port}
    named = {"namespace": namespace, "campaign": campaign}
    return {**place, **named, "digest": digest.hex() if digest else None}


@pytest.mark.parametrize("entry", ADDRESSES, ids=lambda entry: entry["address"])
def test_an_address_names_this(entry: dict[str, Any]) -> None:
    assert parsed(entry["address"]) == entry["names"]
