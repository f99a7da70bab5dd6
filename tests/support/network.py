"""The network between a program and a broker: a scripted MQTT broker, a proxy, links, sources."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, Self

from collector.links import Link, Message, Source, Will
from collector.links.mqtt import PahoLink, Subscription
from collector.links.stream import StreamConnector
from collector.settings import StreamAddress
from protocol_spec.programs.memory_broker import MemoryBroker, MemoryLink
from protocol_spec.programs.settings import Credentials, parse_broker
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Broker, Nats
from tests.support.brokers import SharedBrokers

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
    length, rest = b"", len(body)
    while True:
        rest, digit = divmod(rest, 128)
        length += bytes([digit | (128 if rest else 0)])
        if not rest:
            return bytes([kind << 4 | flags]) + length + body


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("!H", len(raw)) + raw


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
        return frame(PUBLISH, text(topic) + (b"\0" if self.version == 5 else b"") + payload)

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


# --- a TCP proxy for networks that misbehave ------------------------------------------------------


class Proxy:
    """Passes bytes on, whole or one by one, until told to fall silent.

    `hush` is a half-open connection: what the client sends is still taken, nothing is passed on,
    nothing is closed. Connections made later are served again. `hold` stops the latest connection
    for a while: nothing is lost, and all is passed on at `release`. `upstream` may be changed.
    """

    def __init__(self, upstream: int, *, one_by_one: bool = False) -> None:
        self.upstream = upstream
        self._one_by_one = one_by_one
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections: list[Passage] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._accept)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        self._listener.close()
        for passage in self.connections:
            passage.close()

    def hush(self) -> Passage:
        """Make the latest connection half-open."""
        passage = self.connections[-1]
        passage.silent.set()
        return passage

    def hold(self) -> None:
        """Pass nothing on over the latest connection, in either direction."""
        self.connections[-1].moving.clear()

    def release(self) -> None:
        """Pass on what was held, and what comes."""
        self.connections[-1].moving.set()

    def wait_for_connections(self, count: int, timeout: float = 30.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.connections) >= count, timeout)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.upstream))
            except OSError:
                client.close()
                continue
            with self._changed:
                self.connections.append(Passage(client, broker, one_by_one=self._one_by_one))
                self._changed.notify_all()


class Passage:
    def __init__(
        self, client: socket.socket, broker: socket.socket, *, one_by_one: bool = False
    ) -> None:
        self.silent = threading.Event()
        self.moving = threading.Event()
        self.moving.set()
        self.client_left = threading.Event()
        self.from_client = b""
        self.in_silence = b""
        self._one_by_one = one_by_one
        self._sockets = (client, broker)
        for sock in self._sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = [
            threading.Thread(target=self._pump, args=(client, broker)),
            threading.Thread(target=self._pump, args=(broker, client)),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self.moving.set()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
        for sock in self._sockets:
            sock.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if source is self._sockets[0]:
                    self._note(data)
                self.moving.wait()
                if not self.silent.is_set():
                    self._pass_on(data, sink)
        if source is self._sockets[0]:
            self.client_left.set()
        if not self.silent.is_set():
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def _note(self, data: bytes) -> None:
        self.from_client += data
        if self.silent.is_set():
            self.in_silence += data

    def _pass_on(self, data: bytes, sink: socket.socket) -> None:
        for piece in (data[i : i + 1] for i in range(len(data))) if self._one_by_one else (data,):
            sink.sendall(piece)


# --- links: to a broker in memory, or to a real one over a line to be cut -------------------------


PATIENCE_SECONDS = 60.0


class Ground(Protocol):
    """A broker to connect to, and a way to end a connection without a goodbye."""

    def connect(self, name: str, *, will: Will | None = None, persistent: bool = True) -> Link: ...

    def cut(self, link: Link) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(
        self, name: str, *, will: Will | None = None, persistent: bool = True
    ) -> MemoryLink:
        return self._broker.connect(name, will=will, persistent=persistent)

    def cut(self, link: Link) -> None:
        assert isinstance(link, MemoryLink)
        link.end("the line was cut")


class AtBroker:
    """Every link has a line of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stack = ExitStack()
        self._lines: dict[int, Proxy] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, name: str, *, will: Will | None = None, persistent: bool = True) -> PahoLink:
        line = self._stack.enter_context(Proxy(self._broker.port))
        link = PahoLink(
            parse_broker(line.url),
            Credentials(),
            client_id=name,
            will=will,
            persistent=persistent,
        )
        self._stack.callback(link.close)
        link.connect()
        self._lines[id(link)] = line
        return link

    def cut(self, link: Link) -> None:
        line = self._lines[id(link)]
        line.wait_for_connections(1)
        line.connections[-1].close()
        wait_until_lost(link)


def wait_until_lost(link: Link) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while link.lost is None:
        assert time.monotonic() < limit
        link.step(0.1)


def subscribe(link: Link, topic_filter: str, *, qos: int = 1) -> list[Message]:
    """Subscribe, and wait for the broker's word; the messages that came before it."""
    wanted, arrived = link.granted + 1, list[Message]()
    link.subscribe([topic_filter], qos=qos)
    limit = time.monotonic() + PATIENCE_SECONDS
    while link.granted < wanted:
        assert time.monotonic() < limit
        assert link.lost is None, link.lost
        arrived += link.step(0.1)
    return arrived


def receive(link: Link, count: int) -> list[Message]:
    """That many messages, none of them acknowledged."""
    arrived: list[Message] = []
    limit = time.monotonic() + PATIENCE_SECONDS
    while len(arrived) < count:
        assert time.monotonic() < limit, arrived
        assert link.lost is None, link.lost
        arrived += link.step(0.1)
    return arrived


def publish(link: Link, topic: str, payload: bytes, *, retain: bool = False) -> str | None:
    """Publish, and wait for the broker's answer: None, or why it refused."""
    number = link.publish(topic, payload, retain=retain)
    limit = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < limit:
        assert link.lost is None, link.lost
        link.step(0.1)
        answers = link.answers()
        if number in answers:
            return answers[number]
    raise AssertionError("the broker did not answer")


# --- sources: a broker in memory, mosquitto, and NATS's own stream --------------------------------


class SourceGround(Protocol):
    """Workers of one namespace at one broker, and a device."""

    whole: bool

    def source(self, name: str, *, again: bool = False) -> Source: ...

    def send(self, topic: str, payload: bytes) -> None: ...

    def close(self) -> None: ...


class Shared:
    """Shared subscriptions, of MQTT 5 or in memory."""

    whole = False

    def __init__(self, namespace: str, connect: Callable[[str, bool], Link]) -> None:
        self._namespace = namespace
        self._connect = connect
        self._device = connect(random_client_id("device"), False)
        self._made: list[Link] = [self._device]

    def source(self, name: str, *, again: bool = False) -> Subscription:
        """Ready to be dealt to: the broker has confirmed what it subscribed to, or knew it."""
        link = self._connect(f"{self._namespace}-{name}", True)
        self._made.append(link)
        source = Subscription(link, self._namespace, shared=True)
        limit = time.monotonic() + PATIENCE_SECONDS
        while link.granted < 3 and not again:
            assert time.monotonic() < limit
            assert source.step(0.05) == []
        return source

    def send(self, topic: str, payload: bytes) -> None:
        assert publish(self._device, topic, payload) is None

    def close(self) -> None:
        for link in self._made:
            link.close()


class Streamed:
    """NATS's own stream, whose consumer delivers again after a second."""

    whole = True

    def __init__(self, namespace: str, broker: Nats) -> None:
        here = StreamAddress(False, "127.0.0.1", broker.stream_port)
        self._connect = StreamConnector(lambda: [here], Credentials(), namespace, ack_seconds=1)
        self._device = paho(broker)(random_client_id("device"), False)
        self._made: list[Source] = []

    def source(self, name: str, *, again: bool = False) -> Source:  # noqa: ARG002 - nothing is kept for one worker
        self._made.append(self._connect())
        return self._made[-1]

    def send(self, topic: str, payload: bytes) -> None:
        assert publish(self._device, topic, payload) is None

    def close(self) -> None:
        self._device.close()
        for source in self._made:
            source.close()


def paho(broker: Broker) -> Callable[[str, bool], PahoLink]:
    def connect(name: str, persistent: bool) -> PahoLink:
        link = PahoLink(
            parse_broker(broker.url), Credentials(), client_id=name, persistent=persistent
        )
        link.connect()
        return link

    return connect


def nats_with_a_stream(brokers: SharedBrokers) -> Nats:
    """The NATS that tests share; it makes its stream for the first client."""
    found = brokers.get("nats")
    assert isinstance(found, Nats)
    paho(found)(random_client_id("first"), False).close()
    return found


def source_in_memory(namespace: str) -> Shared:
    broker = MemoryBroker()
    return Shared(namespace, lambda name, persistent: broker.connect(name, persistent=persistent))


def receive_each(sources: list[Source], count: int) -> list[list[Message]]:
    """What each of them gets, that many together; nothing is acknowledged."""
    found: list[list[Message]] = [[] for _ in sources]
    limit = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, found)) < count:
        assert time.monotonic() < limit, found
        for source, got in zip(sources, found):
            assert source.lost is None
            got += [m for m in source.step(0.05) if "/drain/" not in (m.topic or "")]
    return found


def until(source: Source, done: Callable[[], bool], moment: float | None = None) -> None:
    """Let a source work, acknowledging only its own markers, until something is so."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < limit
        assert source.lost is None
        if moment is not None:
            source.mark(moment)
        source.acknowledge([m for m in source.step(0.05) if "/drain/" in (m.topic or "")])
