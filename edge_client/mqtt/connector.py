"""The one place where a connection is made: in plain text only if the owner allows it (R18)."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.mqtt.link import Link, MakeLink, PahoLink
from protocol_spec.programs.address import BrokerUrl, Credentials
from protocol_spec.programs.mqtt import MQTT_5, Version


@dataclass(frozen=True, slots=True)
class Connector:
    """How this device connects to any broker."""

    credentials: Credentials
    allow_plaintext: bool = False
    keepalive: int = 60
    make_link: MakeLink = PahoLink

    def link(self, broker: BrokerUrl, version: Version = MQTT_5) -> Link:
        """A link, not started yet. Raises `SettingsError` if it would be readable on the way."""
        broker.check_plaintext(self.allow_plaintext)
        return self.make_link(broker, self.credentials, keepalive=self.keepalive, version=version)
