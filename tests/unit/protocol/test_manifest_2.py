"""Manifests of format 2: every way of reporting, total domains, and what is refused."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import NOT_KNOWN, Manifest, ManifestError, UnknownValue
from protocol_spec.ways import WAYS
from tests.support.protocol import vectors
from tests.support.protocol.manifest_cases import (
    DAY,
    MINIMAL_DOCUMENT,
    MINIMAL_TOML,
    NEW_YEAR_2027,
)
from tests.support.protocol.manifest_cases_2 import (
    BY_NAME,
    CELLS_TOML,
    KEY,
    PLAIN,
    PLAIN_TOML,
    STEPS_TOML,
    TOUR,
    TOUR_TOML,
    TREND_TOML,
    changed,
    document,
)
from tests.support.protocol.reference_wire import packed

Document = dict[str, Any]
FIRST = Manifest.from_toml(MINIMAL_TOML)
SECOND = Manifest.from_toml(PLAIN_TOML)


def problems(toml: str) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(toml)
    return {problem.field: str(problem) for problem in caught.value.problems}


# --- beside format 1 -----------------------------------------------------------------------------


def test_format_1_knows_nothing_of_it() -> None:
    assert FIRST.format == 1
    assert (FIRST.reporting, FIRST.choose_for, FIRST.devices, FIRST.operator) == (
        "memoized",
        "round",
        0,
        b"",
    )
    assert (FIRST.rounds.each, FIRST.rounds.drain) == (0, 600)
    (door,) = FIRST.attributes
    assert (door.total, door.otherwise, door.changes, door.levels) == (False, None, False, ())
    with pytest.raises(UnknownValue):
        door.index_of("ajar")
    new = {"reporting", "choose_for", "devices", "operator", "each", "drain", "changes", "low"}
    assert not any(name.encode() in FIRST.to_bytes() for name in new)


@pytest.mark.parametrize("line", ['reporting = "once"', "devices = 3", 'choose_for = "round"'])
def test_a_field_of_format_2_is_none_of_format_1(line: str) -> None:
    found = problems(MINIMAL_TOML.replace("eps_1", f"{line}\neps_1"))
    assert list(found) == [line.split(" ", maxsplit=1)[0]]


@pytest.mark.parametrize("number", [0, 3, "2", 2.0, True])
def test_no_other_format_is_read(number: Any) -> None:
    written = str(number).lower() if isinstance(number, bool) else repr(number)
    found = problems(PLAIN_TOML.replace("format = 2", f"format = {written}"))
    assert list(found) == ["format"], "what the other fields should be is not known"
    assert "must be 1 or 2" in found["format"]


def test_a_missing_format_is_one_problem_of_many() -> None:
    found = problems(PLAIN_TOML.replace("format = 2", "").replace('slug = "doors"', ""))
    assert set(found) == {"format", "slug"}


def test_the_wire_says_what_the_author_left_out() -> None:
    for attribute in SECOND.attributes:
        assert attribute.values[-1] == NOT_KNOWN
    assert SECOND.to_bytes() == packed(PLAIN)


# Another valid value for every field of the wire that format 1 does not have.
OTHER: dict[tuple[str | int, ...], Any] = {
    ("choose_for",): "round",
    ("devices",): 0,
    ("operator",): b"",
    ("rounds", "drain"): 91,
    ("attributes", 0, "changes"): True,
    ("attributes", 2, "low"): None,
    ("attributes", 3, "high"): None,
    ("attributes", 0, "values"): ["other", "closed", "open"],
}


def test_the_digest_changes_with_any_field() -> None:
    digests = {Manifest.from_bytes(packed(TOUR)).digest}
    for path, value in OTHER.items():
        digests.add(Manifest.from_bytes(packed(changed(TOUR, path, value))).digest)
    for other in (document(TOUR["attributes"][:1], reporting="hashed"),):
        digests.add(Manifest.from_bytes(packed(other)).digest)
    assert len(digests) == len(OTHER) + 2


@pytest.mark.parametrize(
    "entry", vectors.load("manifests.json")["refused_bytes"], ids=lambda e: e["why"]
)
def test_the_published_bytes_that_are_no_manifest(entry: dict[str, str]) -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_bytes(bytes.fromhex(entry["hex"]))
    assert all(problem.remedy for problem in caught.value.problems)


@pytest.mark.parametrize("name", sorted(BY_NAME))
@settings(max_examples=60)
@given(st.data())
def test_changed_bytes_are_refused_or_another_manifest(name: str, data: st.DataObject) -> None:
    good = packed(BY_NAME[name])
    payload = bytearray(good)
    for _ in range(data.draw(st.integers(1, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ManifestError):
        manifest = Manifest.from_bytes(bytes(payload))
        assert manifest.to_bytes() == payload
        assert len(manifest.ways) == len(manifest.attributes)


# --- what a message says -------------------------------------------------------------------------

TOLD = (
    (PLAIN_TOML, "count = 30", "count = 30\neach = 2", 'rounds.each = 2: reporting = "memoized"'),
    (TREND_TOML, "each = 2", "each = 31", "rounds.each = 31: must be from 1 to rounds.count = 30"),
    (TREND_TOML, "eps_inf = 3", "eps_inf = 3\neps_1 = 3", "eps_inf / rounds.each = 1.5; leave it"),
    (CELLS_TOML, "eps_1 = 0.6", "eps_1 = 0.6\nmax_values = 3", "has no memo for each value"),
    (CELLS_TOML, "'h']", "'h']\nprotocol = 'OUE'", 'reporting = "hashed" has auto'),
    (
        STEPS_TOML,
        "[0.6, 1, 1.7, 2]",
        "[0.7, 2]",
        "must begin with eps_1 = 0.6 and end with eps_inf",
    ),
    (TOUR_TOML, "low = -20", "low = 0", "attributes[2].low = 0.0: must lie beyond the outermost"),
    (TOUR_TOML, "high = 20", "high = 20\nlow = 1", "attributes[3].low = 1.0: the bins end at 0"),
    (TOUR_TOML, '"other"\n\n', '"ajar"\n\n', 'otherwise = "ajar": must be one of the values'),
    (TOUR_TOML, KEY.hex(), "c0ffee", 'operator = "c0ffee": must be an Ed25519 public key, 64 hex'),
    (PLAIN_TOML, "Open doors", "Open\\u200bdoors", "the invisible character U+200B; delete it"),
    (PLAIN_TOML, '"closed"]', '"closed"]\nchanges = "no"', 'changes = "no": must be true or false'),
    (PLAIN_TOML, "eps_1", 'choose_for = "mean"\neps_1', "choose one of round, pooled"),
)


@pytest.mark.parametrize(("toml", "old", "new", "told"), TOLD)
def test_the_message(toml: str, old: str, new: str, told: str) -> None:
    assert old in toml
    assert told in "\n".join(problems(toml.replace(old, new)).values())


# --- every combination ---------------------------------------------------------------------------

PROTOCOLS = ("auto", "L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "GRR", "OUE")
ALLOWED = {
    "memoized": PROTOCOLS[:6],
    "once": ("auto", "GRR", "OUE"),
    "hashed": ("auto",),
    "nested": ("auto", "GRR", "OUE"),
}
COMBINATIONS = st.fixed_dictionaries(
    {
        "reporting": st.sampled_from(WAYS),
        "each": st.sampled_from((0, 1, 2, 30, 31)),
        "eps_1": st.sampled_from((0.5, 1.0, 2.0, 1.0 / 30)),
        "max_values": st.sampled_from((1, 1, 1, 2)),
        "choose_for": st.sampled_from(("round", "round", "pooled")),
        "protocol": st.sampled_from(("auto", *PROTOCOLS)),
        "calibration": st.sampled_from(("exact", "exact", "paper")),
        "levels": st.sampled_from(((), (0.5, 1.0), (0.5, 0.7, 1.0), (0.5, 2.0), (0.4, 1.0))),
    }
)


def wrong(chosen: Document) -> set[str]:
    """The fields that M62 and M63 refuse, of a campaign of 30 rounds and eps_inf = 1."""
    way, memoized = chosen["reporting"], chosen["reporting"] == "memoized"
    each, levels = chosen["each"], chosen["levels"]
    once = way == "once"
    fitting = {
        "rounds.each": 1 <= each <= 30 if once else each == 0,
        "eps_1": (each == 0 or chosen["eps_1"] == 1.0 / each) if once else chosen["eps_1"] < 1.0,
        "max_values": memoized or chosen["max_values"] == 1,
        "choose_for": chosen["choose_for"] == "round"
        or (memoized and chosen["protocol"] == "auto"),
        "attributes[0].protocol": chosen["protocol"] in ALLOWED[way],
        "attributes[0].calibration": memoized or chosen["calibration"] == "exact",
        "attributes[0].levels": not levels
        or (way == "nested" and (levels[0], levels[-1]) == (chosen["eps_1"], 1.0)),
    }
    return {name for name, right in fitting.items() if not right}


@settings(max_examples=400)
@given(COMBINATIONS)
def test_every_combination_is_a_campaign_or_names_what_is_wrong(chosen: Document) -> None:
    attribute = {name: chosen[name] for name in ("protocol", "calibration")}
    top = {name: chosen[name] for name in ("reporting", "eps_1", "max_values", "choose_for")}
    made = document([{**PLAIN["attributes"][0], **attribute}], **top)
    made["rounds"]["each"] = chosen["each"]
    if chosen["levels"]:
        made["attributes"][0]["levels"] = list(chosen["levels"])
    expected = wrong(chosen)
    if chosen["reporting"] == "nested" and not chosen["levels"]:
        expected = expected or {"manifest"}  # nothing else is wrong, but the wire says levels
    try:
        manifest = Manifest.from_bytes(packed(made))
    except ManifestError as error:
        found = {problem.field for problem in error.problems}
        assert found == (expected or {"attributes[0].protocol"})
        assert expected or chosen["protocol"].endswith("OUE"), "only those can be infeasible"
    else:
        assert not expected
        assert manifest.ways[0].reporting == chosen["reporting"]


# --- any valid manifest, there and back ----------------------------------------------------------


def line(longest: int) -> st.SearchStrategy[str]:
    """Text without marks, some of which are not seen and therefore refused."""
    fillers = "\u115f\u1160\u3164\uffa0"  # letters that are not seen
    printable = st.characters(exclude_categories=("C", "Z", "M"), exclude_characters=fillers)
    return st.text(printable, min_size=1, max_size=longest)


@st.composite
def attributes(draw: st.DrawFn, name: str, way: str, budget: tuple[float, float]) -> Document:
    domain: Document = {"values": draw(st.lists(line(9), min_size=2, max_size=9, unique=True))}
    if draw(st.booleans()):
        inner = draw(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=9, unique=True))
        edges = sorted(x + 0.0 for x in dict.fromkeys(x + 0.0 for x in inner))
        ends = draw(st.tuples(st.booleans(), st.booleans()))
        low = draw(st.none() | st.just(-1e301)) if ends[0] else None
        high = draw(st.none() | st.just(1e301)) if ends[1] else None
        edges = [-math.inf if ends[0] else -1.5e300, *edges, math.inf if ends[1] else 1.5e300]
        unit = draw(st.just("") | line(9))
        domain = {"edges": edges, "unit": unit, "low": low, "high": high}
    memoized = ("auto", "L-GRR", "L-SUE", "L-OSUE")
    allowed = memoized if way == "memoized" else ALLOWED[way]
    rest = {
        "changes": draw(st.booleans()),
        "protocol": draw(st.sampled_from(allowed)),
        "calibration": draw(st.sampled_from(("exact", "paper"))) if way == "memoized" else "exact",
    }
    levels = {}
    if way == "nested":
        eps_inf, eps_1 = budget
        steps = draw(st.lists(st.floats(0.01, 0.99), max_size=6, unique=True).map(sorted))
        between = [eps_1 + step * (eps_inf - eps_1) for step in steps]
        rising = [e for e in dict.fromkeys(between) if eps_1 < e < eps_inf]
        levels = {"levels": [eps_1, *rising, eps_inf]}
    return {"name": name, "question": draw(line(20)), **domain, **rest, **levels}


@st.composite
def documents(draw: st.DrawFn) -> Document:
    way = draw(st.sampled_from(WAYS))
    eps_inf, count = draw(st.floats(1e-3, 20)), draw(st.integers(1, 500))
    each = draw(st.integers(1, count)) if way == "once" else 0
    eps_1 = eps_inf / each if each else draw(st.floats(0.01, 0.9)) * eps_inf
    names = [f"a{i}" for i in range(draw(st.integers(1, 4)))]
    made = [draw(attributes(name, way, (eps_inf, eps_1))) for name in names]
    some = way == "memoized" and any(a["protocol"] == "auto" for a in made)
    period = draw(st.integers(1, 366 * DAY))
    return document(
        made,
        reporting=way,
        eps_inf=eps_inf,
        eps_1=eps_1,
        choose_for=draw(st.sampled_from(("round", "pooled") if some else ("round",))),
        max_values=draw(st.integers(1, 2)) if way == "memoized" else 1,
        devices=draw(st.integers(0, 10**12)),
        receipt_pages=draw(st.integers(1, 65_536)),
        operator=draw(st.sampled_from((b"", KEY, bytes(32)))),
        expires=NEW_YEAR_2027 + period * count + DAY,
        rounds={"period": period, "count": count, "each": each, "drain": draw(st.integers(1, DAY))},
    )


@settings(max_examples=80)
@given(documents())
def test_any_valid_manifest_there_and_back(made: Document) -> None:
    payload = packed(made)
    read = Manifest.from_bytes(payload)
    assert read.to_bytes() == payload
    assert set(read.body_lengths) == {read.body_bytes}
    assert all(way.answer_bytes <= read.body_bytes <= 513 for way in read.ways)
    for way, attribute in zip(read.ways, read.attributes):
        assert (way.k, way.reporting) == (attribute.k, made["reporting"])
        assert way.lifetime_epsilon <= read.lifetime_epsilon
        assert read.eps_inf <= read.lifetime_epsilon
        device = way.randomiser("a")
        memo = device.memoize(device.key(attribute.k - 1))
        answer = device.report(memo, 0)
        assert len(answer) == way.answer_bytes
        assert way.fault(answer) is None


HIDDEN = "\u200b\u200e\u2066\U000e0041\ue000\ufff9\ufffe\u2800\U00013430\U0010fffd"


@pytest.mark.parametrize("hidden", HIDDEN, ids=lambda c: f"U+{ord(c):04X}")
def test_no_new_manifest_holds_an_invisible_character(hidden: str) -> None:
    """P5: in format 1 only bytes that are on their way already are still read."""
    first = MINIMAL_TOML.replace('title = "', f'title = "{hidden}')
    second = PLAIN_TOML.replace("Open doors", f"Open{hidden}doors")
    for text in (first, second):
        assert hidden in text
        (told,) = problems(text).values()
        assert "printable" in told or f"the invisible character U+{ord(hidden):04X}" in told
    document = {**MINIMAL_DOCUMENT, "title": f"A{hidden}B"}
    if hidden != "\u2066":  # an override, which no format ever took
        assert Manifest.from_bytes(packed(document)).title == f"A{hidden}B"
