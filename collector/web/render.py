"""Style, scripts and the chart library, which is the installed wheel's: nothing from a network."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from collector.health import Health
from collector.results.facts import outcome_help
from collector.results.tables import write_rows
from collector.results.terminal import svg_code
from collector.results.words import (
    answer_text,
    median_between,
    quantity,
    rounds_name,
    which,
    withheld_text,
)

HERE: Final = Path(__file__).parent / "static"
TYPES: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "plotly.min.js": "text/javascript; charset=utf-8",
}
FOREVER: Final = "private, max-age=31536000, immutable"


def asset(request: Request) -> Response:
    """A file by its name, kept by browsers for as long as its address names this version."""
    name = request.path_params["name"]
    zipped = "gzip" in request.headers.get("accept-encoding", "")
    headers = {
        "Cache-Control": FOREVER if request.query_params.get("v") == stamp(name) else "no-cache",
        "Vary": "Accept-Encoding",
        **({"Content-Encoding": "gzip"} if zipped else {}),
    }
    return Response(_content(name, zipped), media_type=TYPES[name], headers=headers)


def address(name: str) -> str:
    """The address templates use: another one for every version."""
    return f"/static/{name}?v={stamp(name)}"


@cache
def stamp(name: str) -> str:
    """Names a version of a file."""
    if name == "plotly.min.js":
        return version("plotly")
    return hashlib.sha256(_path(name).read_bytes()).hexdigest()[:12]


@cache
def map_sheet() -> str:
    """By this id plotly finds its style for maps, and adds no inline one; none if it adds none."""
    found = re.search(rb'getElementById\("([0-9a-f]{64})"\)', _path("plotly.min.js").read_bytes())
    return found[1].decode() if found else ""


@cache
def _content(name: str, zipped: bool) -> bytes:
    plain = _path(name).read_bytes()
    return gzip.compress(plain, 6) if zipped else plain


def _path(name: str) -> Path:
    if name != "plotly.min.js":
        return HERE / name
    found = find_spec("plotly")  # found, not imported: that would take half a second
    assert found is not None  # noqa: S101 - the collector is not installed without it
    assert found.origin is not None  # noqa: S101
    return Path(found.origin).parent / "package_data" / name


# --- Facts as a page, as JSON and as CSV. Templates escape everything; nothing here computes.


MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
}
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
        """As HTTP sends it."""
        return Response(self.body, self.status, media_type=MEDIA_TYPES[self.kind])


def page(template: str, health: Health | None, status: int = 200, **shown: Any) -> Answer:
    """A page for people; the service's health is at the top of every one but error pages."""
    made = _environment().get_template(template)
    text = made.render(health=health, outcome_help=outcome_help(), **shown)
    return Answer(text.encode(), "html", status)


def as_json(facts: object, status: int = 200) -> Answer:
    """What a command prints with --json, byte for byte."""
    return Answer(json.dumps(facts, ensure_ascii=False).encode() + b"\n", "json", status)


def as_csv(text: str) -> Answer:
    """Rows that were written elsewhere."""
    return Answer(text.encode(), "csv")


def table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Answer:
    """Rows with fixed columns."""
    chosen = ({name: row[name] for name in columns} for row in rows)
    return as_csv(write_rows(chosen, columns, "csv"))


def refusal(status: int, sentence: str, kind: str = "html") -> Answer:
    """Why there is no answer, in the form that was asked for."""
    if kind == "json":
        return as_json({"error": sentence}, status)
    if kind == "csv":
        return Answer(f"error: {sentence}\n".encode(), "csv", status)
    title = TITLES.get(status, "Something went wrong")
    return page("message.html", None, status, title=title, sentence=sentence)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("collector.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "percent": lambda x: f"{_tenths(x)} %",
        "points": _tenths,
        "fine": lambda x: f"{100 * x:.3g}",
        "whole": lambda n: f"{n:,}",
        "moment": lambda text: text.replace("T", " ").removesuffix("Z").removesuffix(":00"),
        "day": lambda text: (text or "").partition("T")[0],
        "since": lambda at: datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M"),
        "duration": duration,
        "every": lambda text: text.removeprefix("1 "),
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
        "quantity": quantity,
        "which": which,
        "answer": answer_text,
        "why_withheld": withheld_text,
        "rounds_name": rounds_name,
        "qr": lambda link: Markup(svg_code(link, "QR code of the join link")),  # noqa: S704
    }
    made.globals |= {
        "asset": address,
        "map_sheet": map_sheet,
        "median_between": median_between,
    }
    return made


def _tenths(share: float) -> str:
    """In per cent; what is rounded to nothing has no sign."""
    return f"{round(100 * share, 1) + 0.0:.1f}".replace("-", "−")


def duration(seconds: int) -> str:
    """A length of time in the unit that suits it."""
    for length, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length and seconds % length == 0:
            count = seconds // length
            return f"1 {name}" if count == 1 else f"{count} {name}s"
    return f"{seconds} seconds"
