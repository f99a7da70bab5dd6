"""The network between a program and a broker: a scripted MQTT broker and a proxy."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import faults.proxy
from collector.links.mqtt import PahoLink
from faults.proxy import CHUNK, Connection
from protocol_spec.programs.settings import Credentials, parse_broker
from testbed.brokers import Broker, mqtt_packet, mqtt_text

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 1, 2, 3, 4, 8, 9
PINGREQ, PINGRESP, DISCONNECT = 12, 13, 14
RECEIVE_MAXIMUM: Final = 0x21
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A


@dataclass(frozen=True, slots=True)
class Packet:
    kind: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Published:
    """A PUBLISH with QoS 1 as it came."""

    topic: str
    mid: int
    payload: bytes


def frame(kind: int, body: bytes = b"", flags: int = 0) -> bytes:
    return mqtt_packet(kind << 4 | flags, body)


class Wire:
    """One client's connection, seen from the broker."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")
        self.version = 0
        self.keepalive = 0

    def read(self) -> Packet | None:
        """The next packet, or None when the client is gone."""
        with suppress(ConnectionError):
            head = self._file.read(1)
            if head:
                length, shift = 0, 0
                while True:
                    digit = self._file.read(1)[0]
                    length |= (digit & 127) << shift
                    shift += 7
                    if digit < 128:
                        break
                return Packet(head[0] >> 4, head[0] & 15, self._file.read(length))
        return None

    def send(self, *frames: bytes) -> None:
        """Bytes to the client; one that is gone does not matter."""
        with suppress(OSError):
            self._sock.sendall(b"".join(frames))

    def hang_up(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the file behind the socket."""
        self._file.close()

    def expect_connect(self) -> bool:
        """Read the CONNECT and note the client's protocol level and keepalive."""
        packet = self.read()
        if packet is None or packet.kind != CONNECT:
            return False
        name = 2 + struct.unpack_from("!H", packet.body)[0]
        self.version = packet.body[name]
        self.keepalive = struct.unpack_from("!H", packet.body, name + 2)[0]
        return True

    def connack(
        self, code: int = 0, *, receive_maximum: int | None = None, sharing: bool = True
    ) -> None:
        properties = b"" if sharing else bytes([SHARED_SUBSCRIPTION_AVAILABLE, 0])
        if receive_maximum is not None:
            properties += struct.pack("!BH", RECEIVE_MAXIMUM, receive_maximum)
        tail = bytes([len(properties)]) + properties if self.version == 5 else b""
        self.send(frame(CONNACK, bytes([0, code]) + tail))

    def puback(self, mid: int, reason: int = 0) -> None:
        """Acknowledge a publish; a reason only exists in MQTT 5."""
        self.send(frame(PUBACK, struct.pack("!H", mid) + (bytes([reason]) if reason else b"")))

    def suback(self, packet: Packet) -> None:
        self.send(frame(SUBACK, packet.body[:2] + (b"\0" if self.version == 5 else b"") + b"\0"))

    def publish(self, topic: str | bytes, payload: bytes) -> None:
        """A message to the client, QoS 0."""
        self.send(self.publication(topic, payload))

    def publication(self, topic: str | bytes, payload: bytes) -> bytes:
        """The same, as bytes."""
        return frame(PUBLISH, mqtt_text(topic) + (b"\0" if self.version == 5 else b"") + payload)

    def published(self, packet: Packet) -> Published:
        """What a PUBLISH from the client says."""
        (size,) = struct.unpack_from("!H", packet.body)
        topic = packet.body[2 : 2 + size].decode()
        (mid,) = struct.unpack_from("!H", packet.body, 2 + size)
        start = 4 + size
        if self.version == 5:
            start += 1 + packet.body[start]
        return Published(topic, mid, packet.body[start:])

    def serve(self, on_publish: Callable[[Published], None]) -> None:
        """Behave like a broker until the client leaves; what to do with publishes is the test's."""
        while (packet := self.read()) is not None and packet.kind != DISCONNECT:
            if packet.kind == SUBSCRIBE:
                self.suback(packet)
            elif packet.kind == PINGREQ:
                self.send(frame(PINGRESP))
            elif packet.kind == PUBLISH:
                on_publish(self.published(packet))


Script = Callable[[Wire], None]


class Peer:
    """Listens on a port of its own and plays the script for every client that connects."""

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._wires: list[Wire] = []
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    @property
    def url(self) -> str:
        return f"mqtt{'s' if self._context else ''}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for wire in self._wires:
            wire.hang_up()
        for thread in self._threads:
            thread.join(20)
        self._listener.close()
        assert not self._failures, self._failures

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._start(partial(self._play, sock))

    def _play(self, plain: socket.socket) -> None:
        sock = self._context.wrap_socket(plain, server_side=True) if self._context else plain
        with sock:
            wire = Wire(sock)
            self._wires.append(wire)
            try:
                self._script(wire)
            except BaseException as failure:  # noqa: BLE001 - shown when the test ends
                self._failures.append(failure)
            finally:
                wire.close()


# --- a network that misbehaves, and a plain client ------------------------------------------------


class Proxy(faults.proxy.Proxy):
    """Records what clients send; with `one_by_one` it forwards single bytes."""

    def __init__(self, upstream: int, *, one_by_one: bool = False) -> None:
        super().__init__(upstream, chunk=1 if one_by_one else CHUNK, record=True)

    def hush(self) -> Connection:
        """Make all connections half-open; the latest of them."""
        self.go_half_open()
        return self.connections[-1]


def paho(broker: Broker) -> Callable[[str, bool], PahoLink]:
    """Connects under a name, with a persistent session or without."""

    def connect(name: str, persistent: bool) -> PahoLink:
        link = PahoLink(
            parse_broker(broker.url), Credentials(), client_id=name, persistent=persistent
        )
        link.connect()
        return link

    return connect
