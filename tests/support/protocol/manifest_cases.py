"""Manifests for the vectors: what an analyst writes, what it stands for, and what is refused.

The documents are written out by hand, defaults and all, in the order of the wire.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.protocol.reference_ways import NOT_KNOWN, default_levels
from tests.support.protocol.reference_wire import packed

Document = dict[str, Any]

NEW_YEAR_2027 = 1_798_761_600
DAY = 86_400
INF = float("inf")
KEY = bytes(range(32))
_LETTERS = list("abcdefgh")
_VERSIONS = [f"v{i}" for i in range(300)]
_ZONES = ["n", "ne", "e", "se", "s", "sw", "w", "nw", "centre", "unknown"]
_YEARS = [*(float(year) for year in range(11)), INF]
_HOURS = [float(hour) for hour in range(0, 25, 2)]


@dataclass(frozen=True)
class GoodManifest:
    name: str
    toml: str
    document: Document


PLAIN_TOML = """\
format = 1
slug = "doors"
title = "Open doors"
purpose = "Learn how often doors are left open."
owner = "Facilities"
contact = "doors@example.org"
eps_inf = 1
eps_1 = 0.5

[rounds]
first = 2027-01-01T00:00:00Z
period = "1d"
count = 30

[[attributes]]
name = "door"
question = "Is the door open?"
values = ["open", "closed"]
"""


def document(attributes: list[Document], **changes: Any) -> Document:
    """A manifest, defaults and all, in the order of the wire."""
    rounds = {"first": NEW_YEAR_2027, "period": DAY, "count": 30, "grace": DAY}
    found: Document = {
        "format": 1,
        "slug": "doors",
        "title": "Open doors",
        "purpose": "Learn how often doors are left open.",
        "owner": "Facilities",
        "contact": "doors@example.org",
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


def _asked(question: str, attribute: Document) -> Document:
    return {**attribute, "question": question}


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

FLEET_TOML = f"""\
format = 1
slug = "fleet-2027"
title = "Flotte 2027 – Zustand"
purpose = "Say how warm, how old and where our devices are, without knowing it of any one of them."
owner = "Wärmepumpen GmbH"
contact = "https://example.org/privacy"
eps_inf = 2.0
eps_1 = 0.6
min_reports = 1_000
max_values = 3
receipt_pages = 512
retention = "52w"
created = 2026-12-01T12:00:00+01:00
expires = 2028-01-01T00:00:00Z

[rounds]
first = 2027-01-01T00:00:00Z
period = "6h"
count = 1459
grace = "90m"

[[attributes]]
name = "model"
question = "Which model is it?"
values = ["mk1", "mk2", "mk3"]
otherwise = "mk3"

[[attributes]]
name = "temperature"
question = "How warm is the processor?"
edges = [-inf, -0.0, 40, 55.5, inf]
unit = "°C"
changes = false
protocol = "L-OSUE"

[[attributes]]
name = "firmware"
question = "Which firmware runs?"
values = {_VERSIONS!r}
otherwise = "v299"
protocol = "L-GRR"

[[attributes]]
name = "zone"
question = "In which zone does it stand?"
values = {_ZONES!r}
otherwise = "unknown"
protocol = "L-SUE"

[[attributes]]
name = "letter_paper"
question = "Which letter, by the paper's calibration?"
values = {_LETTERS!r}
otherwise = "h"
protocol = "L-GRR"
calibration = "paper"

[[attributes]]
name = "letter-oue"
question = "Which letter?"
values = {_LETTERS!r}
otherwise = "h"
protocol = "L-OUE"

[[attributes]]
name = "load"
question = "How busy is it?"
edges = [0, 0.25, 0.5, 1]
protocol = "L-SOUE"
"""


FLEET = document(
    [
        _asked("Which model is it?", named("model", ["mk1", "mk2", "mk3"])),
        _asked(
            "How warm is the processor?",
            numeric(
                "temperature",
                [-INF, 0.0, 40.0, 55.5, INF],
                unit="°C",
                changes=False,
                protocol="L-OSUE",
            ),
        ),
        _asked("Which firmware runs?", named("firmware", _VERSIONS, protocol="L-GRR")),
        _asked("In which zone does it stand?", named("zone", _ZONES, protocol="L-SUE")),
        _asked(
            "Which letter, by the paper's calibration?",
            named("letter_paper", _LETTERS, protocol="L-GRR", calibration="paper"),
        ),
        _asked("Which letter?", named("letter-oue", _LETTERS, protocol="L-OUE")),
        _asked("How busy is it?", numeric("load", [0.0, 0.25, 0.5, 1.0], protocol="L-SOUE")),
    ],
    slug="fleet-2027",
    title="Flotte 2027 – Zustand",
    purpose=(
        "Say how warm, how old and where our devices are, without knowing it of any one of them."
    ),
    owner="Wärmepumpen GmbH",
    contact="https://example.org/privacy",
    created=NEW_YEAR_2027 - 31 * DAY + 11 * 3600,
    expires=NEW_YEAR_2027 + 365 * DAY,
    retention=52 * 7 * DAY,
    eps_inf=2.0,
    eps_1=0.6,
    min_reports=1000,
    max_values=3,
    receipt_pages=512,
    rounds={"period": 6 * 3600, "count": 1459, "grace": 90 * 60},
)


GOOD = (
    GoodManifest("plain", PLAIN_TOML, PLAIN),
    GoodManifest("fleet", FLEET_TOML, FLEET),
    GoodManifest("tour", TOUR_TOML, TOUR),
    GoodManifest("trend", TREND_TOML, TREND),
    GoodManifest("rare", RARE_TOML, RARE),
    GoodManifest("cells", CELLS_TOML, CELLS),
    GoodManifest("steps", STEPS_TOML, STEPS),
)
BY_NAME = {case.name: case.document for case in GOOD}

# One change each to the plain manifest, and the field that the refusal must name.
CHANGES: tuple[tuple[str, str, str], ...] = (
    ("format = 1", "", "format"),
    ("format = 1", "format = 2", "format"),
    ("format = 1", "format = true", "format"),
    ('slug = "doors"', "", "slug"),
    ('"doors"', '"Open Doors"', "slug"),
    ('"doors"', '"-doors"', "slug"),
    ('"doors"', f'"{"d" * 33}"', "slug"),
    ('"doors"', '""', "slug"),
    ('"doors"', "7", "slug"),
    ('title = "Open doors"', "", "title"),
    ('"Open doors"', '"Open\\ndoors"', "title"),
    ('"Open doors"', '" Open doors"', "title"),
    ('"Open doors"', f'"{"d" * 101}"', "title"),
    ('"Open doors"', '"Open doors "', "title"),
    ('"Open doors"', '"Open\\tdoors"', "title"),
    ('"Open doors"', '"Open\\u007fdoors"', "title"),
    ('"Open doors"', '"Open\\u0085doors"', "title"),
    ('"Open doors"', '"Open\\u2028doors"', "title"),
    ('"Open doors"', '"Open \\u202esrood"', "title"),
    ('"Learn how often doors are left open."', f'"{"d" * 1001}"', "purpose"),
    ('"Facilities"', "[]", "owner"),
    ('contact = "doors@example.org"', "", "contact"),
    ("eps_inf = 1", "", "eps_inf"),
    ("eps_inf = 1", "eps_inf = 0", "eps_inf"),
    ("eps_inf = 1", "eps_inf = -1.0", "eps_inf"),
    ("eps_inf = 1", "eps_inf = nan", "eps_inf"),
    ("eps_inf = 1", "eps_inf = inf", "eps_inf"),
    ("eps_inf = 1", "eps_inf = 1e308", "eps_inf"),
    ("eps_inf = 1", "eps_inf = 20.5", "eps_inf"),
    ("eps_inf = 1", 'eps_inf = "1"', "eps_inf"),
    ("eps_inf = 1", "eps_inf = true", "eps_inf"),
    ("eps_1 = 0.5", "", "eps_1"),
    ("eps_1 = 0.5", "eps_1 = 0.0", "eps_1"),
    ("eps_1 = 0.5", "eps_1 = nan", "eps_1"),
    ("eps_1 = 0.5", "eps_1 = 1.0", "eps_1"),
    ("eps_1 = 0.5", "eps_1 = 1.5", "eps_1"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nmin_reports = 0", "min_reports"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nmin_reports = 1.5", "min_reports"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nmax_values = 0", "max_values"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nmax_values = 4", "max_values"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nreceipt_pages = 65537", "receipt_pages"),
    ("eps_1 = 0.5", 'eps_1 = 0.5\nretention = "1 year"', "retention"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nretention = -1", "retention"),
    ("eps_1 = 0.5", "eps_1 = 0.5\ncreated = 2027-01-02T00:00:00Z", "created"),
    ("eps_1 = 0.5", "eps_1 = 0.5\ncreated = 2026-12-31", "created"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nexpires = 2027-01-31T23:59:59Z", "expires"),
    ("eps_1 = 0.5", "eps_1 = 0.5\nepsinf = 1", "epsinf"),
    ("[rounds]", "[round]", "rounds"),
    ("[rounds]", "[round]", "round"),
    ("first = 2027-01-01T00:00:00Z", "", "rounds.first"),
    ("2027-01-01T00:00:00Z", "2027-01-01T00:00:00", "rounds.first"),
    ("2027-01-01T00:00:00Z", "2027-01-01T00:00:00.5Z", "rounds.first"),
    ("2027-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "rounds.first"),
    ("2027-01-01T00:00:00Z", '"tomorrow"', "rounds.first"),
    ('period = "1d"', "", "rounds.period"),
    ('"1d"', '"0s"', "rounds.period"),
    ('"1d"', '"1 day"', "rounds.period"),
    ('"1d"', '"367d"', "rounds.period"),
    ('"1d"', '"٣d"', "rounds.period"),
    ('"1d"', f'"{"9" * 5000}d"', "rounds.period"),
    ("count = 30", "count = 0", "rounds.count"),
    ("count = 30", "count = 65537", "rounds.count"),
    ("count = 30", "count = true", "rounds.count"),
    ("count = 30", 'count = 30\ngrace = "later"', "rounds.grace"),
    ("count = 30", 'count = 30\nperiode = "1d"', "rounds.periode"),
    ('period = "1d"\ncount = 30', 'period = "366d"\ncount = 9000', "rounds.count"),
    ("[[attributes]]", "[attributes]", "attributes"),
    ('name = "door"', "", "attributes[0].name"),
    ('name = "door"', 'name = "1door"', "attributes[0].name"),
    ('name = "door"', 'name = "door/+"', "attributes[0].name"),
    ('question = "Is the door open?"', "", "attributes[0].question"),
    ('values = ["open", "closed"]', "", "attributes[0].values"),
    ('["open", "closed"]', '["open"]', "attributes[0].values"),
    ('["open", "closed"]', '["open", "open"]', "attributes[0].values"),
    ('["open", "closed"]', '["open", 1]', "attributes[0].values"),
    ('["open", "closed"]', '"open, closed"', "attributes[0].values"),
    ('["open", "closed"]', '["open", "closed"]\nedges = [0, 1, 2]', "attributes[0].values"),
    ('values = ["open", "closed"]', "edges = [0, 1]", "attributes[0].edges"),
    ('values = ["open", "closed"]', "edges = [0, 2, 1]", "attributes[0].edges"),
    ('values = ["open", "closed"]', "edges = [0, 1, 1]", "attributes[0].edges"),
    ('values = ["open", "closed"]', "edges = [0, nan, 1]", "attributes[0].edges"),
    ('values = ["open", "closed"]', f"edges = [0, 1, {10**400}]", "attributes[0].edges"),
    ('values = ["open", "closed"]', "edges = [0, inf, inf]", "attributes[0].edges"),
    ('values = ["open", "closed"]', 'edges = [0, "1", 2]', "attributes[0].edges"),
    ('values = ["open", "closed"]', "edges = [0, true, 2]", "attributes[0].edges"),
    (
        'values = ["open", "closed"]',
        f'edges = [0, 1, 2]\nunit = "{"m" * 17}"',
        "attributes[0].unit",
    ),
    ('["open", "closed"]', '["open", "closed"]\nunit = "m"', "attributes[0].unit"),
    ('["open", "closed"]', '["open", "closed"]\nprotocol = "GRR"', "attributes[0].protocol"),
    ('["open", "closed"]', '["open", "closed"]\ncalibration = "fast"', "attributes[0].calibration"),
    ("format = 1", "format = ", "manifest"),
    ('"Open doors"', '"Open\\u200bdoors"', "title"),
    ('"Open doors"', '"Open \\u200edoors"', "title"),
    ('"Open doors"', '"\\u061cOpen doors"', "title"),
    ('"Open doors"', '"Open doors\\ufeff"', "title"),
    ('"Facilities"', '"Facilities\\U000e0041"', "owner"),
    ('["open", "closed"]', '["open", "o\\u2060pen"]', "attributes[0].values"),
    ('"Is the door open?"', '"Is the \\u200fdoor open?"', "attributes[0].question"),
    ("eps_1 = 0.5", 'eps_1 = 0.5\nreporting = "daily"', "reporting"),
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


_SECOND = '\n[[attributes]]\nname = "door"\nquestion = "Again?"\nvalues = ["yes", "no"]\n'


def refused() -> Iterator[tuple[str, str]]:
    """(TOML, field) of manifests that must be refused with that field's name."""
    for old, new, field in CHANGES:
        yield PLAIN_TOML.replace(old, new), field
    for text, old, new, field in _WAY_CHANGES:
        yield text.replace(old, new), field
    no_attributes = PLAIN_TOML[: PLAIN_TOML.index("[[")]
    yield PLAIN_TOML + _SECOND, "attributes[1].name"
    yield PLAIN_TOML.replace("0.5", "0.67") + 'protocol = "L-SOUE"\n', "attributes[0].protocol"
    yield no_attributes, "attributes"
    yield "attributes = []\n" + no_attributes, "attributes"
    yield "", "slug"


def refused_bytes() -> Iterator[tuple[str, bytes]]:
    """Bytes that an author's TOML may stand for, and the wire may not; and others."""
    for why, name, path, value in _WIRE_CHANGES:
        yield f"{name}: {why}", packed(changed(BY_NAME[name], path, value))
    for name, found in BY_NAME.items():
        yield f"{name}: other order", packed(dict(reversed(found.items())))
        yield f"{name}: format 2", packed({**found, "format": 2})


_WIRE_CHANGES: tuple[tuple[str, str, tuple[str | int, ...], Any], ...] = (
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
