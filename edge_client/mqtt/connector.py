"""The one place where a connection is made: in plain text only if the owner allows it (R18), and
with credentials only to the brokers they are for (P2)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from edge_client.errors import SettingsError, as_edge_errors
from edge_client.mqtt.link import Link, MakeLink, PahoLink
from edge_client.records import Treatment
from edge_client.remembered import Remembered
from protocol_spec.programs.address import BrokerUrl, Credentials
from protocol_spec.programs.mqtt import MQTT_5, Version


def _not_said() -> None:
    return None


def _nothing(_broker: BrokerUrl) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Connector:
    """How this device connects to any broker.

    `brokers` are those that the credentials are for, as texts; None while nobody has said so.
    `remembered` is what `join` was given for one broker; what is set for it now comes first.
    """

    credentials: Credentials
    allow_plaintext: bool = False
    keepalive: int = 60
    make_link: MakeLink = PahoLink
    brokers: Callable[[], Collection[str] | None] = _not_said
    remembered: Callable[[BrokerUrl], Remembered | None] = _nothing

    @as_edge_errors()
    def link(self, broker: BrokerUrl, version: Version = MQTT_5) -> Link:
        """A link, not started yet. Raises `SettingsError` if it would be readable on the way."""
        broker.check_plaintext(self.allow_plaintext)
        shown = self._shown_to(broker)
        return self.make_link(broker, shown, keepalive=self.keepalive, version=version)

    def _shown_to(self, broker: BrokerUrl) -> Credentials:
        if self.knows(broker):
            return self.credentials
        kept = self.remembered(broker)
        if kept is None:
            return self.credentials.withheld()
        ca_file = self.credentials.ca_file or kept.ca_file
        return replace(kept.credentials(), ca_file=ca_file)

    def check_invited(self, broker: BrokerUrl) -> None:
        """Refuse a broker that an invitation names while nobody has said whose credentials are."""
        if self.credentials.identify and self.brokers() is None and not self._remembers(broker):
            raise SettingsError(
                "it is not said which broker your user name, password or certificate is for; "
                f"nothing was drawn or sent. If they are for {broker}, add this to the command: "
                f"--credentials-for {broker}; or this line to the configuration file: "
                f'credentials_for = "{broker}"'
            )

    def knows(self, broker: BrokerUrl) -> bool:
        """Whether there are credentials, and they are for this broker."""
        return self.credentials.identify and str(broker) in (self.brokers() or ())

    def withholds(self, broker: BrokerUrl) -> bool:
        """Whether there are credentials, but not for this broker."""
        others = self.credentials.identify and not self.knows(broker)
        return others and not self._remembers(broker)

    def will_know(self, broker: BrokerUrl) -> bool:
        """The same once a campaign is joined there: an owner who has not said which broker the
        credentials are for says so by naming one beside a manifest."""
        return self.knows(broker) or (self.credentials.identify and self.brokers() is None)

    def treatment(self, broker: BrokerUrl) -> Treatment:
        """What becomes of the credentials when a campaign is joined there."""
        if self.will_know(broker) or self._remembers(broker):
            return "shown"
        return "withheld" if self.credentials.identify else "none"

    def username(self, broker: BrokerUrl) -> str | None:
        """The name that a broker will know this device by; None where it is told none."""
        if self.will_know(broker):
            return self.credentials.username
        kept = self.remembered(broker)
        return None if kept is None else kept.username

    def _remembers(self, broker: BrokerUrl) -> bool:
        """Whether something that identifies us is remembered for this broker."""
        kept = self.remembered(broker)
        return kept is not None and kept.identifies

    def note(self, broker: BrokerUrl) -> str:
        """That credentials were withheld, to stand behind what went wrong; or nothing."""
        if not self.withholds(broker):
            return ""
        names = ", ".join(self.brokers() or ()) or "no broker"
        return f". Your credentials are for {names} and were not shown to it"
