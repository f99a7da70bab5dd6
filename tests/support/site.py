"""The page, really served: a socket, a thread, and plain HTTP."""

from __future__ import annotations

import html
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from collector.data_dir import read_store
from collector.settings import Address
from collector.store import Store
from collector.web.app import Pages
from collector.web.live import Limits
from collector.web.process import bound, listening
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

    def status(self, path: str) -> int:
        """Of an answer whose body may never end."""
        connection = self.connect()
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def stream_outlives(self, seconds: float) -> bool:
        """Whether a new stream of events is still open after so long."""
        connection, until = self.connect(), time.monotonic() + seconds
        try:
            connection.request("GET", "/events")
            response = connection.getresponse()
            while (left := until - time.monotonic()) > 0:
                connection.sock.settimeout(left)
                if not response.readline():
                    return False
        except TimeoutError:
            pass
        finally:
            connection.close()
        return True


ANY_PORT = Address("127.0.0.1", 0)
# As fresh as it can be: a test waits for what changed, not for the next second.
PROMPT = Limits(cache_seconds=0.05, event_seconds=0.05)


@contextmanager
def serving(
    directory: Path,
    address: Address = ANY_PORT,
    token: str | None = None,
    *,
    limits: Limits = PROMPT,
    open_store: Callable[[Path], Store] = read_store,
) -> Iterator[Site]:
    """Serve while the context lasts; the end is as quick as the operator's."""
    sock = listening(address)
    server = make_server(Pages(directory, limits, open_store), address, token)
    thread = threading.Thread(target=server.run, args=([sock],), name="page")
    thread.start()
    try:
        yield Site(bound(address, sock).port)
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()
        assert not thread.is_alive()


def words(page: str) -> str:
    """A page's text as a person reads it."""
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())
