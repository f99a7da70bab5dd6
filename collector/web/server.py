"""The server around the pages: who may connect, for how long, and who may read.

Connections (A9): opening one costs nothing, so holding one gains nothing. A request must be
complete within seconds, an answer must be read, and where no place is left, the connection that
has waited longest is closed, first one of the address that holds most. A request that is being
answered is never cut off. So a complete request is answered, however many are left half sent.
uvicorn's own limit counts idle connections too, and would lock the owner out.

Reading: the page can change nothing, so the guard is about reading. Only GET and HEAD; on loopback
only under a name of this machine, so that no web site can read it through a name of its own (DNS
rebinding); elsewhere only with the token; and a content policy under which no text of a manifest
can become a script.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from collector.settings import Address, Settings
from collector.store import Store
from collector.web.app import AUTHORISED, Pages
from collector.web.live import Limits, origin
from collector.web.render import refusal

LONGEST_HEAD: Final = 16_384
LONGEST_ADDRESS: Final = 2048
BACKLOG: Final = 256  # also how many are accepted in one turn, so that descriptors last
NICE: Final = 10
COOKIE: Final = "allomfree_page"
OPEN: Final = ("/health", "/static/page.css")
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SENTENCE: Final = b"Too many connections are being answered; try again in a few seconds.\n"
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_SENTENCE), _SENTENCE)
)

# --- connections --------------------------------------------------------------------------------


class ConnectionLimiter:
    """All connections of one server, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._admitted: dict[Connection, None] = {}

    def admit(self, connection: Connection) -> bool:
        """Make room for it, if need be by ending another; False if all are being answered."""
        if not self._make_room(connection.origin):
            return False
        self._admitted[connection] = None
        return True

    def release(self, connection: Connection) -> None:
        self._admitted.pop(connection, None)

    def _make_room(self, newcomer: str) -> bool:
        held = Counter(connection.origin for connection in self._admitted)
        if held[newcomer] >= self.limits.connections_of_one:
            return self._end_one(c for c in self._admitted if c.origin == newcomer)
        if len(self._admitted) < self.limits.connections:
            return True
        most = max(held, key=held.__getitem__)
        return self._end_one(c for c in self._admitted if c.origin == most) or self._end_one(
            self._admitted
        )

    def _end_one(self, candidates: Iterable[Connection]) -> bool:
        """End the one that has waited longest, before one whose reader has stopped reading."""
        idle = [c for c in candidates if c.waits or c.is_stuck]
        if not idle:
            return False
        longest = min(idle, key=lambda c: (not c.waits, c.since))
        self.release(longest)
        longest.end()
        return True


class Connection(H11Protocol):
    """One connection, with a deadline whenever it is the other side's turn."""

    def __init__(self, *args: Any, limiter: ConnectionLimiter, **options: Any) -> None:
        super().__init__(*args, **options)
        self.origin = ""
        self.since = 0.0  # when the other side's turn began, by the loop's clock
        self.is_stuck = False  # the other side reads too slowly
        self._limiter = limiter
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether no request is being answered: none is complete yet, or all are answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def end(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._stop_waiting()
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.origin = origin(self.client[0] if self.client else None)
        if self._limiter.admit(self):
            self._wait(self._limiter.limits.request_seconds)
        else:
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limiter.release(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request does not put the deadline off; a whole one ends the wait."""
        super().data_received(data)
        if not self.waits and not self.is_stuck:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """The next request has its own deadline."""
        if not self.is_stuck:
            self._wait(self._limiter.limits.request_seconds)
        super().on_response_complete()  # may begin with a request that came early
        if not self.waits and not self.is_stuck:
            self._stop_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.is_stuck = True
        self._wait(self._limiter.limits.reading_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.is_stuck = False
        self._stop_waiting()
        if self.waits:
            self._wait(self._limiter.limits.request_seconds)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.since = self.loop.time()
            self._deadline = self.loop.call_later(seconds, self.end)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


# --- who may read -------------------------------------------------------------------------------


class Guard:
    """Wraps the application. `token` is None on loopback, where none is needed."""

    def __init__(self, app: ASGIApp, address: Address, token: str | None) -> None:
        self._app = app
        self._hosts = None if token is not None else {*LOCAL, address.host}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse in one sentence; the headers are on both."""
        if scope["type"] != "http":
            return
        scope[AUTHORISED] = self._token is None or _equal(
            _offered(Headers(scope=scope)), self._token
        )
        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            sentence = "This page only answers GET and HEAD; nothing can be changed here."
            answer = refusal(405, sentence).response()
            answer.headers["Allow"] = "GET, HEAD"
            return answer
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            sentence = f"An address may have at most {LONGEST_ADDRESS} characters."
            return refusal(414, sentence).response()
        headers = Headers(scope=scope)
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            sentence = "This page answers only under a name of this machine, such as localhost."
            return refusal(421, sentence).response()
        return None if self._token is None else self._without_token(scope, self._token)

    def _without_token(self, scope: Scope, token: str) -> Response | None:
        """What to answer a request that has not shown the token yet."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        offered = next((value for name, value in query if name == "token"), None)
        if offered is not None and _equal(offered, token):
            return _remember(scope["path"], [(n, v) for n, v in query if n != "token"], token)
        if scope["path"] in OPEN or scope[AUTHORISED]:
            return None
        sentence = (
            "This page needs its access token. Its owner gets a link with it from: "
            "allomfree-collector page --link"
        )
        answer = refusal(401, sentence).response()
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _host(header: str) -> str:
    """The name without its port: localhost:9180, [::1]:9180."""
    name = header.rpartition("]")[0][1:] if header.startswith("[") else header.partition(":")[0]
    return name.lower()


def _offered(headers: Headers) -> str:
    """The token that a request shows, in its header or its cookie."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return bearer.strip()
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


def _equal(offered: str, token: str) -> bool:
    return hmac.compare_digest(offered.encode(), token.encode())


def _remember(path: str, query: list[tuple[str, str]], token: str) -> Response:
    """Keep the token in a cookie, and load the page without it in the address.

    A page that reloads, not a redirect: after a redirect, a browser that followed a link from
    another site would still withhold a SameSite=Strict cookie.
    """
    there = "/" + quote(path.lstrip("/")) + (f"?{urlencode(query)}" if query else "")
    answer = Response("Going on without the token in the address.\n", media_type="text/plain")
    answer.headers["Refresh"] = f"0; url={there}"
    answer.headers["Cache-Control"] = "no-store"
    answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
    return answer


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
            message["headers"] = headers.raw
        await send(message)

    return sending


# --- the server ---------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """Stops at once: open event streams are ended, not waited for."""

    def __init__(self, config: uvicorn.Config, pages: Pages) -> None:
        super().__init__(config)
        self._pages = pages

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pages.hub.stop()
        await super().shutdown(sockets)


def make_server(pages: Pages, address: Address, token: str | None) -> uvicorn.Server:
    """A server for a socket that listens; a token is needed unless it is None."""
    protocol: Any = partial(Connection, limiter=ConnectionLimiter(pages.limits))
    config = uvicorn.Config(
        Guard(pages.application(), address, token),
        log_config=None,
        log_level="critical",  # not a line for every malformed request
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=protocol,
        ws="none",
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        timeout_graceful_shutdown=2,
    )
    return _Server(config, pages)


def serve(
    settings: Settings,
    address: Address,
    token: str | None,
    sock: socket.socket,
    open_store: Callable[[Path], Store],
) -> None:
    """Serve until a signal, at a lower priority than everything else on the machine."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # while it runs, the server takes both
    os.nice(NICE)
    pages = Pages(settings.data_dir, open_store=open_store, broker_dir=settings.broker_dir)
    make_server(pages, address, token).run([sock])
