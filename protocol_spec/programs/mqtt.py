"""What both programs' MQTT links share: paho over the buffered socket, one turn of the network at a
time, and `ClientLink`, a connection with its answers and the reasons for its end.

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
from dataclasses import dataclass
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
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
    """Imports inside get this module without its contents, until they are used."""
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


# --- TLS that is resumed -------------------------------------------------------------------------


@dataclass(slots=True)
class TlsClient:
    """A context, and the session of its last connection, which the next one uses up."""

    context: ssl.SSLContext
    session: ssl.SSLSession | None = None

    def take(self) -> ssl.SSLSession | None:
        session, self.session = self.session, None
        return session


def tls_client(broker: BrokerUrl, credentials: Credentials) -> TlsClient:
    """The same for every connection with the same credentials, until their files change."""
    named = (credentials.ca_file, credentials.cert_file, credentials.key_file)
    files = (Path(name) for name in named if name is not None)
    changed = tuple(file.stat().st_mtime_ns for file in files if file.exists())
    return _tls_client(broker, credentials, changed)


@lru_cache(maxsize=16)
def _tls_client(_broker: BrokerUrl, credentials: Credentials, _changed: object) -> TlsClient:
    return TlsClient(credentials.tls_context())


# --- one turn of the network ---------------------------------------------------------------------


with lazy_import("urllib.request"):
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.exception import MQTTException

Version = MQTTProtocolVersion
MQTT_5: Final = Version.MQTTv5
MQTT_311: Final = Version.MQTTv311
CONNECT_SECONDS: Final = 10.0

# What paho and `packets` raise for malformed packets.
_MALFORMED: Final = (
    BadPacket, MQTTException, LookupError, ValueError, AssertionError, TypeError, struct.error
)  # fmt: skip


class ConnectionBroken(Exception):
    """The connection is of no more use, and why.

    An offence is the broker's: it sent what is not MQTT, or more than anybody asked for.
    """

    def __init__(self, reason: str, *, offence: bool = False) -> None:
        super().__init__(reason)
        self.offence = offence


class BufferedClient(mqtt.Client):
    """paho's client, whose caller runs one turn of the network after the other."""

    def __init__(self, client_id: str, version: Version, **options: Any) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **options
        )
        self.connect_timeout = CONNECT_SECONDS
        self.buffered: BufferedSocket | None = None
        self.tls: TlsClient | None = None
        self._agreement: Tls | None = None
        self._v5 = version == MQTT_5
        self._is_open = False  # the broker has answered CONNECT, with yes or no
        self._asked_at: float | None = None  # when a PINGREQ was sent that nothing followed yet

    def turn(self, timeout_seconds: float, arrived: list[Message], most: int) -> None:
        """Wait for the network, then read what is there, at most `most` packets.

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
            reason = str(error) if isinstance(error, BadPacket) else "a packet that makes no sense"
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
        """Handle the next packet, of any kind; whether it was complete."""
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
        if self.tls is not None and self._agreement is not None:
            self.tls.session = self._agreement.session
        return True

    def _hand_over(self, sock: BufferedSocket, end: int) -> None:
        sock.expose(end)
        code = self.loop_read()
        if code != mqtt.MQTT_ERR_SUCCESS or self.socket() is None:
            raise ConnectionBroken(mqtt.error_string(code or mqtt.MQTT_ERR_CONN_LOST))

    def _keep_alive(self, sock: BufferedSocket) -> None:
        """Ping a broker that has sent, or received, nothing for a keepalive; after another one
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
        if self.tls is None:
            return None
        sock.setblocking(False)
        try:
            self._agreement = tls = Tls(self.tls.context, self.host, self.tls.take())
            tls.agree(sock, self.connect_timeout)
        except BaseException:
            sock.close()
            raise
        return tls


# --- one connection: connect, explain a refusal, publish -----------------------------------------


_UNSUPPORTED_VERSION: Final = 132
_CREDENTIALS: Final = (134, 135, 140)  # bad user name or password, not authorised, bad method


class ClientLink:
    """One connection, run in the caller's thread. MQTT 5, or 3.1.1 where the broker has no more.

    A new connection is a new link, so an answer can never be taken for that of an earlier one.
    `lost` says why there is no connection, or none any more; `session_seconds` is how long the
    broker keeps the session, 0 for a new one that ends with the connection.
    """

    def __init__(
        self,
        broker: BrokerUrl,
        credentials: Credentials,
        *,
        client_id: str,
        keepalive: int,
        version: Version,
        window: int,
        session_seconds: int = 0,
        answer_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self.broker = broker
        self.version = version
        self.window = self._largest_window = window
        self.ready = False
        self.lost: str | None = None
        self._credentials = credentials
        self._client_id = client_id
        self._keepalive = keepalive
        self._session_seconds = session_seconds
        self._answer_seconds = answer_seconds
        self._answer_by = 0.0
        self._connack: ReasonCode | None = None
        self._unanswered: dict[int, str] = {}  # topics, by the message's number
        self._answered: dict[int, str | None] = {}
        self._client = self._new_client()

    def start(self) -> None:
        """Open the socket, or raise `BrokerUnreachable`, and send CONNECT without waiting.

        A connection is given up after two of the client's own keepalives without a byte, and each
        is noticed up to a second late; what paho gets makes one and a half of the nominal one.
        """
        self._connack = None
        self._answer_by = time.monotonic() + self._answer_seconds
        options: dict[str, Any] = {}
        if self.version == MQTT_5:
            properties = self._connect_properties()
            options = {"clean_start": not self._session_seconds, "properties": properties}
        keepalive = max(1, self._keepalive * 3 // 4 - 1)
        try:
            self._client.connect(self.broker.host, self.broker.port, keepalive, **options)
        except ssl.SSLCertVerificationError as error:
            reason = (
                f"its certificate is not trusted: {error.verify_message}. If its authority is not "
                "one of the system's, name it with --ca-file"
            )
            raise unreachable(self.broker, reason) from None
        except (OSError, UnicodeError) as error:  # a host such as "a..b" is a UnicodeError
            text = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            raise unreachable(self.broker, str(text)) from None

    @property
    def free(self) -> int:
        """The number of further publishes that may be unanswered at once."""
        return max(0, self.window - len(self._unanswered))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Hand a message to the broker, QoS 1; its number comes back from `answers`."""
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        self._unanswered[sent.mid] = topic
        return sent.mid

    def answers(self) -> dict[int, str | None]:
        """Publishes the broker has answered since the last call; with its reason if it refused."""
        answered, self._answered = self._answered, {}
        return answered

    def _turn(self, timeout_seconds: float, arrived: list[Message], most: int) -> None:
        """One turn of the network, and what it means for the connection."""
        broken: ConnectionBroken | None = None
        try:
            self._client.turn(timeout_seconds, arrived, most)
        except ConnectionBroken as error:
            broken = error
        if not self.ready:
            self._take_answer(broken)
        elif broken is not None and self.lost is None:
            self.lost = f"the connection was lost ({broken})"

    def _take_answer(self, broken: ConnectionBroken | None) -> None:
        """What the broker answered to CONNECT, if it has."""
        code = self._connack
        if code is None:
            if broken is not None:
                self._fail(self._no_answer(broken))
            elif time.monotonic() >= self._answer_by:
                self._fail("it did not answer in time")
        elif code.value == _UNSUPPORTED_VERSION and self.version == MQTT_5:
            self._start_again()
        elif code.is_failure:
            hint = ""
            if code.value in _CREDENTIALS:
                hint = ". Check --username, --password-file or the client certificate"
            self._fail(f"it refused the connection ({code}){hint}")
        else:
            self.ready = True

    def _no_answer(self, broken: ConnectionBroken) -> str:
        """A connection that ends before any answer, with the likeliest reason."""
        if broken.offence:
            return str(broken)
        hint = ""
        if self.broker.tls and not self._credentials.cert_file:
            hint = "; it may require a client certificate, see --cert-file"
        return f"it closed the connection at once{hint}"

    def _start_again(self) -> None:
        """With MQTT 3.1.1; the end of the first attempt is not this connection's."""
        self.version, self.lost = MQTT_311, None
        self._client = self._new_client()
        try:
            self.start()
        except BrokerUnreachable as error:
            self.lost = str(error)

    def _fail(self, reason: str) -> None:
        self.lost = str(unreachable(self.broker, reason))

    def _connect_properties(self) -> Properties:
        """What an MQTT 5 broker gets with CONNECT: how much it may send at once."""
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.MaximumPacketSize = LARGEST_PACKET
        return properties

    def _new_client(self) -> BufferedClient:
        options = {} if self.version == MQTT_5 else {"clean_session": not self._session_seconds}
        client = BufferedClient(self._client_id, self.version, **options)
        client.max_inflight_messages_set(self._largest_window)
        if self._credentials.username is not None:
            client.username_pw_set(self._credentials.username, self._credentials.password)
        if self.broker.tls:
            client.tls = tls_client(self.broker, self._credentials)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        return client

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        self._connack = code
        most = self._largest_window
        self.window = min(most, getattr(properties, "ReceiveMaximum", most))

    def _on_disconnect(
        self, _client: Any, _data: Any, _flags: Any, code: ReasonCode, _properties: Any
    ) -> None:
        self.lost = f"the connection was lost ({code})"

    def _on_publish(
        self, _client: Any, _data: Any, mid: int, code: ReasonCode, _properties: Any
    ) -> None:
        topic = self._unanswered.pop(mid, "")
        self._answered[mid] = self._refusal(topic, str(code)) if code.is_failure else None

    def _refusal(self, _topic: str, reason: str) -> str:
        return reason


def unreachable(broker: BrokerUrl, reason: str) -> BrokerUnreachable:
    return BrokerUnreachable(f"the broker {broker} cannot be used: {reason}")
