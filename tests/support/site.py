"""The page, really served: a socket, a thread, and plain HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from collector.settings import Address
from collector.web.listen import bound, listening
from collector.web.server import make_server


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass(frozen=True, slots=True)
class Site:
    """A page that is served on this machine."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=30)

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> Reply:
        connection = self.connect()
        try:
            connection.request(method, path, headers=dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()


ANY_PORT = Address("127.0.0.1", 0)


@contextmanager
def serving(
    directory: Path, address: Address = ANY_PORT, token: str | None = None
) -> Iterator[Site]:
    """Serve while the context lasts; the end is as quick as the operator's."""
    sock = listening(address)
    server = make_server(directory, address, token)
    thread = threading.Thread(target=server.run, args=([sock],), name="page")
    thread.start()
    try:
        yield Site(bound(address, sock).port)
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()
        assert not thread.is_alive()
