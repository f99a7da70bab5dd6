"""A1, A5: the buffered socket takes all that is there, and never more than it may hold."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from protocol_spec.programs.packets import (
    CUT_BYTES,
    LARGEST_PACKET,
    READ_BYTES,
    UNSENT_BYTES,
    BadPacket,
    BufferedSocket,
    Message,
    read_publish,
)
from tests.support.network import PUBLISH, SUBACK, frame, text


@contextmanager
def pair() -> Iterator[tuple[BufferedSocket, socket.socket]]:
    """A buffered socket, and its peer."""
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        yield BufferedSocket(here), there


def pour(there: socket.socket, data: bytes) -> threading.Thread:
    """Send as fast as the other side takes it, until it takes no more or closes."""

    def send() -> None:
        with suppress(OSError):
            there.sendall(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def front(kind: int, length: int) -> bytes:
    """The fixed header of a packet that is as long as it says."""
    return frame(kind, bytes(length))[:-length]


def test_nothing_is_read_while_packets_wait() -> None:
    """However often it is asked: those who wait are handled first."""
    packet = frame(PUBLISH, text("t") + b"\0")
    with pair() as (sock, there):
        pouring = pour(there, packet * (4 * READ_BYTES // len(packet)))
        while len(sock.buffer) < READ_BYTES:
            assert sock.wait(20)
            sock.fill()
        for _ in range(20):
            sock.fill()
            assert len(sock.buffer) == READ_BYTES
        there.shutdown(socket.SHUT_RDWR)
        pouring.join(20)


@pytest.mark.parametrize("v5", [False, True])
def test_the_largest_packet_arrives_whole(v5: bool) -> None:
    packet = front(PUBLISH, LARGEST_PACKET - 4) + bytes(LARGEST_PACKET - 4)
    with pair() as (sock, there):
        pouring = pour(there, packet * 2)
        for _ in range(2):
            while (span := sock.span(v5=v5)) is None:
                sock.wait(20)
                sock.fill()
                assert len(sock.buffer) - sock.at <= LARGEST_PACKET + READ_BYTES
            assert span[1] - sock.at == len(packet)
            sock.at = span[1]
        pouring.join(20)


def test_a_larger_one_is_an_offence_where_brokers_were_told() -> None:
    with pair() as (sock, there):
        there.sendall(front(PUBLISH, LARGEST_PACKET))
        sock.fill()
        with pytest.raises(BadPacket, match="a message of"):
            sock.span(v5=True)


@pytest.mark.parametrize("length", [LARGEST_PACKET, 3 * LARGEST_PACKET, 20 * LARGEST_PACKET])
def test_a_larger_one_is_cut_off_where_they_cannot_be(length: int) -> None:
    """Topic and number are kept, so that it can be refused and acknowledged; then all goes on."""
    head = text("some/topic") + b"\1\2"
    later = frame(PUBLISH, text("later") + b"\3\4", flags=2)
    found: list[Message] = []
    with pair() as (sock, there):
        start = bytearray(front(PUBLISH, length))
        start[0] |= 2
        pouring = pour(there, bytes(start) + head + bytes(length - len(head)) + later)
        while len(found) < 2:
            if (span := sock.span(v5=False)) is None:
                assert sock.wait(20)
                sock.fill()
                continue
            found.append(read_publish(sock.buffer, sock.at, *span, v5=False))
            sock.at = span[1]
            assert len(sock.buffer) <= READ_BYTES
        pouring.join(20)
    assert [(m.topic, m.mid) for m in found] == [("some/topic", 0x102), ("later", 0x304)]
    assert len(found[0].payload) == CUT_BYTES - len(start) - len(head)


@pytest.mark.parametrize("kind", [SUBACK, 4, 2, 11, 14])
def test_an_answer_that_is_too_long_is_refused_by_its_first_bytes(kind: int) -> None:
    with pair() as (sock, there):
        there.sendall(front(kind, 5000))
        sock.fill()
        with pytest.raises(BadPacket, match=r"of 500[0-9] bytes"):
            sock.span(v5=True)


@pytest.mark.parametrize("kind", [0, 1, 5, 6, 7, 8, 10, 12, 15])
def test_kinds_that_nobody_asked_for(kind: int) -> None:
    with pair() as (sock, there):
        there.sendall(bytes([kind << 4]))
        sock.fill()
        with pytest.raises(BadPacket, match=f"kind {kind}"):
            sock.span(v5=True)


def test_a_packet_in_single_bytes_is_not_copied_for_each() -> None:
    """What has arrived of it is left alone until it is complete."""
    with pair() as (sock, there):
        there.sendall(front(PUBLISH, 5000))
        sock.fill()
        assert sock.span(v5=True) is None
        kept = sock.buffer
        for _ in range(4999):
            there.sendall(b"\0")
            sock.fill()
            assert sock.buffer is kept
        there.sendall(b"\0")
        sock.fill()
        assert sock.span(v5=True) is not None


def test_a_broker_that_takes_nothing_is_read_no_more() -> None:
    with pair() as (sock, there):
        sock.send(bytes(2 * UNSENT_BYTES))
        sock.flush()
        assert sock.is_congested
        there.sendall(b"\xd0\0")
        assert not sock.wait(0.0)
        while sock.is_congested:
            there.recv(1 << 20)
            sock.flush()
        assert sock.wait(20)
