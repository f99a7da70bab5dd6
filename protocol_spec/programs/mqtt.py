"""What both programs' MQTT links do alike with paho: one turn of the network over the buffered
socket, preparing and connecting a client, explaining a refusal.

paho imports `urllib.request` for proxies that nobody here has; it brings HTTP and e-mail along,
2.4 MiB of the agent's memory. `lazy_import` defers that until it is used; where it finds nothing to
defer, everything is loaded as usual.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from protocol_spec.programs.packets import (
    CONNACK,
    LARGEST_PACKET,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    BadPacket,
    BufferedSocket,
    Message,
    Tls,
    check_control,
    cut_messages,
    read_publish,
)
from protocol_spec.programs.settings import BrokerUnreachable, BrokerUrl, Credentials


class _Finder(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002 - only for reloads
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def lazy_import(name: str) -> Iterator[None]:
    """What is imported meanwhile gets this module without its contents, until they are used."""
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


# --- one turn of the network ---------------------------------------------------------------------


with lazy_import("urllib.request"):
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.exception import MQTTException

Version = MQTTProtocolVersion
MQTT_5: Final = Version.MQTTv5
MQTT_311: Final = Version.MQTTv311
CONNECT_SECONDS: Final = 10.0

# What paho and the readers above raise for packets that are none.
_MALFORMED: Final = (
    BadPacket, MQTTException, LookupError, ValueError, AssertionError, TypeError, struct.error
)  # fmt: skip


class ConnectionBroken(Exception):
    """There is no point in going on with this connection, and why.

    An offence is the broker's: it sent what is not MQTT, or more than anybody asked for.
    """

    def __init__(self, reason: str, *, offence: bool = False) -> None:
        super().__init__(reason)
        self.offence = offence


class BufferedClient(mqtt.Client):
    """One connection, whose caller takes one turn after the other."""

    def __init__(self, client_id: str, version: Version, **options: Any) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **options
        )
        self.connect_timeout = CONNECT_SECONDS
        self.buffered: BufferedSocket | None = None
        self.tls_context: ssl.SSLContext | None = None
        self._v5 = version == MQTT_5
        self._is_open = False  # the broker has answered CONNECT, one way or the other
        self._asked_at: float | None = None  # when a PINGREQ was sent that nothing followed yet

    def turn(self, timeout_seconds: float, arrived: list[Message], most: int) -> None:
        """Wait for the network, then read what is there, at most so many packets.

        Raises `ConnectionBroken` when it has ended, after adding what had arrived before.
        """
        sock = self.buffered
        if sock is None or self.socket() is None:
            raise ConnectionBroken(mqtt.error_string(mqtt.MQTT_ERR_NO_CONN))
        try:
            self._exchange(sock, timeout_seconds, arrived, most)
        except OSError as error:
            raise self._broken(error.strerror or "the connection broke") from None
        except _MALFORMED as error:
            reason = str(error) if isinstance(error, BadPacket) else "a packet without sense"
            reason = f"the broker broke the rules of MQTT: it sent {reason}"
            raise self._broken(reason, offence=True) from None

    def flush(self) -> None:
        """Send what was collected now; if that fails, the next turn says so."""
        if self.buffered is not None:
            with suppress(OSError):
                self.buffered.flush()

    def _exchange(
        self, sock: BufferedSocket, timeout_seconds: float, arrived: list[Message], most: int
    ) -> None:
        if self.want_write():
            self.loop_write()
        sock.flush()
        if sock.wait(timeout_seconds) and not sock.is_congested:
            sock.fill()
            self._take(sock, arrived, most)
        self._keep_alive(sock)

    def _take(self, sock: BufferedSocket, arrived: list[Message], most: int) -> None:
        """Cut out messages; hand everything else to paho."""
        left = most
        while left > 0:
            before = len(arrived)
            if self._is_open:
                sock.at = cut_messages(sock.buffer, sock.at, left, arrived, v5=self._v5)
                left -= len(arrived) - before
            if left <= 0 or not self._take_one(sock, arrived):
                return
            left -= 1

    def _take_one(self, sock: BufferedSocket, arrived: list[Message]) -> bool:
        """The packet at hand, of any kind; whether it was complete."""
        span = sock.span(v5=self._v5)
        if span is None:
            if sock.has_ended:
                self._hand_over(sock, sock.at)  # which has paho notice
            return False
        kind = sock.buffer[sock.at] & 0xF0
        if kind == PUBLISH and self._is_open:
            arrived.append(read_publish(sock.buffer, sock.at, *span, v5=self._v5))
            sock.at = span[1]
            return True
        check_control(kind, span[1] - sock.at)
        if kind == PINGRESP:
            sock.at = span[1]
            return True
        if (kind == CONNACK) == self._is_open:
            raise BadPacket("a packet before its CONNACK, or a second one")
        self._hand_over(sock, span[1])
        self._is_open = True
        return True

    def _hand_over(self, sock: BufferedSocket, end: int) -> None:
        sock.expose(end)
        code = self.loop_read()
        if code != mqtt.MQTT_ERR_SUCCESS or self.socket() is None:
            raise ConnectionBroken(mqtt.error_string(code or mqtt.MQTT_ERR_CONN_LOST))

    def _keep_alive(self, sock: BufferedSocket) -> None:
        """Ask a broker that has been silent, or has heard nothing, for a keepalive; after another
        without a byte it is gone."""
        now = time.monotonic()
        if self._asked_at is None or sock.heard_at >= self._asked_at:
            self._asked_at = None
            if self.is_connected() and now - min(sock.heard_at, sock.sent_at) >= self.keepalive:
                self._asked_at = now
                sock.send(PINGREQ)
                sock.flush()
        elif now - self._asked_at >= self.keepalive:
            raise self._broken("Keep alive timeout")

    def _broken(self, reason: str, *, offence: bool = False) -> ConnectionBroken:
        if self.buffered is not None:
            self.buffered.abandon()
        return ConnectionBroken(reason, offence=offence)

    def _get_proxy(self) -> Any:
        """Where PySocks is installed, paho asks urllib for one: only if the environment has one."""
        named = any(name.lower() == "mqtt_proxy" for name in os.environ)
        return super()._get_proxy() if named else None

    def _create_socket(self) -> Any:
        """paho's one extension point for another kind of transport."""
        sock = super()._create_socket()
        if not isinstance(sock, socket.socket):
            return sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffered = BufferedSocket(sock, self._agreed(sock))
        return self.buffered

    def _agreed(self, sock: socket.socket) -> Tls | None:
        """TLS, where it is asked for; a socket on which it fails is closed."""
        if self.tls_context is None:
            return None
        sock.setblocking(False)
        try:
            tls = Tls(self.tls_context, self.host)
            tls.agree(sock, self.connect_timeout)
        except BaseException:
            sock.close()
            raise
        return tls


# --- prepare, connect, explain a refusal ---------------------------------------------------------


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
