"""The owner's page for a browser on this very machine.

Only loopback is listened on, but every user of the machine can reach that, and so can a web site by
a name that it lets point here (DNS rebinding). So the address holds a random word, compared in
constant time, and a request for any other host name is refused. It only reads: there is nothing
that a request could change.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Final

from edge_client.errors import SettingsError
from edge_client.show.owner_page import POLICY
from protocol_spec import AllomfreeError

HOST: Final = "127.0.0.1"
NAMES: Final = ("127.0.0.1", "localhost")
AT_ONCE: Final = 16
PATIENCE_SECONDS: Final = 10.0
HEADERS: Final = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Render = Callable[[], str]


class PageServer(ThreadingHTTPServer):
    """The page under an address that only its owner is told."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, render: Render, port: int, word: str | None = None) -> None:
        self.render = render
        self.word = word or os.urandom(16).hex()
        self._free = BoundedSemaphore(AT_ONCE)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"port {port} of this machine cannot be used: {error.strerror}. Nothing was drawn "
                "or sent. Choose another: allomfree-edge page --port 0 takes any that is free"
            ) from None

    @property
    def url(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_port}/{self.word}/"

    def server_bind(self) -> None:
        """Without asking for this machine's name, which may take long and is not needed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def process_request(self, request: object, client_address: object) -> None:
        """In a thread of its own; those beyond the limit are hung up on."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        """One connection, and its place given back."""
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is no news, and what a fault says may be private."""


class _Handler(BaseHTTPRequestHandler):
    """One request: the page, or why not."""

    server: PageServer
    timeout = PATIENCE_SECONDS
    server_version = "allomfree-edge"
    sys_version = ""

    def do_GET(self) -> None:
        """The page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """The same without its content."""
        self._answer(with_body=False)

    def log_message(self, *_: object) -> None:
        """Nothing: the address in a log would let others in."""

    def _answer(self, *, with_body: bool) -> None:
        status, text = self._found()
        body = text.encode()
        self.send_response(status)
        kind = "text/html" if status == 200 else "text/plain"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _found(self) -> tuple[int, str]:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in NAMES:
            return 421, "This page answers to 127.0.0.1 and localhost only.\n"
        given = self.path.encode(errors="replace")
        if not hmac.compare_digest(given, f"/{self.server.word}/".encode()):
            return 404, "Open the whole address that `allomfree-edge page` printed.\n"
        try:
            return 200, self.server.render()
        except AllomfreeError as error:
            return 503, f"{error}\n"
