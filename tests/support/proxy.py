"""A TCP proxy between a client and a broker, for networks that misbehave."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


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
    """One proxied connection."""

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
