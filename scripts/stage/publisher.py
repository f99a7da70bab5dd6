"""The messages of many devices through one connection: plain MQTT 3.1.1, at full speed.

The broker must let the connection publish on every device's topic. It is written over a socket
because a client library takes several times as long for a message as the broker does.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from protocol_spec.programs.address import BrokerUrl, parse_broker
from stage.processes import StageError

WINDOW: Final = 1_000  # messages that may wait for the broker's answer
GROUP: Final = 100  # messages of one write to the socket; WINDOW is a multiple of it
ANSWER_SECONDS: Final = 60.0
KEEPALIVE_SECONDS: Final = 600
ANY_NAME: Final = ""  # the broker makes one up

Message = tuple[str, bytes]  # topic and payload
Progress = Callable[[int], None]

_CONNECT, _PUBLISH_QOS_1, _SUBSCRIBE, _DISCONNECT = 0x10, 0x32, 0x82, 0xE0
_ACCEPTED: Final = b"\x20\x02\0\0"  # a CONNACK without a session from before
_ANSWER_BYTES: Final = 4  # of a PUBACK


def make_session(
    url: str, client_id: str, topic_filter: str, *, ca_file: Path | None = None
) -> None:
    """A persistent session that collects messages while nobody reads."""
    with connected(url, client_id, clean=False, ca_file=ca_file) as sock:
        body = struct.pack(">H", 1) + _text(topic_filter) + b"\1"
        sock.sendall(_packet(_SUBSCRIBE, body))
        sock.recv(5)
        sock.sendall(_packet(_DISCONNECT, b""))


def publish(
    url: str,
    messages: Iterable[Message],
    progress: Progress = lambda _: None,
    *,
    ca_file: Path | None = None,
    answer_seconds: float = ANSWER_SECONDS,
) -> int:
    """Publish everything with QoS 1; returns how many once the broker has answered for all."""
    number, left = 0, iter(messages)
    with connected(url, ca_file=ca_file, answer_seconds=answer_seconds) as sock:
        answers = _Answers(sock)
        while group := list(islice(left, GROUP)):
            answers.wait_until_unanswered(WINDOW - len(group))
            sock.sendall(b"".join(_publishing(group, number)))
            number += len(group)
            answers.unanswered += len(group)
            progress(len(group))
        answers.wait_until_unanswered(0)
        sock.sendall(_packet(_DISCONNECT, b""))
    return number


def _publishing(group: Sequence[Message], number: int) -> Iterator[bytes]:
    for place, (topic, payload) in enumerate(group, start=number):
        packet_id = struct.pack(">H", place % 65_535 + 1)
        yield _packet(_PUBLISH_QOS_1, _text(topic) + packet_id + payload)


class _Answers:
    """The broker's answers, which are all alike. Those of a whole window fit into a socket's
    buffer, so nobody waits for us while we write."""

    def __init__(self, sock: socket.socket) -> None:
        self.unanswered = 0
        self._sock = sock
        self._part = 0  # bytes of an answer that is not complete yet

    def wait_until_unanswered(self, most: int) -> None:
        """Until at most so many messages wait for their answer."""
        while self.unanswered > most:
            received = len(self._sock.recv(1 << 16))
            if not received:
                raise ConnectionError("the broker closed the connection")
            answers, self._part = divmod(received + self._part, _ANSWER_BYTES)
            self.unanswered -= answers


@contextmanager
def connected(
    url: str,
    client_id: str = ANY_NAME,
    *,
    clean: bool = True,
    ca_file: Path | None = None,
    answer_seconds: float = ANSWER_SECONDS,
) -> Iterator[socket.socket]:
    """A connection that the broker has accepted; any failure on it is a StageError."""
    broker = parse_broker(url)
    try:
        with _socket(broker, ca_file, answer_seconds) as sock:
            keepalive = struct.pack(">H", KEEPALIVE_SECONDS)
            head = _text("MQTT") + bytes([4, 2 if clean else 0]) + keepalive
            sock.sendall(_packet(_CONNECT, head + _text(client_id)))
            if sock.recv(4) != _ACCEPTED:
                raise ConnectionError("the broker refused the connection")
            yield sock
    except OSError as error:
        raise StageError(f"publishing to {url} failed: {error}") from None


def _socket(broker: BrokerUrl, ca_file: Path | None, answer_seconds: float) -> socket.socket:
    plain = socket.create_connection((broker.host, broker.port), answer_seconds)
    if not broker.tls:
        return plain
    context = ssl.create_default_context(cafile=ca_file)
    return context.wrap_socket(plain, server_hostname=broker.host)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def _packet(kind: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while True:
        size, digit = size >> 7, size & 127
        length.append(digit | (128 if size else 0))
        if not size:
            return bytes([kind]) + bytes(length) + body
