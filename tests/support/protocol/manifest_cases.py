"""Manifests for the vectors: what an analyst writes, what it stands for, and what is refused.

The documents are written out by hand, defaults and all, in the order of the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NEW_YEAR_2027 = 1_798_761_600
DAY = 86_400
INF = float("inf")


@dataclass(frozen=True)
class GoodManifest:
    name: str
    toml: str
    document: dict[str, Any]


MINIMAL_TOML = """\
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

MINIMAL_DOCUMENT: dict[str, Any] = {
    "format": 1,
    "slug": "doors",
    "title": "Open doors",
    "purpose": "Learn how often doors are left open.",
    "owner": "Facilities",
    "contact": "doors@example.org",
    "created": NEW_YEAR_2027,
    "expires": NEW_YEAR_2027 + 31 * DAY,
    "retention": 30 * DAY,
    "eps_inf": 1.0,
    "eps_1": 0.5,
    "min_reports": 200,
    "max_values": 1,
    "receipt_pages": 16,
    "rounds": {"first": NEW_YEAR_2027, "period": DAY, "count": 30, "grace": DAY},
    "attributes": [
        {
            "name": "door",
            "question": "Is the door open?",
            "values": ["open", "closed"],
            "protocol": "auto",
            "calibration": "exact",
        }
    ],
}

_VERSIONS = [f"v{i}" for i in range(300)]
_LETTERS = list("abcdefgh")

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

[[attributes]]
name = "temperature"
question = "How warm is the processor?"
edges = [-inf, -0.0, 40, 55.5, inf]
unit = "°C"
protocol = "L-OSUE"

[[attributes]]
name = "firmware"
question = "Which firmware runs?"
values = {_VERSIONS!r}
protocol = "L-GRR"

[[attributes]]
name = "zone"
question = "In which zone does it stand?"
values = ["n", "ne", "e", "se", "s", "sw", "w", "nw", "centre", "unknown"]
protocol = "L-SUE"

[[attributes]]
name = "letter_paper"
question = "Which letter, by the paper's calibration?"
values = {_LETTERS!r}
protocol = "L-GRR"
calibration = "paper"

[[attributes]]
name = "letter-oue"
question = "Which letter?"
values = {_LETTERS!r}
protocol = "L-OUE"

[[attributes]]
name = "load"
question = "How busy is it?"
edges = [0, 0.25, 0.5, 1]
protocol = "L-SOUE"
"""


def _attribute(
    name: str, question: str, domain: dict[str, Any], protocol: str = "auto", method: str = "exact"
) -> dict[str, Any]:
    return {
        "name": name,
        "question": question,
        **domain,
        "protocol": protocol,
        "calibration": method,
    }


_ZONES = ["n", "ne", "e", "se", "s", "sw", "w", "nw", "centre", "unknown"]
_WARM = {"edges": [-INF, 0.0, 40.0, 55.5, INF], "unit": "°C"}
_LOAD = {"edges": [0.0, 0.25, 0.5, 1.0], "unit": ""}
_PAPER = "Which letter, by the paper's calibration?"

FLEET_DOCUMENT: dict[str, Any] = {
    "format": 1,
    "slug": "fleet-2027",
    "title": "Flotte 2027 – Zustand",
    "purpose": (
        "Say how warm, how old and where our devices are, without knowing it of any one of them."
    ),
    "owner": "Wärmepumpen GmbH",
    "contact": "https://example.org/privacy",
    "created": NEW_YEAR_2027 - 31 * DAY + 11 * 3600,
    "expires": NEW_YEAR_2027 + 365 * DAY,
    "retention": 52 * 7 * DAY,
    "eps_inf": 2.0,
    "eps_1": 0.6,
    "min_reports": 1000,
    "max_values": 3,
    "receipt_pages": 512,
    "rounds": {"first": NEW_YEAR_2027, "period": 6 * 3600, "count": 1459, "grace": 90 * 60},
    "attributes": [
        _attribute("model", "Which model is it?", {"values": ["mk1", "mk2", "mk3"]}),
        _attribute("temperature", "How warm is the processor?", _WARM, "L-OSUE"),
        _attribute("firmware", "Which firmware runs?", {"values": _VERSIONS}, "L-GRR"),
        _attribute("zone", "In which zone does it stand?", {"values": _ZONES}, "L-SUE"),
        _attribute("letter_paper", _PAPER, {"values": _LETTERS}, "L-GRR", "paper"),
        _attribute("letter-oue", "Which letter?", {"values": _LETTERS}, "L-OUE"),
        _attribute("load", "How busy is it?", _LOAD, "L-SOUE"),
    ],
}

GOOD = (
    GoodManifest("minimal", MINIMAL_TOML, MINIMAL_DOCUMENT),
    GoodManifest("fleet", FLEET_TOML, FLEET_DOCUMENT),
)

# One change each to the minimal manifest, and the field that the refusal must name.
CHANGES: tuple[tuple[str, str, str], ...] = (
    ("format = 1", "", "format"),
    ("format = 1", "format = 3", "format"),
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
    ("eps_1 = 0.5", "eps_1 = 0.5\nmax_values = 3", "max_values"),
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
)

_SECOND = '\n[[attributes]]\nname = "door"\nquestion = "Again?"\nvalues = ["yes", "no"]\n'


def refused() -> list[tuple[str, str]]:
    """(TOML, field) of manifests that must be refused with that field's name."""
    cases = [(MINIMAL_TOML.replace(old, new), field) for old, new, field in CHANGES]
    no_attributes = MINIMAL_TOML[: MINIMAL_TOML.index("[[")]
    return [
        *cases,
        (MINIMAL_TOML + _SECOND, "attributes[1].name"),
        (
            MINIMAL_TOML.replace("0.5", "0.67") + 'protocol = "L-SOUE"\n',
            "attributes[0].protocol",
        ),
        (no_attributes, "attributes"),
        ("attributes = []\n" + no_attributes, "attributes"),
        ("", "slug"),
    ]
