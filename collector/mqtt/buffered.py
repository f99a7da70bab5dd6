"""A socket that reads ahead and writes once per batch.

paho asks the socket for one byte, then another, then the rest of each packet, and sends each
acknowledgement by itself. Through this one it takes a system call per batch instead.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any, Final

from collector.mqtt.packets import packet_span

READ_SIZE: Final = 1 << 18
GOODBYE_SECONDS: Final = 2.0


class BufferedSocket:
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

    def close(self) -> None:
        """Send what was collected, the goodbye above all, and close."""
        with suppress(OSError):
            self.sock.settimeout(GOODBYE_SECONDS)
            self.sock.sendall(self._out)
        self._out.clear()
        self.sock.close()

    @property
    def readable(self) -> bool:
        """Whether a packet is here already, so that waiting would be wrong."""
        pending = isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0
        return pending or packet_span(self.buffer, self.at) is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)
