"""Who may read, and what browsers may do with it: before and around every answer.

The page can change nothing, so the guard is about reading: only GET and HEAD; on loopback only
under a name of this machine, so that no web site can read it through a name of its own (DNS
rebinding); elsewhere only with the token; and a content policy under which no text of a manifest
can become a script.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from collector.settings import Address

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
