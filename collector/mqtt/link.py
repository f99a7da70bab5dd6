"""The connection to the broker: the only module of the collector that knows paho.

One `Link` is one connection, run in the caller's thread; a new connection is a new `Link`. So a
message can only be acknowledged on the connection that delivered it (I7), there is no network
thread to die unnoticed, and reading no further when the store cannot follow makes the broker wait
instead of filling memory (I13).

paho asks the socket for one byte, then another, then the rest of each packet, and sends each
acknowledgement by itself. The buffered socket below reads and writes once per batch, and reports
are cut out of it without passing through paho at all (`collector.mqtt.packets`).
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from collector.mqtt.packets import (
    PUBLISH,
    Arrived,
    BadPacket,
    acknowledgement,
    packet_span,
    read_publish,
)
from protocol_spec.programs.address import BrokerUrl, Credentials
from protocol_spec.programs.mqtt import (
    CONNECT_SECONDS,
    MQTT_5,
    MQTT_311,
    Version,
    closed_at_once,
    prepare,
    reach,
    refused,
    unreachable,
    wants_older,
)

BATCH: Final = 4_000
READ_SIZE: Final = 1 << 18
LARGEST_PACKET: Final = 1 << 20  # a report has some twenty bytes; a manifest at most 256 KiB
WINDOW: Final = 100
SESSION_SECONDS: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes for us when we vanish."""

    topic: str
    payload: bytes


class _BufferedSocket:
    """A non-blocking socket that reads ahead and collects what is written until `flush`.

    paho sees only whole packets, and only those that are handed to it with `expose`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.at = 0
        self._exposed = 0
        self._ended = False
        self._out = bytearray()

    def fill(self) -> None:
        """Read what the network has, without waiting."""
        try:
            read = self.sock.recv(READ_SIZE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        self._ended = not read
        self.buffer, self.at = self.buffer[self.at :] + read, 0
        self._exposed = 0

    def expose(self, end: int) -> None:
        """Let paho read up to here."""
        self._exposed = end

    def recv(self, size: int) -> bytes:
        """What paho reads: an exposed packet, or the end of the connection."""
        if self.at >= self._exposed:
            if self._ended:
                return b""
            raise BlockingIOError
        part = self.buffer[self.at : min(self.at + size, self._exposed)]
        self.at += len(part)
        return part

    def send(self, data: bytes) -> int:
        """Collect; `flush` sends."""
        self._out += data
        return len(data)

    def flush(self) -> bool:
        """Send what was collected, as far as the network takes it; True when all is sent."""
        while self._out:
            try:
                sent = self.sock.send(self._out)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
            del self._out[:sent]
        return True

    @property
    def readable(self) -> bool:
        """Whether a packet is here already, so that waiting would be wrong."""
        pending = isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0
        return pending or packet_span(self.buffer, self.at) is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


class _Client(mqtt.Client):
    """paho with the buffered socket, its one extension point for another kind of transport."""

    buffered: _BufferedSocket | None = None

    def _create_socket(self) -> Any:
        sock = super()._create_socket()
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.buffered = _BufferedSocket(sock)
            return self.buffered
        return sock


class Link:
    """One connection, its session kept by the broker. MQTT 5, or 3.1.1 where it must be."""

    def __init__(
        self,
        broker: BrokerUrl,
        credentials: Credentials,
        *,
        client_id: str,
        keepalive: int = 60,
        version: Version = MQTT_5,
        will: Will | None = None,
        persistent: bool = True,
    ) -> None:
        self.broker = broker
        self.version = version
        self.lost: str | None = None
        self.session_present = False
        self.granted = 0  # subscriptions the broker said yes to, which need not mean much
        self.denied = 0
        self.window = WINDOW
        self._credentials = credentials
        self._client_id = client_id
        self._keepalive = keepalive
        self._will = will
        self._persistent = persistent
        self._connack: ReasonCode | None = None
        self._arrived: list[Arrived] = []
        self._unanswered: set[int] = set()
        self._answered: dict[int, str | None] = {}
        self._client = self._new_client()

    def connect(self) -> None:
        """Connect and wait for the broker's word. Raises `BrokerUnreachable` saying why not."""
        code = self._attempt()
        if code is not None and wants_older(code, self.version):
            self.version = MQTT_311
            self._client = self._new_client()
            self.lost = None
            code = self._attempt()
        if code is None:
            raise unreachable(self.broker, "it did not answer in time")
        if code.is_failure:
            raise unreachable(self.broker, refused(code))

    def subscribe(self, filters: Iterable[str], *, qos: int = 1) -> None:
        """Ask for messages."""
        for name in filters:
            self._client.subscribe(name, qos=qos)

    def step(self, timeout: float) -> list[Arrived]:
        """Wait up to `timeout`, then read what is there, at most a batch."""
        code = self._turn(timeout)
        if code != mqtt.MQTT_ERR_SUCCESS and self.lost is None:
            self.lost = mqtt.error_string(code)
        arrived, self._arrived = self._arrived, []
        return arrived

    def acknowledge(self, messages: Sequence[Arrived]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit."""
        if self._client.buffered is not None:
            mids = [message.mid for message in messages if message.mid]
            self._client.buffered.send(acknowledgement(mids))
        self._flush()

    @property
    def free(self) -> int:
        """How many more publishes may be unanswered at once."""
        return max(0, self.window - len(self._unanswered))

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        """Hand a message to the broker, QoS 1; its number comes back from `answers`."""
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        self._unanswered.add(sent.mid)
        return sent.mid

    def answers(self) -> dict[int, str | None]:
        """Publishes the broker has answered since the last call; with its reason if it refused."""
        answered, self._answered = self._answered, {}
        return answered

    def close(self) -> None:
        """Say goodbye; the session stays at the broker."""
        if self._client.socket() is not None:
            self._client.disconnect()
            with suppress(OSError):
                self._flush()

    # --- one turn of the network ---------------------------------------------------------------

    def _turn(self, timeout: float) -> int:
        sock = self._client.buffered
        if sock is None or self._client.socket() is None:
            return mqtt.MQTT_ERR_NO_CONN
        wanted = select.POLLIN if self._flush() else select.POLLIN | select.POLLOUT
        try:
            if not sock.readable:
                poller = select.poll()
                poller.register(sock.sock, wanted)
                if not poller.poll(max(0, round(timeout * 1000))):
                    return self._client.loop_misc()
            code = self._read(sock)
        except (BadPacket, IndexError, OSError) as error:
            self.lost = f"the connection broke ({type(error).__name__})"
            return mqtt.MQTT_ERR_PROTOCOL
        return code or self._client.loop_misc()

    def _read(self, sock: _BufferedSocket) -> int:
        """Cut out reports, at most a batch; hand everything else to paho."""
        sock.fill()
        v5 = self.version == MQTT_5
        while len(self._arrived) < BATCH:
            span = packet_span(sock.buffer, sock.at)
            if span is None:
                return self._client.loop_read()  # notices the end of the connection
            if sock.buffer[sock.at] & 0xF0 == PUBLISH:
                self._arrived.append(read_publish(sock.buffer, sock.at, *span, v5=v5))
                sock.at = span[1]
                continue
            sock.expose(span[1])
            code = self._client.loop_read()
            if code != mqtt.MQTT_ERR_SUCCESS or self._client.socket() is None:
                return code
        return mqtt.MQTT_ERR_SUCCESS

    def _flush(self) -> bool:
        try:
            return self._client.buffered is None or self._client.buffered.flush()
        except OSError as error:
            self.lost = error.strerror or "the connection broke"
            return True

    def _attempt(self) -> ReasonCode | None:
        self._connack = None
        reach(self._client, self.broker, self._keepalive, **self._connect_options())
        limit = time.monotonic() + CONNECT_SECONDS
        while time.monotonic() < limit:
            alive = self._turn(0.1) == mqtt.MQTT_ERR_SUCCESS
            if self._connack is not None:
                return self._connack
            if not alive:
                raise unreachable(self.broker, closed_at_once(self.broker, self._credentials))
        return None

    def _connect_options(self) -> dict[str, Any]:
        if self.version != MQTT_5:
            return {}
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = SESSION_SECONDS if self._persistent else 0
        properties.ReceiveMaximum = 5 * BATCH
        properties.MaximumPacketSize = LARGEST_PACKET
        return {"clean_start": not self._persistent, "properties": properties}

    def _new_client(self) -> _Client:
        options: dict[str, Any] = {}
        if self.version != MQTT_5:
            options["clean_session"] = not self._persistent
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            protocol=self.version,
            manual_ack=True,
            **options,
        )
        prepare(client, self.broker, self._credentials, WINDOW)
        if self._will is not None:
            client.will_set(self._will.topic, self._will.payload, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        return client

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        self._connack = code
        self.session_present = bool(_flags.session_present)
        self.window = min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW))

    def _on_disconnect(
        self, _client: Any, _data: Any, _flags: Any, code: ReasonCode, _properties: Any
    ) -> None:
        self.lost = str(code)

    def _on_subscribe(
        self, _client: Any, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Any
    ) -> None:
        refused = [str(code) for code in codes if code.is_failure]
        self.granted += len(codes) - len(refused)
        self.denied += len(refused)
        if refused:
            self.lost = f"the broker refused a subscription ({refused[0]})"

    def _on_publish(
        self, _client: Any, _data: Any, mid: int, code: ReasonCode, _properties: Any
    ) -> None:
        self._unanswered.discard(mid)
        self._answered[mid] = str(code) if code.is_failure else None
