"""The socket below a NATS connection: reads ahead within bounds, and writes once per batch (A5)."""

from __future__ import annotations

import select
import socket
import ssl
import time
from contextlib import suppress
from typing import Final

from collector.nats.frames import LARGEST_MESSAGE, LONGEST_LINE, BadFrame, Frame, Patterns, cut

READ_BYTES: Final = 1 << 20  # that wait to be cut apart, unless one message is larger
UNSENT_BYTES: Final = 1 << 22  # beyond which nothing more is read
GOODBYE_SECONDS: Final = 2.0
_PIECE: Final = 1 << 17
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_BROKE: Final = "the connection broke"


class Wire:
    """Bytes in both directions, without waiting unless asked to."""

    def __init__(self, host: str, port: int, limit: float) -> None:
        """Until `begin`, everything waits until this time of the monotonic clock at most."""
        self.ended = ""  # why nothing more is sent or comes; what is here can still be read
        self.heard_at = time.monotonic()
        self._limit = limit
        self._sock: socket.socket = socket.create_connection((host, port), self._left())
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._at = 0
        self._out = bytearray()
        self._patterns: Patterns = {}

    def first_line(self) -> Frame:
        """The server's first line, byte by byte: what follows it may be TLS."""
        line = bytearray()
        while not line.endswith(b"\r\n"):
            self._sock.settimeout(self._left())
            byte = self._sock.recv(1)
            if not byte or len(line) >= LONGEST_LINE:
                raise BadFrame("no first line")
            line += byte
        (frame,), _ = cut(bytes(line), 0, 1, {})
        return frame

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """TLS from now on."""
        self._sock.settimeout(self._left())
        self._sock = context.wrap_socket(self._sock, server_hostname=host)

    def begin(self) -> None:
        """Never wait from now on."""
        self._sock.setblocking(False)

    def send(self, data: bytes) -> None:
        """Collect; `flush` sends."""
        if not self.ended:
            self._out += data

    def flush(self) -> None:
        """Send what was collected, as far as the network takes it."""
        try:
            while self._out:
                sent = self._sock.send(self._out)
                del self._out[:sent]
        except _NOT_NOW:
            return
        except OSError as error:
            self._end(error.strerror or _BROKE)

    def wait(self, timeout_seconds: float) -> bool:
        """Until something can be read, or sent if something waits for that; whether it can."""
        if len(self._out) > UNSENT_BYTES:
            return False
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
        return bool(poller.poll(max(0, round(timeout_seconds * 1000))))

    def fill(self) -> None:
        """Read what the network has, as far as there is room for it."""
        unread = self._buffer[self._at :]
        room = READ_BYTES + (LARGEST_MESSAGE if len(unread) >= READ_BYTES else 0) - len(unread)
        parts = [unread]
        try:
            while room > 0:
                part = self._sock.recv(min(_PIECE, room))
                if not part:
                    self._end("the server closed the connection")
                    break
                parts.append(part)
                room -= len(part)
        except _NOT_NOW:
            pass
        except OSError as error:
            self._end(error.strerror or _BROKE)
        if len(parts) > 1:
            self.heard_at = time.monotonic()
        self._buffer, self._at = b"".join(parts), 0

    def take(self, most: int) -> list[Frame]:
        """At most so many frames of what was read. Raises `BadFrame`."""
        frames, self._at = cut(self._buffer, self._at, most, self._patterns)
        return frames

    def close(self) -> None:
        """Send what was collected, and close."""
        with suppress(OSError):
            self._sock.settimeout(GOODBYE_SECONDS)
            self._sock.sendall(self._out)
        self.abandon()

    def abandon(self) -> None:
        """Close without a word."""
        self._out.clear()
        self._sock.close()

    def _left(self) -> float:
        left = self._limit - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("timed out")
        return left

    def _end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._out.clear()
