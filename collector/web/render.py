"""Facts as a page, as JSON and as CSV, and the files a page needs. Templates escape everything."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from collector import charts
from collector.health import Health
from collector.results import words
from protocol_spec import OUTCOME_HELP
from protocol_spec.mechanisms import MECHANISMS

MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
}
ASSETS: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}
FOREVER: Final = "private, max-age=31536000, immutable"
_OUTCOMES: Final = {str(name): text for name, text in OUTCOME_HELP.items()}
TITLES: Final = {
    400: "Invalid request",
    401: "Access token required",
    404: "Not found",
    405: "Read only",
    414: "Address too long",
    421: "Wrong host name",
    503: "Temporarily unavailable",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer, as the cache keeps it."""

    body: bytes
    kind: str = "html"
    status: int = 200

    def response(self) -> Response:
        return Response(self.body, self.status, media_type=MEDIA_TYPES[self.kind])


def page(template: str, health: Health | None, status: int = 200, **values: Any) -> Answer:
    """A page for people; the service's health is at the top of every one but error pages."""
    made = _environment().get_template(template)
    text = made.render(health=health, outcome_help=_OUTCOMES, **values)
    return Answer(text.encode(), "html", status)


def as_json(facts: object, status: int = 200) -> Answer:
    """What a command prints with --json, byte for byte."""
    return Answer(json.dumps(facts, ensure_ascii=False).encode() + b"\n", "json", status)


def refusal(status: int, sentence: str, kind: str = "html") -> Answer:
    """Why there is no answer, in the format that was asked for."""
    if kind == "json":
        return as_json({"error": sentence}, status)
    if kind == "csv":
        return Answer(f"error: {sentence}\n".encode(), "csv", status)
    title = TITLES.get(status, "Something went wrong")
    return page("message.html", None, status, title=title, sentence=sentence)


def figure(svg: str) -> Markup:
    """What `charts` draws, which escapes every text in it."""
    return Markup(svg)  # noqa: S704


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("collector.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "percent": lambda x: f"{words.in_percent(x)} %",
        "points": words.in_percent,
        "fine": lambda x: f"{100 * x:.3g}",
        "whole": lambda n: f"{n:,}",
        "moment": lambda text: text.replace("T", " ").removesuffix("Z").removesuffix(":00"),
        "day": lambda text: (text or "").partition("T")[0],
        "since": lambda at: datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M"),
        "duration": duration,
        "every": lambda text: text.removeprefix("1 "),
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
        "quantity": words.quantity,
        "rounds_label": words.rounds_label,
        "analysis": lambda reporting: MECHANISMS[reporting].analysis,
        "emphasised": _emphasised,
        "answer": words.answer_text,
        "rounds_name": words.rounds_name,
        "bar_list": lambda chart: figure(charts.bar_list(chart)),
        "sparkline": lambda line, scale=None: figure(charts.sparkline(line, scale)),
        "qr": _qr,
        "estimate": words.estimate_of,
        "ends": words.ends_of,
        "bias": words.bias_text,
        "response": words.response_text,
        "quantile": lambda q: words.estimated(q["value"], q["low"], q["high"], ""),
    }
    made.filters |= filters
    made.globals |= {"asset": address, "between": words.between}
    return made


def _emphasised(text: str) -> Markup:
    """HTML with **this** in bold; everything else is escaped."""
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text))))  # noqa: S704


def _qr(link: str) -> Markup:
    """Black on white with its quiet zone, in both colour schemes: many readers see no other."""
    import segno  # noqa: PLC0415 - only when a code is drawn

    code = segno.make_qr(link, error="m", boost_error=False)
    named = {"svgclass": "code", "lineclass": None, "title": "QR code of the join link"}
    return figure(code.svg_inline(scale=4, border=4, light="#fff", omitsize=False, **named))


def duration(seconds: int) -> str:
    """A length of time in the unit that suits it."""
    for length, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length and seconds % length == 0:
            count = seconds // length
            return f"1 {name}" if count == 1 else f"{count} {name}s"
    return f"{seconds} seconds"


# --- style and script ---------------------------------------------------------------------------


def asset(request: Request) -> Response:
    """A file by its name, kept by browsers for as long as its address names this version."""
    name = request.path_params["name"]
    zipped = "gzip" in request.headers.get("accept-encoding", "")
    headers = {
        "Cache-Control": FOREVER if request.query_params.get("v") == _stamp(name) else "no-cache",
        "Vary": "Accept-Encoding",
        **({"Content-Encoding": "gzip"} if zipped else {}),
    }
    return Response(_content(name, zipped), media_type=ASSETS[name], headers=headers)


def address(name: str) -> str:
    """The address templates use: another one for every version."""
    return f"/static/{name}?v={_stamp(name)}"


@cache
def _stamp(name: str) -> str:
    return hashlib.sha256(_content(name, zipped=False)).hexdigest()[:12]


@cache
def _content(name: str, zipped: bool) -> bytes:
    plain = (Path(__file__).parent / "static" / name).read_bytes()
    if name == "page.css":
        plain = charts.page_style().encode() + plain
    return gzip.compress(plain, 6) if zipped else plain
