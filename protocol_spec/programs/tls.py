"""TLS apart from its socket: whoever owns the socket reads as much as it likes at once.

A socket of Python's `ssl` asks the system twice for every record, and a broker sends nearly every
message as a record of its own. Here what was read goes through memory, hundreds of records at once.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from contextlib import suppress
from typing import Final

RECORD_BYTES: Final = 1 << 14  # what TLS gives at once, at most


class Tls:
    """One connection's encryption, as far as the bytes that are handed to it go."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.has_ended = False  # the other side has said so
        self._arrived, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._outgoing, server_hostname=host)

    def opened(self, arrived: bytes) -> bytes:
        """What these bytes say; of a record that is incomplete, nothing yet."""
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
        """What is to be sent for it, and whatever TLS has to say itself. What could be sealed is
        taken away: all, unless both sides are changing their keys."""
        with suppress(ssl.SSLWantReadError):
            while plain:
                del plain[: self._tls.write(plain)]
        return self._outgoing.read()

    def agree(self, sock: socket.socket, seconds: float) -> None:
        """The handshake, within a time that no number of small pieces can extend."""
        limit = time.monotonic() + seconds
        while not self._handshake(sock, limit):
            _await(sock, select.POLLIN, limit)
            arrived = sock.recv(RECORD_BYTES)
            if arrived:
                self._arrived.write(arrived)
            else:
                self._arrived.write_eof()

    def _handshake(self, sock: socket.socket, limit: float) -> bool:
        """As far as it goes now; whether it is done. The other side hears of a failure, too."""
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
            _await(sock, select.POLLOUT, limit)
            left = left[sock.send(left) :]


def _await(sock: socket.socket, wanted: int, limit: float) -> None:
    """Until something can be read or sent."""
    left = limit - time.monotonic()
    poller = select.poll()
    poller.register(sock, wanted)
    if left <= 0 or not poller.poll(left * 1000):
        raise TimeoutError("it did not answer in time")
