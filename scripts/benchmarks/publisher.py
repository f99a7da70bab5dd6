"""Reports at full speed: plain MQTT 3.1.1 over a socket, so that publishing measures nothing."""

from __future__ import annotations

import socket
import struct
import threading

from protocol_spec import Manifest, Report, Topics, digest8


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def _packet(kind: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while True:
        size, digit = size >> 7, size & 127
        length.append(digit | (128 if size else 0))
        if not size:
            return bytes([kind]) + bytes(length) + body


def _connect(port: int, client: str, *, clean: bool) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    flags = bytes([4, 2 if clean else 0])
    sock.sendall(_packet(0x10, _text("MQTT") + flags + struct.pack(">H", 600) + _text(client)))
    if sock.recv(4)[3:] != b"\0":
        raise RuntimeError("the broker refused the connection")
    return sock


def make_session(port: int, client: str, topic_filter: str) -> None:
    """A persistent session that collects while nobody reads."""
    with _connect(port, client, clean=False) as sock:
        sock.sendall(_packet(0x82, struct.pack(">H", 1) + _text(topic_filter) + b"\1"))
        sock.recv(5)
        sock.sendall(b"\xe0\0")


def publish(
    port: int, campaign: Manifest, count: int, window: int = 1000, *, number: int = 0
) -> None:
    """A report of one round from each of `count` devices, QoS 1, at most `window` unanswered."""
    topics, form = Topics(campaign.campaign), campaign.body_formats[0]
    body = bytes(form.length)
    payload = Report(digest8(campaign), number, 0, body).encode()
    free = threading.Semaphore(window)
    with _connect(port, "publisher", clean=True) as sock:
        reader = threading.Thread(target=_count_answers, args=(sock, count, free))
        reader.start()
        waiting = []
        for i in range(count):
            free.acquire()
            head = _text(topics.report(f"device-{i}")) + struct.pack(">H", i % 65_535 + 1)
            waiting.append(_packet(0x32, head + payload))
            if len(waiting) >= 100 or i == count - 1:
                sock.sendall(b"".join(waiting))
                waiting.clear()
        reader.join()


def _count_answers(sock: socket.socket, count: int, free: threading.Semaphore) -> None:
    left, rest = count, 0
    while left:
        received = len(sock.recv(1 << 16)) + rest
        answers, rest = divmod(received, 4)
        left -= answers
        free.release(answers)
