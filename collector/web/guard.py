"""What the page may spend, and how fresh its answers are."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from collector.settings import Address


@dataclass(frozen=True, slots=True)
class Limits:
    """The page's limits; tests choose smaller ones."""

    cache_seconds: float = 1.0  # how long an answer is kept
    event_seconds: float = 1.0  # how often the data is checked for open pages
    alive_seconds: float = 15.0  # how often a silent event stream shows that it is alive
    readers: int = 64  # of events, at once
    readers_of_one: int = 32  # of these, from one address
    connections: int = 256  # at once
    connections_of_one: int = 128  # of these, from one address
    request_seconds: float = 10.0  # from the connection, or the last answer, to a whole request
    reading_seconds: float = 20.0  # how long an answer waits for somebody who does not read it
    rows: int = 50_000  # values times rounds in one answer, for its memory


LIMITS = Limits()


# --- Who may stay connected to the page, and for how long (A9).


_SENTENCE: Final = b"Too many connections are being answered; try again in a few seconds.\n"
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_SENTENCE), _SENTENCE)
)


def origin(host: str | None) -> str:
    """Whom connections are counted for: an address, or with IPv6 the network of one household."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


class Places:
    """All connections of one server, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._taken: dict[Connection, None] = {}

    def take(self, connection: Connection) -> bool:
        """Give it a place, if need be that of another; False if all are being answered."""
        if not self._make_room(connection.origin):
            return False
        self._taken[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Its place is free again."""
        self._taken.pop(connection, None)

    def _make_room(self, newcomer: str) -> bool:
        held = Counter(connection.origin for connection in self._taken)
        if held[newcomer] >= self.limits.connections_of_one:
            return self._end_one(c for c in self._taken if c.origin == newcomer)
        if len(self._taken) < self.limits.connections:
            return True
        most = max(held, key=held.__getitem__)
        return self._end_one(c for c in self._taken if c.origin == most) or self._end_one(
            self._taken
        )

    def _end_one(self, candidates: Iterable[Connection]) -> bool:
        """End the one that has waited longest, before one whose reader has stopped reading."""
        idle = [c for c in candidates if c.waits or c.is_stuck]
        if not idle:
            return False
        longest = min(idle, key=lambda c: (not c.waits, c.since))
        self.leave(longest)
        longest.end()
        return True


class Connection(H11Protocol):
    """One connection, with a deadline whenever it is the other side's turn."""

    def __init__(self, *args: Any, places: Places, **options: Any) -> None:
        super().__init__(*args, **options)
        self.origin = ""
        self.since = 0.0  # when the other side's turn began, by the loop's clock
        self.is_stuck = False
        self._places = places
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
        """Take a place, or say that there is none."""
        super().connection_made(transport)
        self.origin = origin(self.client[0] if self.client else None)
        if self._places.take(self):
            self._wait(self._places.limits.request_seconds)
        else:
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._places.leave(self)
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
            self._wait(self._places.limits.request_seconds)
        super().on_response_complete()  # may begin with a request that came early
        if not self.waits and not self.is_stuck:
            self._stop_waiting()

    def pause_writing(self) -> None:
        """The other side reads too slowly."""
        super().pause_writing()
        self.is_stuck = True
        self._wait(self._places.limits.reading_seconds)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self.is_stuck = False
        self._stop_waiting()
        if self.waits:
            self._wait(self._places.limits.request_seconds)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.since = self.loop.time()
            self._deadline = self.loop.call_later(seconds, self.end)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


# --- Who may read, and what browsers may do with it: before and around every answer.


COOKIE: Final = "allomfree_page"
LONGEST_ADDRESS: Final = 2048
OPEN: Final = ("/health", "/static/page.css")
KNOWN: Final = "allomfree.known"  # in the scope: whether the request may read everything
LOCAL: Final = ("localhost", "127.0.0.1", "::1")

# Neither scripts nor styles inline: plotly's own rules go into page.css (see base.html).
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

Refuse = Callable[[int, str], Response]


class Guard:
    """Wraps the application. `token` is None on loopback, where none is needed."""

    def __init__(self, app: ASGIApp, address: Address, token: str | None, refuse: Refuse) -> None:
        self._app = app
        self._hosts = None if token is not None else {*LOCAL, address.host}
        self._token = token
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse in one sentence; the headers are on both."""
        if scope["type"] != "http":
            return
        scope[KNOWN] = self._token is None or _equal(_shown(Headers(scope=scope)), self._token)
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            answer = self._refuse(
                405, "This page only answers GET and HEAD; nothing can be changed here."
            )
            answer.headers["Allow"] = "GET, HEAD"
            return answer
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            return self._refuse(414, f"An address may have at most {LONGEST_ADDRESS} characters.")
        headers = Headers(scope=scope)
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            return self._refuse(
                421, "This page answers only under a name of this machine, such as localhost."
            )
        return None if self._token is None else self._without_token(scope, self._token)

    def _without_token(self, scope: Scope, token: str) -> Response | None:
        """What to answer a request that has not shown the token yet."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        offered = next((value for name, value in query if name == "token"), None)
        if offered is not None and _equal(offered, token):
            return _remember(scope["path"], [(n, v) for n, v in query if n != "token"], token)
        if scope["path"] in OPEN or scope[KNOWN]:
            return None
        answer = self._refuse(
            401,
            "This page needs its access token. Its owner gets a link with it from: "
            "allomfree-collector page --link",
        )
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _host(header: str) -> str:
    """The name without its port: localhost:9180, [::1]:9180."""
    name = header.rpartition("]")[0][1:] if header.startswith("[") else header.partition(":")[0]
    return name.lower()


def _shown(headers: Headers) -> str:
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
    """Keep the token in a cookie and go on without it in the address.

    A page that goes on by itself, not a redirect: after one, a browser that followed a link from
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
