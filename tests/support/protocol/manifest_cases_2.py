"""Manifests of format 2 for the vectors: one for each way of reporting, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.support.protocol.manifest_cases import (
    DAY,
    INF,
    MINIMAL_DOCUMENT,
    MINIMAL_TOML,
    NEW_YEAR_2027,
    GoodManifest,
)
from tests.support.protocol.reference_ways import NOT_KNOWN, default_levels
from tests.support.protocol.reference_wire import packed

Document = dict[str, Any]

KEY = bytes(range(32))
_LETTERS = list("abcdefgh")
_YEARS = [*(float(year) for year in range(11)), INF]
_HOURS = [float(hour) for hour in range(0, 25, 2)]

PLAIN_TOML = MINIMAL_TOML.replace("format = 1", "format = 2")


def document(attributes: list[Document], **changes: Any) -> Document:
    """A manifest of format 2, defaults and all, in the order of the wire."""
    texts = {name: MINIMAL_DOCUMENT[name] for name in ("title", "purpose", "owner", "contact")}
    rounds = {"first": NEW_YEAR_2027, "period": DAY, "count": 30, "grace": DAY}
    found = {
        "format": 2,
        "slug": "doors",
        **texts,
        "created": NEW_YEAR_2027,
        "expires": NEW_YEAR_2027 + 31 * DAY,
        "retention": 30 * DAY,
        "reporting": "memoized",
        "eps_inf": 1.0,
        "eps_1": 0.5,
        "choose_for": "round",
        "min_reports": 200,
        "max_values": 1,
        "devices": 0,
        "receipt_pages": 16,
        "operator": b"",
        "rounds": {**rounds, "each": 0, "drain": 600},
        "attributes": attributes,
    }
    inner = {**found["rounds"], **changes.pop("rounds", {})}
    return {**found, **changes, "rounds": inner}


def named(name: str, values: list[str], levels: list[float] | None = None, **more: Any) -> Document:
    changes = {"changes": False, "protocol": "auto", "calibration": "exact", **more}
    found = {"name": name, "question": f"Which {name}?", "values": values, **changes}
    return found if levels is None else {**found, "levels": levels}


def numeric(name: str, edges: list[float], *levels: float, **more: Any) -> Document:
    domain = {"edges": edges, "unit": more.pop("unit", ""), "low": None, "high": None}
    rest = {"changes": True, "protocol": "auto", "calibration": "exact"}
    found = {"name": name, "question": f"Which {name}?", **domain, **rest, **more}
    return {**found, "levels": list(levels)} if levels else found


_DOOR = {**named("door", ["open", "closed", NOT_KNOWN]), "question": "Is the door open?"}

PLAIN = document([_DOOR])

TOUR_TOML = (
    PLAIN_TOML.replace("doors", "tour", 1)
    .replace(
        "eps_1 = 0.5",
        f"""eps_1 = 0.5
choose_for = "pooled"
max_values = 2
devices = 120_001
operator = "{KEY.hex()}"
retention = "2w\"""",
    )
    .replace("count = 30", 'count = 30\ndrain = "90s"')
    .replace(
        'values = ["open", "closed"]',
        f"""values = ["other", "open", "closed"]
otherwise = "other"

[[attributes]]
name = "letter"
question = "Which letter?"
values = {_LETTERS!r}
changes = true

[[attributes]]
name = "heat"
question = "Which heat?"
edges = [-inf, -0.0, 40, inf]
unit = "°C"
low = -20
high = 90.5
changes = false
protocol = "L-SUE"

[[attributes]]
name = "since"
question = "Which since?"
edges = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, inf]
high = 20
protocol = "L-OSUE"
calibration = "paper\"""",
    )
)
TOUR = document(
    [
        {**_DOOR, "values": ["open", "closed", "other"]},
        named("letter", [*_LETTERS, NOT_KNOWN], changes=True),
        numeric(
            "heat",
            [-INF, 0.0, 40.0, INF],
            unit="°C",
            low=-20.0,
            high=90.5,
            changes=False,
            protocol="L-SUE",
        ),
        numeric("since", _YEARS, high=20.0, protocol="L-OSUE", calibration="paper"),
    ],
    slug="tour",
    retention=14 * DAY,
    choose_for="pooled",
    max_values=2,
    devices=120_001,
    receipt_pages=121,
    operator=KEY,
    rounds={"drain": 90},
)


def _toml(name: str, head: str, attributes: str, rounds: str = "") -> str:
    top = PLAIN_TOML[: PLAIN_TOML.index("[[")].replace("doors", name, 1)
    top = top.replace("eps_inf = 1\neps_1 = 0.5", head).replace("count = 30", f"count = 30{rounds}")
    return f"{top}{attributes}"


_HOUR_TOML = f'[[attributes]]\nname = "hour"\nquestion = "Which hour?"\nedges = {_HOURS!r}\n'
_LETTER_TOML = (
    f'[[attributes]]\nname = "letter"\nquestion = "Which letter?"\nvalues = {_LETTERS!r}\n'
)
_HALVES_TOML = '[[attributes]]\nname = "half"\nquestion = "Which half?"\nvalues = ["am", "pm"]\n'
_WIDE = [f"v{i}" for i in range(30)]
_WIDE_TOML = f'[[attributes]]\nname = "wide"\nquestion = "Which wide?"\nvalues = {_WIDE!r}\n'
_HALF = named("half", ["am", "pm", NOT_KNOWN])
_LETTER = named("letter", [*_LETTERS, NOT_KNOWN])

TREND_TOML = _toml(
    "trend", 'reporting = "once"\neps_inf = 3', _HOUR_TOML + _HALVES_TOML, "\neach = 2"
)
TREND = document(
    [numeric("hour", _HOURS), _HALF],
    slug="trend",
    reporting="once",
    eps_inf=3.0,
    eps_1=1.5,
    rounds={"each": 2},
)
RARE_TOML = _toml("rare", 'reporting = "once"\neps_inf = 0.1', _LETTER_TOML + 'protocol = "GRR"\n')
RARE = document(
    [{**_LETTER, "protocol": "GRR"}],
    slug="rare",
    reporting="once",
    eps_inf=0.1,
    eps_1=0.1,
    rounds={"each": 1},
)
CELLS_TOML = _toml(
    "cells", 'reporting = "hashed"\neps_inf = 2\neps_1 = 0.6', _LETTER_TOML + _HOUR_TOML
)
CELLS = document(
    [_LETTER, numeric("hour", _HOURS)], slug="cells", reporting="hashed", eps_inf=2.0, eps_1=0.6
)
STEPS_TOML = _toml(
    "steps",
    'reporting = "nested"\neps_inf = 2\neps_1 = 0.6',
    _HALVES_TOML + _WIDE_TOML + "levels = [0.6, 1, 1.7, 2]\n" + _LETTER_TOML + 'protocol = "OUE"\n',
)
STEPS = document(
    [
        named("half", ["am", "pm", NOT_KNOWN], default_levels(3, 2.0, 0.6)),
        named("wide", [*_WIDE, NOT_KNOWN], [0.6, 1.0, 1.7, 2.0]),
        named("letter", [*_LETTERS, NOT_KNOWN], default_levels(9, 2.0, 0.6), protocol="OUE"),
    ],
    slug="steps",
    reporting="nested",
    eps_inf=2.0,
    eps_1=0.6,
)

GOOD = (
    GoodManifest("plain", PLAIN_TOML, PLAIN),
    GoodManifest("tour", TOUR_TOML, TOUR),
    GoodManifest("trend", TREND_TOML, TREND),
    GoodManifest("rare", RARE_TOML, RARE),
    GoodManifest("cells", CELLS_TOML, CELLS),
    GoodManifest("steps", STEPS_TOML, STEPS),
)
BY_NAME = {case.name: case.document for case in GOOD}

# A part of the plain manifest of format 2, what stands there instead, the field to be named.
_PLAIN_CHANGES = (
    ("format = 2", "format = 3", "format"),
    ('"Open doors"', '"Open\\u200bdoors"', "title"),
    ('"Open doors"', '"Open \\u200edoors"', "title"),
    ('"Open doors"', '"\\u061cOpen doors"', "title"),
    ('"Open doors"', '"Open doors\\ufeff"', "title"),
    ('"Facilities"', '"Facilities\\U000e0041"', "owner"),
    ('["open", "closed"]', '["open", "o\\u2060pen"]', "attributes[0].values"),
    ('"Is the door open?"', '"Is the \\u200fdoor open?"', "attributes[0].question"),
    ("eps_1 = 0.5", 'eps_1 = 0.5\nreporting = "daily"', "reporting"),
    ("eps_1 = 0.5", "", "eps_1"),
    ("eps_1 = 0.5", "eps_1 = 1.0", "eps_1"),
    ("eps_1 = 0.5", "eps_1 = 0.5\ndevices = -1", "devices"),
    ("eps_1 = 0.5", 'eps_1 = 0.5\noperator = "abc"', "operator"),
    ("eps_1 = 0.5", f'eps_1 = 0.5\noperator = "{"0" * 62}"', "operator"),
    ("eps_1 = 0.5", 'eps_1 = 0.5\nchoose_for = "ever"', "choose_for"),
    ("count = 30", "count = 30\neach = 1", "rounds.each"),
    ("count = 30", "count = 30\ndrain = 0", "rounds.drain"),
    ("count = 30", 'count = 30\ndrain = "2d"', "rounds.drain"),
    ('["open", "closed"]', '["open", "closed"]\notherwise = "ajar"', "attributes[0].otherwise"),
    ('["open", "closed"]', '["open", "closed"]\nlow = 0', "attributes[0].low"),
    ('["open", "closed"]', '["open", "closed"]\nchanges = 1', "attributes[0].changes"),
    ('["open", "closed"]', '["open", "closed"]\nprotocol = "GRR"', "attributes[0].protocol"),
    ('["open", "closed"]', '["open", "closed"]\nlevels = [0.5, 1.0]', "attributes[0].levels"),
    ('values = ["open", "closed"]', "edges = [0, 1, 2]\nlow = -1", "attributes[0].low"),
    ('values = ["open", "closed"]', "edges = [-inf, 1, 2]\nhigh = 3", "attributes[0].high"),
    ('values = ["open", "closed"]', "edges = [-inf, 1, inf]\nlow = 1", "attributes[0].low"),
    ('values = ["open", "closed"]', "edges = [-inf, 1, inf]\nhigh = nan", "attributes[0].high"),
    ('values = ["open", "closed"]', "edges = [-inf, 1, inf]\nhigh = inf", "attributes[0].high"),
    (
        'values = ["open", "closed"]',
        'edges = [0, 1, 2]\notherwise = "0"',
        "attributes[0].otherwise",
    ),
)
_NAMED_TOML = f'{PLAIN_TOML}protocol = "L-GRR"\n'
_WAY_CHANGES = (
    (_NAMED_TOML, "eps_1 = 0.5", 'eps_1 = 0.5\nchoose_for = "pooled"', "choose_for"),
    (TREND_TOML, "each = 2", "each = 31", "rounds.each"),
    (TREND_TOML, "each = 2", "each = 0", "rounds.each"),
    (TREND_TOML, "eps_inf = 3", "eps_inf = 3\neps_1 = 1.4", "eps_1"),
    (TREND_TOML, "eps_inf = 3", "eps_inf = 1e-9", "rounds.each"),
    (TREND_TOML, "eps_inf = 3", "eps_inf = 3\nmax_values = 2", "max_values"),
    (TREND_TOML, "eps_inf = 3", 'eps_inf = 3\nchoose_for = "pooled"', "choose_for"),
    (TREND_TOML, '"pm"]', '"pm"]\nprotocol = "L-GRR"', "attributes[1].protocol"),
    (TREND_TOML, '"pm"]', '"pm"]\nprotocol = "SUE"', "attributes[1].protocol"),
    (TREND_TOML, '"pm"]', '"pm"]\ncalibration = "paper"', "attributes[1].calibration"),
    (TREND_TOML, '"pm"]', '"pm"]\nlevels = [1.5, 3.0]', "attributes[1].levels"),
    (CELLS_TOML, "eps_1 = 0.6", "eps_1 = 2.0", "eps_1"),
    (CELLS_TOML, "eps_1 = 0.6", "eps_1 = 0.6\nmax_values = 2", "max_values"),
    (CELLS_TOML, "eps_1 = 0.6", 'eps_1 = 0.6\nchoose_for = "pooled"', "choose_for"),
    (CELLS_TOML, "'h']", "'h']\nprotocol = \"L-GRR\"", "attributes[0].protocol"),
    (CELLS_TOML, "count = 30", "count = 30\neach = 30", "rounds.each"),
    (STEPS_TOML, "eps_1 = 0.6", "eps_1 = 2", "eps_1"),
    (STEPS_TOML, "eps_1 = 0.6", "eps_1 = 0.6\nmax_values = 2", "max_values"),
    (STEPS_TOML, "eps_1 = 0.6", "eps_1 = 0.5", "attributes[1].levels"),
    (STEPS_TOML, "[0.6, 1, 1.7, 2]", "[0.6, 1, 1, 2]", "attributes[1].levels"),
    (STEPS_TOML, "[0.6, 1, 1.7, 2]", "[0.6, 1.7]", "attributes[1].levels"),
    (STEPS_TOML, "[0.6, 1, 1.7, 2]", "[2]", "attributes[1].levels"),
    (STEPS_TOML, "[0.6, 1, 1.7, 2]", "1", "attributes[1].levels"),
    (STEPS_TOML, 'protocol = "OUE"', 'protocol = "SUE"', "attributes[2].protocol"),
    (STEPS_TOML, 'protocol = "OUE"', 'calibration = "paper"', "attributes[2].calibration"),
)


def refused() -> Iterator[tuple[str, str]]:
    """(TOML, field) of manifests that must be refused with that field's name."""
    for old, new, field in _PLAIN_CHANGES:
        yield PLAIN_TOML.replace(old, new), field
    for text, old, new, field in _WAY_CHANGES:
        yield text.replace(old, new), field


def refused_bytes() -> Iterator[tuple[str, bytes]]:
    """Bytes that an author's TOML may stand for, and the wire may not; and others."""
    for why, name, path, value in _WIRE_CHANGES:
        yield f"{name}: {why}", packed(changed(BY_NAME[name], path, value))
    for name, found in BY_NAME.items():
        yield f"{name}: other order", packed(dict(reversed(found.items())))
        yield f"{name}: format 1", packed({**found, "format": 1})
    yield "format 1 as format 2", packed({**MINIMAL_DOCUMENT, "format": 2})


_WIRE_CHANGES: tuple[tuple[str, str, tuple[str | int, ...], Any], ...] = (
    ("format 3", "plain", ("format",), 3),
    ("an operator in hexadecimal", "tour", ("operator",), KEY.hex()),
    ("an operator of 31 bytes", "tour", ("operator",), KEY[:31]),
    ("no operator", "tour", ("operator",), ...),
    ("no devices", "plain", ("devices",), ...),
    ("a drain in words", "tour", ("rounds", "drain"), "90s"),
    ("no drain", "plain", ("rounds", "drain"), ...),
    ("no each", "trend", ("rounds", "each"), ...),
    ("no eps_1", "trend", ("eps_1",), ...),
    ("another eps_1", "trend", ("eps_1",), 1.4999999999999998),
    ("a whole low", "tour", ("attributes", 2, "low"), -20),
    ("no low", "tour", ("attributes", 3, "low"), ...),
    ("a low for a finite end", "tour", ("attributes", 3, "low"), -1.0),
    ("an infinite high", "tour", ("attributes", 3, "high"), INF),
    ("changes an integer", "plain", ("attributes", 0, "changes"), 0),
    ("no changes", "plain", ("attributes", 0, "changes"), ...),
    ("otherwise on the wire", "plain", ("attributes", 0, "otherwise"), "open"),
    ("no levels", "steps", ("attributes", 1, "levels"), ...),
    ("empty levels", "plain", ("attributes", 0, "levels"), []),
    ("levels of another way", "plain", ("attributes", 0, "levels"), [0.5, 1.0]),
    ("levels that do not end with eps_inf", "steps", ("attributes", 1, "levels"), [0.6, 1.0]),
    ("levels that fall", "steps", ("attributes", 1, "levels"), [0.6, 1.7, 1.0, 2.0]),
    (
        "33 levels",
        "steps",
        ("attributes", 1, "levels"),
        [0.6, *(1 + i / 99 for i in range(31)), 2.0],
    ),
    ("an unknown way", "plain", ("reporting",), "daily"),
    ("an invisible character", "plain", ("contact",), "doors@example.org\u200b"),
)


def changed(found: Document, path: tuple[str | int, ...], value: Any) -> Document:
    """A copy of the document with another value, or without the field when it is `...`."""
    copied: Any = copy.deepcopy(found)
    place = copied
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return dict(copied)
