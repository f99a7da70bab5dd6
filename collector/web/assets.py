"""Style, scripts and the chart library, which is the installed wheel's: nothing from a network."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

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
