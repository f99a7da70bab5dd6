"""A network between clients and a broker that stalls, slows down, resets and goes half-open."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Final, Self

CHUNK: Final = 65_536
SLOW_CHUNK: Final = 256
RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, with RST


class Proxy:
    """Forwards bytes in both directions, except during a fault.

    A half-open connection stays half-open: its bytes are dropped, and nothing is closed. Later
    connections are served normally, and reach `upstream` as it is then. With `record` each
    connection keeps what its client sent.
    """

    def __init__(self, upstream: int, *, chunk: int = CHUNK, record: bool = False) -> None:
        self.upstream = upstream
        self.bytes_a_second: float | None = None
        self.record = record
        self._chunk = chunk
        self._flowing = threading.Event()
        self._flowing.set()
        self.connections: list[Connection] = []
        self.accepted = 0
        self._changing = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self.reset()
        self._thread.join(5)

    def stall(self) -> None:
        """Forward nothing, and close nothing."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward normally again."""
        self.bytes_a_second = None
        self._flowing.set()

    def reset(self) -> None:
        """End every connection with RST."""
        for connection in self._open():
            connection.reset()

    def go_half_open(self) -> None:
        """Drop everything on the present connections, without closing them."""
        for connection in self._open():
            connection.is_mute = True

    def wait_to_forward(self, size: int) -> None:
        self._flowing.wait()
        rate = self.bytes_a_second
        if rate is not None:
            time.sleep(size / rate)

    def chunk(self) -> int:
        return self._chunk if self.bytes_a_second is None else SLOW_CHUNK

    def _open(self) -> list[Connection]:
        with self._changing:
            self.connections = [each for each in self.connections if each.is_alive]
            return self.connections

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.upstream), 5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            connection = Connection(self, client, broker)
            with self._changing:  # known before a byte passes: no fault may miss it
                self.connections = [*self.connections, connection]
                connection.start()
                self.accepted += 1


class Connection:
    """A thread for each direction, so that one blocked side delays nobody else."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self.is_mute = False
        self.client_left = threading.Event()
        self.from_client = self.in_silence = b""  # only with `record`
        self.sent = self.received = 0  # bytes, by the client
        self._proxy = proxy
        self._sockets = (client, broker)
        self._pumps, self._ending = 2, threading.Lock()
        pairs = ((client, broker), (broker, client))
        self._threads = [
            threading.Thread(target=self._pump, args=pair, daemon=True) for pair in pairs
        ]
        for sock in self._sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def reset(self) -> None:
        self.is_mute = True
        for sock in self._sockets:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                sock.shutdown(socket.SHUT_RD)  # wakes the pump without a packet to the other side
            sock.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(self._proxy.chunk()):
                if source is self._sockets[0]:
                    self.sent += len(data)
                else:
                    self.received += len(data)
                if self._proxy.record and source is self._sockets[0]:
                    self.from_client += data
                    self.in_silence += data if self.is_mute else b""
                self._proxy.wait_to_forward(len(data))
                if not self.is_mute:
                    sink.sendall(data)
        if source is self._sockets[0]:
            self.client_left.set()
        if not self.is_mute:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        with self._ending:
            self._pumps -= 1
            if not self._pumps:
                for sock in self._sockets:
                    sock.close()
