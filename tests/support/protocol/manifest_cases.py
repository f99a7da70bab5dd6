"""Manifests for the vectors: what an analyst writes, what it stands for, and what is refused.

The documents are written out by hand, defaults and all, in the order of the wire.
"""

from __future__ import annotations

import copy
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.protocol.reference import NOT_KNOWN, default_levels
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


def crossed(first: Document, second: Document, *levels: float, **more: Any) -> Document:
    noise = {"protocol": "auto", "calibration": "exact", **more}
    parts = [{n: v for n, v in part.items() if n not in noise} for part in (first, second)]
    return {"cross": parts, **noise, **({"levels": list(levels)} if levels else {})}


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
protocol = "L-SS"
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
        numeric("since", _YEARS, high=20.0, protocol="L-SS", calibration="paper"),
    ],
    slug="tour",
    retention=14 * DAY,
    choose_for="pooled",
    max_values=2,
    devices=120_001,
    receipt_pages=481,
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
_RARE_TOML = f"""{_LETTER_TOML}protocol = "GRR"
{_HALVES_TOML}protocol = "SS"

[groups]
label = "region"
values = ["north", "south 2"]
"""
RARE_TOML = _toml("rare", 'reporting = "once"\neps_inf = 0.1', _RARE_TOML)
RARE = document(
    [{**_LETTER, "protocol": "GRR"}, {**_HALF, "protocol": "SS"}],
    slug="rare",
    reporting="once",
    eps_inf=0.1,
    eps_1=0.1,
    rounds={"each": 1},
    groups={"label": "region", "values": ["north", "south 2"]},
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
        named("half", ["am", "pm", NOT_KNOWN], default_levels(2.0, 0.6)),
        named("wide", [*_WIDE, NOT_KNOWN], [0.6, 1.0, 1.7, 2.0]),
        named("letter", [*_LETTERS, NOT_KNOWN], default_levels(2.0, 0.6), protocol="OUE"),
    ],
    slug="steps",
    reporting="nested",
    eps_inf=2.0,
    eps_1=0.6,
)
CARS_TOML = _toml(
    "cars",
    'cross = ["model", "age"]\neps_inf = 2\neps_1 = 0.6',
    """\
[[attributes]]
name = "age"
question = "Which age?"
edges = [0, 10, 20, 30]

"""
    + _HALVES_TOML
    + """
[[attributes]]
name = "model"
question = "Which model?"
values = ["small", "large"]
""",
)
CARS = document(
    [
        _HALF,
        crossed(
            named("model", ["small", "large", NOT_KNOWN]), numeric("age", [0.0, 10.0, 20.0, 30.0])
        ),
    ],
    slug="cars",
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
    choose_for="pooled",
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
    GoodManifest("cars", CARS_TOML, CARS),
)
BY_NAME = {case.name: case.document for case in GOOD}


def changed(found: Document, path: str, value: Any) -> Document:
    """A copy with another value at a path such as "attributes[0].name", or without it (`...`)."""
    *outer, last = (int(step) if step.isdigit() else step for step in re.findall(r"\w+", path))
    copied: Any = copy.deepcopy(found)
    place = copied
    for step in outer:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return dict(copied)


# --- Manifests as bytes that must be refused, one fault each, and the field that the refusal names.

NAN = float("nan")
WHOLE = "manifest"

# Values that no field of "plain" may have.
_BAD: dict[str, tuple[Any, ...]] = {
    "title": (
        *("", " Open", "Open ", "Open\ndoors", "Open\tdoors", "Open\x00doors", "Open\x7fdoors"),
        *("Open\x85doors", "Open\u2028doors", "Open \u202esrood", "Open \u2066doors"),
        *("Open\u200bdoors", "d" * 101, 7, None, b"Open"),
    ),
    "purpose": ("d" * 1001,),
    "owner": ("d" * 101, "Facilities\U000e0041"),
    "contact": ("d" * 201, "doors@example.org\u200b"),
    "format": (0, 2, True, "1", None, 1.5),
    "created": (-1, 253402300800, "2027-01-01", None, PLAIN["rounds"]["first"] + 1),
    "expires": (-1, 253402300800, 1.5, PLAIN["expires"] - 1),
    "retention": (-1, 3162240001, None),
    "reporting": (None, "daily"),
    "eps_inf": (0.0, -1.0, NAN, INF, 1e308, 20.5, 9e-10, "1", True, None),
    "eps_1": (0.0, -0.5, NAN, 9e-10, "0.5", None, 1.0, 1.5),
    "choose_for": ("ever",),
    "min_reports": (0, 1.5, 10**12 + 1, None),
    "max_values": (0, 4, 4097, 1.5),
    "devices": (-1, 10**12 + 1),
    "receipt_pages": (0, 65537, None),
    "operator": (bytes(31),),
    "rounds": (7,),
    "rounds.first": (-1, 253402300800, None),
    "rounds.period": (0, 31622401, 1.5),
    "rounds.count": (0, 65537, True, None),
    "rounds.grace": (-1, 31622401, None),
    "rounds.each": (1,),
    "rounds.drain": (0, 86401),
    "slug": ("Open Doors", "-doors", "doors-", "d" * 33, "", "doors\n", 7, None),
    "attributes": (7, [], [{**_DOOR, "name": f"d{i}"} for i in range(129)]),
    "attributes[0].name": ("", "1door", "door/+", "Door", "d" * 33, "door\n", None),
    "attributes[0].question": ("", "d" * 301, "Is it\u2029open?", "Is \u200fit open?", None),
    "attributes[0].calibration": ("fast", None),
    "attributes[0].protocol": ("L-XYZ", "SUE", "GRR", "", None),
    "attributes[0].changes": (0,),
    "attributes[0].values": (
        *(["open"], ["open", "open"], ["open", 1], ["open", ""], ["open", " closed"], "open"),
        *(None, [], ["open", "a" * 101], ["open", "a\nb"], ["open", "o\u2060pen", "closed"]),
    ),
    # No such field:
    "epsinf": (1.0,),
    "rounds.periode": (DAY,),
    "attributes[0].unit": ("m",),
    "attributes[0].otherwise": ("open",),
    "attributes[0].levels": ([0.5, 1.0],),
}
_BAD_EDGES: tuple[Any, ...] = (
    *([0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, 1.0], [0.0, NAN, 1.0], [0.0, INF, INF]),
    *([-INF, -INF, 1.0], [INF, 1.0, 2.0], [0.0, "1", 2.0], [0.0, True, 2.0], "0, 1, 2", None),
)
# Every field is on the wire: without it the refusal names the field, or the manifest where an
# author may leave it out.
_ABSENT_NAMED = (
    *("format", "slug", "title", "purpose", "owner", "contact", "eps_inf", "eps_1"),
    *("rounds.first", "rounds.period", "rounds.count"),
    *("attributes[0].name", "attributes[0].question", "attributes[0].values"),
)
_ABSENT = (
    *("created", "expires", "retention", "min_reports", "max_values", "receipt_pages"),
    *("rounds.grace", "attributes[0].protocol", "attributes[0].calibration"),
)


def refused() -> Iterator[tuple[str, str, bytes]]:
    """(what is wrong, the field to be named, the bytes)."""
    faults = [("plain", path, value, path) for path, values in _BAD.items() for value in values]
    faults += [("plain", path, ..., path) for path in _ABSENT_NAMED]
    faults += [("plain", path, ..., WHOLE) for path in _ABSENT]
    faults += [
        ("fleet", "attributes[1].edges", edges, "attributes[1].edges") for edges in _BAD_EDGES
    ]
    faults += [(name, path, value, path) for name, path, value in _OF_MECHANISMS]
    faults += [
        ("plain", "attributes[0]", 7, "attributes"),
        ("plain", "eps_inf", 1, WHOLE),  # in place of 1.0
        ("plain", "rounds.first", 253402300799, "rounds.count"),
    ]
    faults += [
        ("cars", "attributes[1].cross[0].name", name, field)
        for name, field in (
            ("age", "attributes[1].name"),
            ("half", "attributes[1].name"),
            ("m" * 29, "attributes[1].cross"),
        )
    ]
    many = [f"m{i}" for i in range(1025)]
    faults += [("cars", "attributes[1].cross[0].values", many, "attributes[1].cross")]
    for name, path, value, field in faults:
        shown = "absent" if value is ... else repr(value)[:40]
        yield f"{name}: {path} {shown}", field, packed(changed(BY_NAME[name], path, value))
    yield from ((f"plain: {why}", WHOLE, payload) for why, payload in _forms().items())
    yield from ((why, WHOLE, payload) for why, payload in _NO_MANIFEST.items())


def _forms() -> dict[str, bytes]:
    """The same values in other bytes, and bytes that hold no such values."""
    sound = packed(PLAIN)
    eps = b"\xa7eps_inf\xcb" + struct.pack(">d", 1.0)
    slug = b"\xa4slug\xa5doors"
    assert sound.count(eps) == sound.count(slug) == 1
    one_more = sound[:2] + bytes([sound[2] + 1]) + sound[3:]  # the map has one field more
    return {
        "a byte behind it": sound + b"\x00",
        "the last byte missing": sound[:-1],
        "other order": packed(dict(reversed(PLAIN.items()))),
        "a float32": sound.replace(eps, b"\xa7eps_inf\xca" + struct.pack(">f", 1.0)),
        "a longer form of a text": sound.replace(slug, b"\xa4slug\xd9\x05doors"),
        "a longer form of an integer": sound.replace(b"_pages\x10", b"_pages\xcc\x10"),
        "a key twice": one_more.replace(slug, slug + slug),
    }


_NO_MANIFEST = {
    "no bytes": b"",
    "nil": b"\xc0",
    "an array": b"\x90",
    "an extension": b"\xd4\x01\x00",
    "an array that is not there": b"\xdd\xff\xff\xff\xff",
    "a map that is not there": b"\xdf\xff\xff\xff\xff",
    "a text that is no UTF-8": b"\x81\xa1\xff\x01",
    "no byte of msgpack": b"\xc1",
}
_OF_MECHANISMS: tuple[tuple[str, str, Any], ...] = (
    ("fleet", "attributes[1].unit", "d" * 17),
    ("fleet", "attributes[1].name", "model"),
    ("fleet", "attributes[1].protocol", "OUE"),
    ("tour", "attributes[2].low", 0.0),
    ("tour", "attributes[2].high", 40.0),
    ("tour", "attributes[2].high", NAN),
    ("tour", "attributes[3].edges", [-1.0, *(float(i) for i in range(4096))]),
    ("trend", "rounds.each", 0),
    ("trend", "rounds.each", 31),
    ("trend", "eps_1", 1.4),
    ("trend", "max_values", 2),
    ("trend", "choose_for", "pooled"),
    ("trend", "attributes[1].protocol", "L-GRR"),
    ("trend", "attributes[1].calibration", "paper"),
    ("trend", "attributes[1].levels", [1.5, 3.0]),
    ("cells", "eps_1", 2.0),
    ("cells", "max_values", 2),
    ("cells", "choose_for", "pooled"),
    ("cells", "attributes[0].protocol", "L-GRR"),
    ("steps", "eps_1", 2.0),
    ("steps", "max_values", 2),
    ("rare", "groups", None),
    ("rare", "groups.label", "Region"),
    ("rare", "groups.values", []),
    ("rare", "groups.values", ["north", "north"]),
    ("rare", "groups.values", ["others"]),
    ("rare", "groups.values", ["north\n"]),
    ("steps", "attributes[1].levels", [0.6, 1.0, 1.0, 2.0]),
    ("steps", "attributes[1].levels", [0.5, 1.0, 2.0]),
    ("steps", "attributes[1].levels", [2.0]),
    ("steps", "attributes[2].protocol", "SUE"),
    ("trend", "eps_1", 1.4999999999999998),
    ("tour", "attributes[3].low", -1.0),
    ("tour", "attributes[3].high", INF),
    ("steps", "attributes[1].levels", [0.6, *(1 + i / 99 for i in range(31)), 2.0]),
    ("steps", "attributes[2].calibration", "paper"),
    ("cars", "attributes[1].cross", 7),
    ("cars", "attributes[1].cross", CARS["attributes"][1]["cross"][:1]),
    ("cars", "attributes[1].cross", [*CARS["attributes"][1]["cross"], _HALF]),
    ("cars", "attributes[1].cross[0].name", "Model"),
    ("cars", "attributes[1].cross[1].edges", [0.0, 1.0]),
    ("cars", "attributes[1].cross[1].protocol", "auto"),
    ("cars", "attributes[1].name", "model-age"),
)
