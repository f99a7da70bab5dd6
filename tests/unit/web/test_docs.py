"""What the page's documentation promises is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from collector.web import app, guard, live
from collector.web.live import LIMITS
from collector.web.process import FILE, VARIABLE
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "page.md"
TEXT = " ".join(PAGE.read_text(encoding="utf-8").split())


def test_every_parameter_is_documented() -> None:
    (told,) = re.findall(r"Parameters: (.*?)An answer", TEXT)
    assert set(app.PARAMETERS) == set(re.findall(r"`([a-z_0-9]+)`", told))


def test_every_address_is_documented(tmp_path: Path) -> None:
    names = {
        "{campaign:name}": "CAMPAIGN",
        "{attribute:name}": "ATTRIBUTE",
        "{round:name}": "ROUND",
    }
    for route in app.Pages(tmp_path).routes():
        path = route.path.removesuffix("{form:form}")
        for pattern, name in names.items():
            path = path.replace(pattern, name)
        if not path.startswith(("/static", "/index")):
            assert f"`{path}`" in TEXT, path


def test_every_limit_is_documented() -> None:
    assert f"from 1 to {app.MOST_SHOWN} rounds to show ({app.SHOWN})" in TEXT
    assert f"longer than {guard.LONGEST_ADDRESS} characters with 414" in TEXT
    assert f"at most {LIMITS.rows:,} rows" in TEXT
    assert f"with 4,096 values the latest {LIMITS.rows // 4096} rounds" in TEXT
    assert f"At most {live.MOST_BYTES >> 20} MiB of answers are kept" in TEXT
    assert f"At most {LIMITS.readers} readers get live events" in TEXT
    assert f"(nice {app.NICE})" in TEXT
    assert (LIMITS.cache_seconds, live.TIMES) == (1.0, 10.0)
    assert "up to a second old, or ten times the processor time that it took to make" in TEXT


def test_where_the_token_comes_from_is_documented() -> None:
    assert f"`{VARIABLE}`" in TEXT
    assert f"`{FILE}` in the data directory, mode 0600" in TEXT


def test_what_the_planner_is_asked_are_parameters() -> None:
    assert set(app.Parameters.__slots__) <= set(app.PARAMETERS)
