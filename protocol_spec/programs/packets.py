"""The packet path: MQTT packets measured in a buffer, TLS without its socket, a buffered socket.

paho reads a packet in three calls and trusts any length in its header: a broker can make it hold a
quarter of a gigabyte, or turn each byte of a SUBACK into kilobytes. So packets are measured here
before paho sees a byte of them. Messages are nearly all that arrives; they are cut out of the
buffer here, in bulk, and paho never sees them.

paho asks the socket for one byte, then another, then the rest of each packet, and sends each
acknowledgement by itself. Through `BufferedSocket`, a turn reads all that has arrived, up to a
bound, over TLS as well, and paho sees only whole packets that were measured before.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

from protocol_spec.limits import MAX_RESULT_BYTES

CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBLISH_QOS_1: Final = 0x32
PINGREQ: Final = b"\xc0\0"
PINGRESP: Final = 0xD0

LONGEST_TOPIC: Final = 65_535
# The longest message of the protocol, its topic, and what a broker may say about it.
LARGEST_PACKET: Final = MAX_RESULT_BYTES + LONGEST_TOPIC + 4096
# How much is read of an even longer message: its topic, and too much for any message.
CUT_BYTES: Final = 1 << 17
# What a broker may send besides messages to a client that publishes with QoS 1 and subscribes to
# one filter at a time, with reasons and properties of MQTT 5.
_LARGEST: Final = {CONNACK: 4096, 0x40: 1024, 0x90: 1024, 0xB0: 1024, PINGRESP: 2, 0xE0: 1024}
_NAMES: Final = {CONNACK: "CONNACK", 0x40: "PUBACK", 0x90: "SUBACK", 0xB0: "UNSUBACK",
                 PINGRESP: "PINGRESP", 0xE0: "DISCONNECT", PUBLISH: "PUBLISH"}  # fmt: skip


class BadPacket(ValueError):
    """The broker sent something that is not MQTT, or that nobody asked for."""


class Message(NamedTuple):
    """What a broker delivered. `topic` is None when it is not UTF-8; `mid` is 0 for QoS 0.

    A tuple, because one is made for every report.
    """

    topic: str | None
    payload: bytes
    retained: bool = False
    mid: int = 0


def packet_span(buffer: bytes, at: int) -> tuple[int, int] | None:
    """(start of the body, end of the packet) at a position, or None while it is incomplete."""
    span = _declared(buffer, at)
    return span if span is not None and span[1] <= len(buffer) else None


def awaited(buffer: bytes, at: int) -> int:
    """How many bytes the incomplete packet at a position has, or 0 while that is not known.

    Raises `BadPacket` if it is not worth waiting for.
    """
    if at >= len(buffer):
        return 0
    kind, span = buffer[at] & 0xF0, _declared(buffer, at)
    size = 0 if span is None else span[1] - at
    if kind != PUBLISH:
        check_control(kind, size)
    return size


def check_control(kind: int, size: int) -> None:
    """Refuse a packet other than PUBLISH if nobody asked for its kind, or if it is too large."""
    largest = _LARGEST.get(kind)
    if kind == PUBLISH:
        raise BadPacket("a message before the connection was accepted")
    if largest is None:
        raise BadPacket(f"a packet of kind {kind >> 4}, which no broker has reason to send")
    if size > largest:
        raise BadPacket(f"a {_NAMES[kind]} of {size} bytes, where {largest} are enough")


def read_publish(buffer: bytes, at: int, body: int, end: int, *, v5: bool) -> Message:
    """A PUBLISH packet that is complete in the buffer."""
    flags = buffer[at]
    start = body + 2 + (buffer[body] << 8 | buffer[body + 1])
    name = buffer[body + 2 : start]
    mid = 0
    if flags & 0x06:
        if flags & 0x04:
            raise BadPacket("a message with a quality of service that was not asked for")
        mid = buffer[start] << 8 | buffer[start + 1]
        start += 2
    if v5:
        start = _after_properties(buffer, start, end)
    if start > end:
        raise BadPacket("a message that is shorter than its parts")
    return Message(_text(name), buffer[start:end], bool(flags & 1), mid)


def _text(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def cut_messages(buffer: bytes, at: int, most: int, arrived: list[Message], *, v5: bool) -> int:
    """Append up to `most` messages that are complete in the buffer; returns where they end.

    It stops at the first packet that is not a message with QoS 1, as all reports are, or not yet
    complete. This is the hot loop, so it handles only that; `read_publish` handles the rest.
    """
    last, make = len(buffer), tuple.__new__
    for _ in range(most):
        if last - at < 4 or buffer[at] & 0xF7 != PUBLISH_QOS_1:
            return at
        size, body = buffer[at + 1], at + 2
        if size >= 128:
            size, body = size + (buffer[body] << 7) - 128, at + 3
        end = body + size
        if end > last or (body == at + 3 and buffer[at + 2] >= 128):
            return at
        start = body + 2 + (buffer[body] << 8 | buffer[body + 1])
        payload = start + 2
        if v5 and payload < end and not buffer[payload]:  # no properties
            payload += 1
        elif v5 or payload > end:
            arrived.append(read_publish(buffer, at, body, end, v5=v5))
            at = end
            continue
        mid = buffer[start] << 8 | buffer[start + 1]
        topic = _text(buffer[body + 2 : start])
        arrived.append(make(Message, (topic, buffer[payload:end], False, mid)))
        at = end
    return at


def acknowledgement(mids: list[int]) -> bytes:
    """PUBACK packets, the same in MQTT 3.1.1 and 5."""
    packed = struct.pack(f">{len(mids)}H", *mids)
    packets = bytearray(b"\x40\x02\0\0" * len(mids))
    packets[2::4], packets[3::4] = packed[0::2], packed[1::2]
    return bytes(packets)


def _declared(buffer: bytes, at: int) -> tuple[int, int] | None:
    """(start of the body, end of the packet) as its header says; None if that is incomplete."""
    length = shift = 0
    place = at + 1
    while place < len(buffer):
        digit = buffer[place]
        length |= (digit & 127) << shift
        place += 1
        if digit < 128:
            return place, place + length
        shift += 7
        if shift > 21:
            raise BadPacket("a packet whose length has more than four bytes")
    return None


def _after_properties(buffer: bytes, at: int, end: int) -> int:
    span = packet_span(buffer[at - 1 : end], 0)  # a length is coded like that of a packet
    if span is None:
        raise BadPacket("a message with incomplete properties")
    return at - 1 + span[1]


# --- TLS without its socket ----------------------------------------------------------------------


RECORD_BYTES: Final = 1 << 14  # the largest record of TLS


class Tls:
    """One connection's encryption, over bytes in memory."""

    def __init__(
        self, context: ssl.SSLContext, host: str, session: ssl.SSLSession | None = None
    ) -> None:
        self.has_ended = False  # the other side has closed it
        self._arrived, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._arrived, self._outgoing, server_hostname=host, session=session
        )

    @property
    def session(self) -> ssl.SSLSession | None:
        """What the next connection can resume, without certificates. Not of TLS 1.2, where anyone
        on the way sees it, and could tell from it that two connections are one device's."""
        return self._tls.session if self._tls.version() == "TLSv1.3" else None

    def opened(self, arrived: bytes) -> bytes:
        """The plain text of these bytes; of an incomplete record, nothing yet."""
        self._arrived.write(arrived)
        read, records = self._tls.read, []
        try:
            while record := read(RECORD_BYTES):
                records.append(record)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        return b"".join(records)

    def sealed(self, plain: bytearray) -> bytes:
        """The bytes to send for it, with those of TLS itself. What was sealed is removed from
        `plain`: all, unless both sides are changing their keys."""
        with suppress(ssl.SSLWantReadError):
            while plain:
                del plain[: self._tls.write(plain)]
        return self._outgoing.read()

    def agree(self, sock: socket.socket, seconds: float) -> None:
        """The handshake, within a limit that no number of small pieces can extend."""
        limit = time.monotonic() + seconds
        while not self._handshake(sock, limit):
            _poll(sock, select.POLLIN, limit)
            arrived = sock.recv(RECORD_BYTES)
            if arrived:
                self._arrived.write(arrived)
            else:
                self._arrived.write_eof()

    def _handshake(self, sock: socket.socket, limit: float) -> bool:
        """As far as it goes now; whether it is done. A failure is sent to the other side, too."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send(sock, limit)
            return False
        except ssl.SSLError:
            with suppress(OSError):
                self._send(sock, limit)
            raise
        self._send(sock, limit)
        return True

    def _send(self, sock: socket.socket, limit: float) -> None:
        left = self._outgoing.read()
        while left:
            _poll(sock, select.POLLOUT, limit)
            left = left[sock.send(left) :]


def _poll(sock: socket.socket, wanted: int, limit: float) -> None:
    left = limit - time.monotonic()
    poller = select.poll()
    poller.register(sock, wanted)
    if left <= 0 or not poller.poll(left * 1000):
        raise TimeoutError("it did not answer in time")


# --- the buffered socket -------------------------------------------------------------------------


READ_BYTES: Final = 1 << 19  # a batch of reports that wait to be handled, or one large packet
UNSENT_BYTES: Final = 1 << 22  # beyond which nothing is read: answers would grow without bound
CLOSE_SECONDS: Final = 2.0
PIECE_BYTES: Final = 1 << 16  # of one system call, to spare a small device's memory


class BufferedSocket:
    """A non-blocking socket that reads ahead and collects what is written until `flush`.

    paho sees only whole packets, and only those that are handed to it with `expose`.
    """

    def __init__(self, sock: socket.socket, tls: Tls | None = None) -> None:
        self.sock = sock
        self._tls = tls
        self.buffer = b"" if tls is None else tls.opened(b"")  # what came with the handshake
        self.at = 0
        self.heard_at = self.sent_at = time.monotonic()  # the last byte in either direction
        self._incoming = bytearray()  # not in the buffer yet: its first packet is incomplete
        self._wanted = 0  # bytes of that packet, if known
        self._skipped = 0  # bytes still to come of a message that was cut off
        self._exposed = 0
        self._ended = tls is not None and tls.has_ended
        self._out = bytearray()
        self._sealed = bytearray()  # what the network is to take next, over TLS encrypted

    def wait(self, timeout_seconds: float) -> bool:
        """Until something can be read, or sent if something is unsent; whether it can."""
        if self.is_congested:
            wanted = select.POLLOUT
        elif packet_span(self.buffer, self.at) is not None:  # waiting would be wrong
            return True
        else:
            wanted = select.POLLIN | (select.POLLOUT if self._sealed else 0)
        poller = select.poll()
        poller.register(self.sock, wanted)
        return bool(poller.poll(max(0, round(timeout_seconds * 1000))))

    def fill(self) -> None:
        """Read what the network has, without waiting, as far as there is room."""
        unread = len(self.buffer) - self.at
        room = max(READ_BYTES, self._wanted) - unread - len(self._incoming)
        self._receive(room)
        if unread + len(self._incoming) >= self._wanted:
            self.buffer, self.at = self.buffer[self.at :] + self._incoming, 0
            self._incoming = bytearray()
            self._wanted = self._exposed = 0

    def _receive(self, room: int) -> None:
        """Piece after piece. Bytes of TLS itself count too: no broker can keep this busy. With the
        rest of a record that was incomplete before, it may be more than the room."""
        while room > 0 and not self._ended:
            try:
                part = self.sock.recv(PIECE_BYTES if room > PIECE_BYTES else room)
            except BlockingIOError:
                return
            self.heard_at = time.monotonic()
            self._ended = not part
            room -= len(part)
            if self._tls is not None and part:
                part = self._tls.opened(part)
                self._ended = self._tls.has_ended
            if self._skipped:
                skipped = min(self._skipped, len(part))
                self._skipped -= skipped
                part = part[skipped:]
            self._incoming += part

    def span(self, *, v5: bool) -> tuple[int, int] | None:
        """(start of the body, end) of the next packet, or None while it is incomplete.

        A message longer than any of the protocol is an offence in MQTT 5, where brokers know our
        limit. In MQTT 3.1.1 they do not, and some device may have sent it: it is cut off, so that
        it can be refused and acknowledged like any other, and the rest is never kept.
        """
        found = packet_span(self.buffer, self.at)
        if found is not None:
            return found
        size = awaited(self.buffer, self.at)
        if size > LARGEST_PACKET and v5:
            raise BadPacket(f"a message of {size} bytes, where {LARGEST_PACKET} are allowed")
        self._wanted = min(size, CUT_BYTES) if size > LARGEST_PACKET else size
        if size <= LARGEST_PACKET or len(self.buffer) - self.at < CUT_BYTES:
            return None
        return self._cut(size)

    def _cut(self, size: int) -> tuple[int, int]:
        """The front of a message, whose rest is skipped."""
        end = self.at + CUT_BYTES
        later = self.buffer[end : self.at + size]
        self._skipped = size - CUT_BYTES - len(later)
        self.buffer = self.buffer[:end] + self.buffer[end + len(later) :]
        self._wanted = 0
        body = self.at + 2
        while self.buffer[body - 1] >= 128:  # its length has up to four bytes
            body += 1
        return body, end

    @property
    def has_ended(self) -> bool:
        """Whether the broker has closed the connection; packets may still be unread."""
        return self._ended

    @property
    def is_congested(self) -> bool:
        """Whether the broker reads nothing while it keeps sending."""
        return len(self._out) + len(self._sealed) > UNSENT_BYTES

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

    def flush(self) -> None:
        """Send what was collected, as far as the network takes it."""
        self._seal()
        while self._sealed:
            try:
                sent = self.sock.send(self._sealed)
            except BlockingIOError:
                return
            self.sent_at = time.monotonic()
            del self._sealed[:sent]

    def _seal(self) -> None:
        if self._tls is not None:
            self._sealed += self._tls.sealed(self._out)
        elif self._out:
            self._sealed += self._out
            self._out.clear()

    def close(self) -> None:
        """Send what was collected, DISCONNECT above all, and close."""
        with suppress(OSError):
            self._seal()
            self.sock.settimeout(CLOSE_SECONDS)
            self.sock.sendall(self._sealed)
        self.abandon()

    def abandon(self) -> None:
        """Close without sending anything more."""
        self._out.clear()
        self._sealed.clear()
        self.sock.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)
