"""A socket that reads ahead and writes once per batch, and never holds more than it must.

paho asks the socket for one byte, then another, then the rest of each packet, and sends each
acknowledgement by itself. Through this one, a turn takes all that has arrived, up to a bound, over
TLS as well, and paho sees only whole packets that were measured before.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from typing import Any, Final

from protocol_spec.programs.packets import (
    CUT_BYTES,
    LARGEST_PACKET,
    BadPacket,
    awaited,
    packet_span,
)
from protocol_spec.programs.tls import Tls

READ_BYTES: Final = 1 << 19  # that wait to be handled, a batch of reports; or one large packet
UNSENT_BYTES: Final = 1 << 22  # beyond which nothing more is read: answers would grow without end
GOODBYE_SECONDS: Final = 2.0
PIECE_BYTES: Final = 1 << 16  # of one system call: small devices need not make room for more


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
        """Until something can be read, or sent if something waits for that; whether it can."""
        if self.is_congested:
            wanted = select.POLLOUT
        elif self._has_packet:
            return True
        else:
            wanted = select.POLLIN | (select.POLLOUT if self._sealed else 0)
        poller = select.poll()
        poller.register(self.sock, wanted)
        return bool(poller.poll(max(0, round(timeout_seconds * 1000))))

    def fill(self) -> None:
        """Read what the network has, without waiting, as far as there is room for it."""
        unread = len(self.buffer) - self.at
        room = max(READ_BYTES, self._wanted) - unread - len(self._incoming)
        self._receive(room)
        if unread + len(self._incoming) >= self._wanted:
            self.buffer, self.at = self.buffer[self.at :] + self._incoming, 0
            self._incoming = bytearray()
            self._wanted = self._exposed = 0

    def _receive(self, room: int) -> None:
        """Piece after piece. What TLS says counts as well where it says nothing to us: nobody can
        keep this busy. Of a record that was incomplete before, there may be more than the room."""
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
            self._incoming += self._after_skipped(part) if self._skipped else part

    def _after_skipped(self, part: bytes) -> bytes:
        skipped = min(self._skipped, len(part))
        self._skipped -= skipped
        return part[skipped:]

    def span(self, *, v5: bool) -> tuple[int, int] | None:
        """(start of the body, end) of the packet at hand, or None while it is incomplete.

        A message longer than any of the protocol is an offence in MQTT 5, where brokers are told
        what we take. In MQTT 3.1.1 they cannot be, and some device may have sent it: it is cut off,
        so that it can be refused and acknowledged like any other, and the rest is never kept.
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
        """Whether the broker has closed the connection; packets may still wait here."""
        return self._ended

    @property
    def is_congested(self) -> bool:
        """Whether the broker takes nothing while it goes on asking for answers."""
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
        """Send what was collected, the goodbye above all, and close."""
        with suppress(OSError):
            self._seal()
            self.sock.settimeout(GOODBYE_SECONDS)
            self.sock.sendall(self._sealed)
        self.abandon()

    def abandon(self) -> None:
        """Close without a word to a broker that deserves none."""
        self._out.clear()
        self._sealed.clear()
        self.sock.close()

    @property
    def _has_packet(self) -> bool:
        """Whether a packet is here already, so that waiting would be wrong."""
        return packet_span(self.buffer, self.at) is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)
