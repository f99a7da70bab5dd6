"""What both programs' MQTT links do alike with paho: prepare, connect, explain a refusal."""

from __future__ import annotations

import ssl
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from protocol_spec.programs.address import BrokerUrl, Credentials
from protocol_spec.programs.client import (
    CONNECT_SECONDS,
    MQTT_5,
    MQTT_311,
    BufferedClient,
    ConnectionBroken,
    Version,
)
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.programs.packets import LARGEST_PACKET

__all__ = [
    "CONNECT_SECONDS",
    "MQTT_5",
    "MQTT_311",
    "BufferedClient",
    "ConnectionBroken",
    "Version",
    "no_answer",
    "prepare",
    "properties_of_connect",
    "properties_of_leaving",
    "reach",
    "refused",
    "unreachable",
    "wants_older",
]

_UNSUPPORTED_VERSION: Final = 132
_CREDENTIALS: Final = (134, 135, 140)  # bad user name or password, not authorised, bad method


def prepare(
    client: BufferedClient, broker: BrokerUrl, credentials: Credentials, window: int
) -> None:
    """Configure a new client before it connects."""
    client.max_inflight_messages_set(window)
    if credentials.username is not None:
        client.username_pw_set(credentials.username, credentials.password)
    if broker.tls:
        client.tls_context = credentials.tls_context()


def properties_of_connect() -> Properties:
    """What an MQTT 5 broker is told at the start: how much it may send at once."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.MaximumPacketSize = LARGEST_PACKET
    return properties


def properties_of_leaving(version: Version) -> Properties | None:
    """What an MQTT 5 broker is told at the end, so that it keeps no session."""
    if version != MQTT_5:
        return None
    properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 0
    return properties


def reach(client: BufferedClient, broker: BrokerUrl, keepalive: int, **options: Any) -> None:
    """Open the connection and send CONNECT; the broker's answer comes later.

    A connection is given up after two of the client's own keepalives without a byte, and each is
    noticed up to a second late; what is passed on makes one and a half of the nominal one.
    """
    try:
        client.connect(broker.host, broker.port, max(1, keepalive * 3 // 4 - 1), **options)
    except ssl.SSLCertVerificationError as error:
        reason = (
            f"its certificate is not trusted: {error.verify_message}. If its authority is not one "
            "of the system's, name it with --ca-file"
        )
        raise unreachable(broker, reason) from None
    except (OSError, UnicodeError) as error:  # a host such as "a..b" is a UnicodeError
        text = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise unreachable(broker, str(text)) from None


def wants_older(code: ReasonCode, version: Version) -> bool:
    """Whether the broker only speaks MQTT 3.1.1."""
    return bool(code.value == _UNSUPPORTED_VERSION and version == MQTT_5)


def refused(code: ReasonCode) -> str:
    """The broker's refusal in words, with a hint where the credentials are to blame."""
    hint = ""
    if code.value in _CREDENTIALS:
        hint = ". Check --username, --password-file or the client certificate"
    return f"it refused the connection ({code}){hint}"


def no_answer(broken: ConnectionBroken, broker: BrokerUrl, credentials: Credentials) -> str:
    """A connection that ends before any answer, with the likeliest reason."""
    if broken.offence:
        return str(broken)
    hint = ""
    if broker.tls and not credentials.cert_file:
        hint = "; it may require a client certificate, see --cert-file"
    return f"it closed the connection at once{hint}"


def unreachable(broker: BrokerUrl, reason: str) -> BrokerUnreachable:
    """The error for every way of not reaching a broker."""
    return BrokerUnreachable(f"the broker {broker} cannot be used: {reason}")
