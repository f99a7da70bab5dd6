"""A manifest has one canonical encoding and one digest, or is refused with every problem named."""

from __future__ import annotations

import contextlib
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import (
    NOT_KNOWN,
    AllomfreeError,
    Manifest,
    ManifestError,
    Problem,
    Schedule,
    receipt_page,
    receipt_tag,
)
from protocol_spec.mechanisms import MECHANISMS
from tests.support.harness import ROOT, every
from tests.support.protocol import vectors
from tests.support.protocol.manifest_cases import (
    BY_NAME,
    CELLS_TOML,
    DAY,
    FLEET,
    KEY,
    NEW_YEAR_2027,
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

VECTORS = {entry["name"]: entry for entry in vectors.load("manifests.json")["good"]}
names = pytest.mark.parametrize("name", sorted(VECTORS))
Document = dict[str, Any]


def problems(toml: str) -> tuple[Problem, ...]:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(toml)
    assert isinstance(caught.value, AllomfreeError)
    assert isinstance(caught.value, ValueError)
    return caught.value.problems


# --- as published --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_the_published_manifests(name: str) -> None:
    """TOML becomes the published bytes, which become the same manifest, with the same receipts."""
    entry = VECTORS[name]
    manifest = Manifest.from_toml(entry["toml"])
    assert manifest.to_bytes().hex() == entry["hex"]
    assert manifest.digest.hex() == entry["digest"]
    assert manifest.campaign == entry["campaign"]
    assert Manifest.from_bytes(bytes.fromhex(entry["hex"])) == manifest
    assert [
        {
            "name": attribute.name,
            "k": attribute.k,
            "runs": mechanism.protocol,
            "answer_bytes": mechanism.answer_bytes,
            "body_bytes": manifest.body_bytes,
        }
        for attribute, mechanism in zip(manifest.attributes, manifest.mechanisms)
    ] == entry["attributes"]
    for receipt in entry["receipts"]:
        assert receipt_tag(manifest, receipt["round"], receipt["device"]).hex() == receipt["tag"]
        assert receipt_page(manifest, receipt["device"]) == receipt["page"]


def test_what_the_author_left_out() -> None:
    manifest = Manifest.from_toml(PLAIN_TOML)
    assert (manifest.min_reports, manifest.max_values, manifest.receipt_pages) == (200, 1, 16)
    assert manifest.retention == 30 * DAY
    assert manifest.rounds.grace == manifest.rounds.period == DAY
    assert manifest.created == manifest.rounds.first == NEW_YEAR_2027
    assert manifest.expires == manifest.rounds.end == NEW_YEAR_2027 + 31 * DAY
    (door,) = manifest.attributes
    assert (door.protocol, door.method, door.edges, door.unit) == ("auto", "exact", None, "")
    assert door.values[-1] == NOT_KNOWN
    assert (door.changes, door.levels) == (False, ())
    chosen = (manifest.reporting, manifest.choose_for, manifest.devices, manifest.operator)
    assert chosen == ("memoized", "round", 0, b"")
    assert (manifest.rounds.each, manifest.rounds.drain) == (0, 600)


@pytest.mark.parametrize(
    ("text", "seconds"), [('"90s"', 90), ('"15m"', 900), ('"6h"', 21_600), ('"2w"', 14 * DAY)]
)
def test_durations_in_words_or_seconds(text: str, seconds: int) -> None:
    for written in (text, str(seconds)):
        manifest = Manifest.from_toml(PLAIN_TOML.replace('"1d"', written))
        assert manifest.rounds.period == seconds


def test_instants_in_any_zone() -> None:
    for zone in ("2027-01-01T00:00:00Z", "2026-12-31T19:00:00-05:00", str(NEW_YEAR_2027)):
        text = PLAIN_TOML.replace("2027-01-01T00:00:00Z", zone)
        assert Manifest.from_toml(text) == Manifest.from_toml(PLAIN_TOML)


# Another valid value for every field of the wire, by its path in the manifest "tour".
OTHER: dict[str, Any] = {
    "slug": "gates",
    "title": "Open gates",
    "purpose": "Learn something else.",
    "owner": "Someone",
    "contact": "gates@example.org",
    "created": NEW_YEAR_2027 - 1,
    "expires": NEW_YEAR_2027 + 32 * DAY,
    "retention": 0,
    "eps_inf": 1.0000000000000002,
    "eps_1": 0.5000000000000001,
    "choose_for": "round",
    "min_reports": 201,
    "max_values": 1,
    "devices": 0,
    "receipt_pages": 17,
    "operator": b"",
    "rounds.first": NEW_YEAR_2027 + 1,
    "rounds.period": DAY - 1,
    "rounds.count": 29,
    "rounds.grace": DAY - 1,
    "rounds.drain": 91,
    "attributes[0].name": "gate",
    "attributes[0].question": "Is the gate open?",
    "attributes[0].values": ["closed", "open", "other"],
    "attributes[0].changes": True,
    "attributes[0].protocol": "L-GRR",
    "attributes[0].calibration": "paper",
    "attributes[2].edges": [-math.inf, 0.0, 41.0, math.inf],
    "attributes[2].unit": "K",
    "attributes[2].low": None,
    "attributes[3].high": None,
}


def test_the_digest_changes_with_any_field() -> None:
    digests = {Manifest.from_bytes(packed(TOUR)).digest}
    for path, value in OTHER.items():
        made = changed(TOUR, path, value)
        if path == "rounds.first":  # what follows from it must stay possible
            made["expires"] += 1
        digests.add(Manifest.from_bytes(packed(made)).digest)
    assert len(digests) == 1 + len(OTHER)
    # These have one valid value with `memoized`; other mechanisms have others.
    named = {path.rpartition(".")[2] for path in OTHER} | {"format", "reporting", "each"}
    attributes = {field for attribute in TOUR["attributes"] for field in attribute}
    assert named == {*TOUR, *TOUR["rounds"], *attributes} - {"rounds", "attributes"}


# --- bytes ---------------------------------------------------------------------------------------


def refused(payload: bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_bytes(payload)
    return str(caught.value)


def test_every_fault_of_a_field_is_refused_by_its_name() -> None:
    """Also other encodings of the same values, and bytes that are no manifest."""
    entries = vectors.load("manifests.json")["refused_fields"]
    assert len({entry["hex"] for entry in entries}) == len(entries) > 200
    for entry in entries:
        with pytest.raises(ManifestError) as caught:
            Manifest.from_bytes(bytes.fromhex(entry["hex"]))
        assert entry["field"] in {problem.field for problem in caught.value.problems}, entry["why"]
        assert all(problem.remedy for problem in caught.value.problems)
    assert refused(b"\x00" * 262_145)
    zero = changed(FLEET, "attributes[6].edges", [-0.0, 0.25, 0.5, 1.0])
    assert "canonical" in refused(packed(zero))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_cleanly(payload: bytes) -> None:
    assert refused(payload)


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
        assert len(manifest.mechanisms) == len(manifest.attributes)


# --- what a refusal says -------------------------------------------------------------------------


def test_what_an_analyst_may_leave_out() -> None:
    """The shortest manifest has twelve lines; what a device is told is always complete."""
    text = (ROOT / "docs/examples/home-heat.toml").read_text(encoding="utf-8")
    assert sum(1 for line in text.splitlines() if line) == 12
    short = Manifest.from_toml(text, now=1_800_000_000)
    said = (short.format, short.rounds.first, short.rounds.count, short.eps_1)
    assert said == (1, 1_800_000_000, 90, 0.6)
    assert Manifest.from_bytes(short.to_bytes()) == short
    once = text.replace("eps_inf", 'reporting = "once"\neps_inf')
    assert Manifest.from_toml(once).eps_1 == 2.0
    missing = problems(text.replace("eps_inf = 2.0", ""))
    assert [problem.field for problem in missing] == ["eps_inf"]


@every(
    "entry",
    vectors.load("manifests.json")["refused"],
    ids=lambda entry: f"{entry['field']} of\n{entry['toml']}",
)
def test_the_published_refusals(entry: dict[str, str]) -> None:
    found = problems(entry["toml"])
    assert entry["field"] in [problem.field for problem in found]
    for problem in found:
        assert problem.remedy
        separator = ":" if problem.value is None else " = "
        assert str(problem).startswith(f"{problem.field}{separator}")
        assert str(problem).endswith(problem.remedy)


# A manifest, a part of it, what stands there instead, and what the refusal must contain.
MESSAGES = (
    (
        PLAIN_TOML,
        "eps_inf = 1",
        "eps_inf = 25.0",
        "eps_inf = 25.0: must be a number from 1e-09 to 20",
    ),
    (PLAIN_TOML, "eps_1 = 0.5", "eps_1 = 1.5", "eps_1 = 1.5: must be smaller than eps_inf = 1.0"),
    (PLAIN_TOML, '"1d"', '"1 day"', 'rounds.period = "1 day": write a duration such as'),
    (
        PLAIN_TOML,
        "T00:00:00Z",
        "T00:00:00",
        "rounds.first = 2027-01-01T00:00:00: add the time zone",
    ),
    (
        PLAIN_TOML,
        "count = 30",
        "count = 0",
        "rounds.count = 0: must be a whole number from 1 to 65536",
    ),
    (
        PLAIN_TOML,
        '["open", "closed"]',
        '["a", "a"]',
        'attributes[0].values = ["a", "a"]: must not repeat "a"',
    ),
    (PLAIN_TOML, 'slug = "doors"', "", "slug: is required"),
    (PLAIN_TOML, "format = 1", "format = 2", "must be 1: this version reads no other format"),
    (PLAIN_TOML, '"door"', '"Door"', 'attributes[0].name = "Door": use a-z first'),
    (
        PLAIN_TOML,
        "eps_inf = 1",
        "eps_inf = 1\nmax_values = 9",
        "max_values = 9: no attribute has more than 3",
    ),
    (PLAIN_TOML, "eps_1 = 0.5", "eps_1 = 0.5\nmin_report = 5", 'did you mean "min_reports"?'),
    (
        PLAIN_TOML,
        "count = 30",
        "count = 30\ngraze = 5",
        'rounds.graze = 5: is not a field of [rounds]; did you mean "grace"?',
    ),
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


@pytest.mark.parametrize(("toml", "old", "new", "message"), MESSAGES)
def test_the_message(toml: str, old: str, new: str, message: str) -> None:
    assert old in toml
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(toml.replace(old, new))
    assert message in str(caught.value)


def test_an_infeasible_protocol_says_what_it_could_reach() -> None:
    text = PLAIN_TOML.replace("0.5", "0.7") + 'protocol = "L-SOUE"\n'
    (problem,) = problems(text)
    assert problem.field == "attributes[0].protocol"
    assert problem.value == "L-SOUE"
    assert "0.6636433185293905" in problem.remedy
    assert "L-OSUE" in problem.remedy


def test_all_problems_are_listed_at_once() -> None:
    text = (
        PLAIN_TOML.replace("doors", "Doors", 1)
        .replace("eps_inf = 1", "eps_inf = nan\ncolour = 3")
        .replace("count = 30", "count = -1")
        .replace('["open", "closed"]', '["open"]\nprotocol = "best"')
    )
    fields = [problem.field for problem in problems(text)]
    inside = ("attributes[0].protocol", "attributes[0].values", "rounds.count")
    assert sorted(fields) == sorted(("slug", "eps_inf", "colour", *inside))


def test_problems_between_fields_are_listed_at_once_too() -> None:
    head = "created = 2028-01-01T00:00:00Z\nexpires = 2027-01-01T00:00:00Z\nmax_values = 4\n"
    fields = {problem.field for problem in problems(head + PLAIN_TOML)}
    assert fields == {"created", "expires", "max_values"}


def test_long_values_are_cut_in_the_message() -> None:
    (problem,) = problems(PLAIN_TOML.replace('"Open doors"', f'"{"x" * 5000}"'))
    assert len(str(problem)) < 260
    assert problem.value == "x" * 5000


def test_a_manifest_too_large_for_the_wire() -> None:
    values = [f"{'x' * 90}{i}" for i in range(4000)]
    text = PLAIN_TOML.replace('["open", "closed"]', repr(values))
    (problem,) = problems(text)
    assert problem.field == "manifest"
    assert "262144" in problem.remedy


def test_more_values_or_attributes_than_allowed() -> None:
    values = repr([f"v{i}" for i in range(4097)])
    (problem,) = problems(PLAIN_TOML.replace('["open", "closed"]', values))
    assert problem.field == "attributes[0].values"
    head, attribute = PLAIN_TOML.split("[[attributes]]")
    many = "".join("[[attributes]]" + attribute.replace("door", f"d{i}", 1) for i in range(129))
    (problem,) = problems(head + many)
    assert problem.field == "attributes"


def test_problems_of_a_file_begin_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "heat.toml"
    file.write_text(PLAIN_TOML, encoding="utf-8")
    assert (
        Manifest.from_file(file) == Manifest.from_file(str(file)) == Manifest.from_toml(PLAIN_TOML)
    )
    file.write_text(PLAIN_TOML.replace('slug = "doors"', "").replace("eps_inf = 1", ""))
    with pytest.raises(ManifestError) as caught:
        Manifest.from_file(file)
    lines = [f"{file}: slug: is required", f"{file}: eps_inf: is required"]
    assert set(lines) == set(str(caught.value).splitlines())
    file.write_text("slug = =\n")
    with pytest.raises(ManifestError, match=r"heat\.toml: manifest: is not TOML: .*line 1"):
        Manifest.from_file(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match=r"heat\.toml: .*UTF-8"):
        Manifest.from_file(file)
    for path in (tmp_path, tmp_path / "cold.toml"):
        with pytest.raises(ManifestError, match=f"{path}: manifest: cannot be read"):
            Manifest.from_file(path)


def test_one_wrong_field_does_not_hide_what_is_wrong_between_others() -> None:
    text = "created = 2028-01-01T00:00:00Z\n" + PLAIN_TOML.replace("doors", "Doors", 1)
    found = {problem.field: str(problem) for problem in problems(text)}
    assert found.keys() == {"slug", "created"}
    assert found["created"] == (
        "created = 2028-01-01T00:00:00Z: must not be after rounds.first = 2027-01-01T00:00:00Z"
    )


NOW = 1_800_000_000


def test_now_is_resolved_before_anything_is_published() -> None:
    text = PLAIN_TOML.replace("2027-01-01T00:00:00Z", '"now"')
    manifest = Manifest.from_toml(text, now=NOW)
    assert (manifest.rounds.first, manifest.created) == (NOW, NOW)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    written = datetime.fromtimestamp(NOW, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert Manifest.from_toml(text.replace('"now"', written)).digest == manifest.digest
    before = int(time.time())
    assert before <= Manifest.from_toml(text).rounds.first <= time.time()
    with pytest.raises(ManifestError, match="without quotation marks"):
        Manifest.from_toml(text.replace('"now"', '"Now"'))


def test_an_eps_1_too_large_is_listed_with_other_problems() -> None:
    text = PLAIN_TOML.replace("eps_1 = 0.5", "eps_1 = 1.5")
    for old, new, field in (
        ("count = 30", "count = 0", "rounds.count"),
        ('"door"', '"Door"', "attributes[0].name"),
        ("eps_inf = 1", "eps_inf = 1\nmax_values = 0", "max_values"),
    ):
        found = {problem.field: str(problem) for problem in problems(text.replace(old, new))}
        assert found.keys() == {"eps_1", field}
        assert found["eps_1"].startswith("eps_1 = 1.5: must be smaller than eps_inf = 1.0")
    (only,) = problems(text)
    assert only.field == "eps_1"
    (only,) = problems(text.replace("eps_inf = 1", "eps_inf = nan"))
    assert only.field == "eps_inf"


def test_a_wrong_domain_has_no_second_error_that_follows_from_it() -> None:
    text, domain = PLAIN_TOML, '["open", "closed"]'
    twice = text.replace(domain, '["a", "a"]\notherwise = "zzz"')
    assert [problem.field for problem in problems(twice)] == ["attributes[0].values"]
    falling = text.replace(f"values = {domain}", "edges = [inf, 2, 1]\nlow = 0.0\nhigh = 9.0")
    assert [problem.field for problem in problems(falling)] == ["attributes[0].edges"]
    numbers = text.replace(f"values = {domain}", 'edges = [1, 2, 3]\notherwise = "zzz"')
    assert [problem.field for problem in problems(numbers)] == ["attributes[0].otherwise"]


@pytest.mark.parametrize(
    ("written", "hint"), [("nwo", '; did you mean "now"?'), ("NOW", '; did you mean "now"?')]
)
def test_the_first_round_may_also_begin_now(written: str, hint: str) -> None:
    remedy = 'write it without quotation marks, as in 2027-01-01T00:00:00Z, or write "now"'
    text = PLAIN_TOML.replace("2027-01-01T00:00:00Z", f'"{written}"')
    assert [problem.remedy for problem in problems(text)] == [remedy + hint]
    (problem,) = problems(text.replace(written, "tomorrow"))
    assert problem.remedy == remedy
    (problem,) = problems(f'created = "{written}"\n{PLAIN_TOML}')
    assert "now" not in problem.remedy


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
        "reporting": st.sampled_from([*MECHANISMS]),
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
    mechanism, memoized = chosen["reporting"], chosen["reporting"] == "memoized"
    each, levels = chosen["each"], chosen["levels"]
    once = mechanism == "once"
    fitting = {
        "rounds.each": 1 <= each <= 30 if once else each == 0,
        "eps_1": (each == 0 or chosen["eps_1"] == 1.0 / each) if once else chosen["eps_1"] < 1.0,
        "max_values": memoized or chosen["max_values"] == 1,
        "choose_for": chosen["choose_for"] == "round"
        or (memoized and chosen["protocol"] == "auto"),
        "attributes[0].protocol": chosen["protocol"] in ALLOWED[mechanism],
        "attributes[0].calibration": memoized or chosen["calibration"] == "exact",
        "attributes[0].levels": not levels
        or (mechanism == "nested" and (levels[0], levels[-1]) == (chosen["eps_1"], 1.0)),
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
        assert manifest.mechanisms[0].reporting == chosen["reporting"]


# --- any valid manifest, there and back ----------------------------------------------------------


def line(longest: int) -> st.SearchStrategy[str]:
    """Text without marks, some of which are not seen and therefore refused."""
    fillers = "\u115f\u1160\u3164\uffa0"  # letters that are not seen
    printable = st.characters(exclude_categories=("C", "Z", "M"), exclude_characters=fillers)
    return st.text(printable, min_size=1, max_size=longest)


@st.composite
def attributes(draw: st.DrawFn, name: str, mechanism: str, budget: tuple[float, float]) -> Document:
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
    allowed = memoized if mechanism == "memoized" else ALLOWED[mechanism]
    rest = {
        "changes": draw(st.booleans()),
        "protocol": draw(st.sampled_from(allowed)),
        "calibration": draw(st.sampled_from(("exact", "paper")))
        if mechanism == "memoized"
        else "exact",
    }
    levels = {}
    if mechanism == "nested":
        eps_inf, eps_1 = budget
        steps = draw(st.lists(st.floats(0.01, 0.99), max_size=6, unique=True).map(sorted))
        between = [eps_1 + step * (eps_inf - eps_1) for step in steps]
        rising = [e for e in dict.fromkeys(between) if eps_1 < e < eps_inf]
        levels = {"levels": [eps_1, *rising, eps_inf]}
    return {"name": name, "question": draw(line(20)), **domain, **rest, **levels}


@st.composite
def documents(draw: st.DrawFn) -> Document:
    mechanism = draw(st.sampled_from([*MECHANISMS]))
    eps_inf, count = draw(st.floats(1e-3, 20)), draw(st.integers(1, 500))
    each = draw(st.integers(1, count)) if mechanism == "once" else 0
    eps_1 = eps_inf / each if each else draw(st.floats(0.01, 0.9)) * eps_inf
    names = [f"a{i}" for i in range(draw(st.integers(1, 4)))]
    made = [draw(attributes(name, mechanism, (eps_inf, eps_1))) for name in names]
    some = mechanism == "memoized" and any(a["protocol"] == "auto" for a in made)
    period = draw(st.integers(1, 366 * DAY))
    return document(
        made,
        reporting=mechanism,
        eps_inf=eps_inf,
        eps_1=eps_1,
        choose_for=draw(st.sampled_from(("round", "pooled") if some else ("round",))),
        max_values=draw(st.integers(1, 2)) if mechanism == "memoized" else 1,
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
    assert all(mechanism.answer_bytes <= read.body_bytes <= 513 for mechanism in read.mechanisms)
    for mechanism, attribute in zip(read.mechanisms, read.attributes):
        assert (mechanism.k, mechanism.reporting) == (attribute.k, made["reporting"])
        assert mechanism.lifetime_epsilon <= read.lifetime_epsilon
        assert read.eps_inf <= read.lifetime_epsilon
        device = mechanism.randomiser("a")
        memo = device.memoize(device.key(attribute.k - 1))
        answer = device.report(memo, 0)
        assert len(answer) == mechanism.answer_bytes
        assert mechanism.fault(answer) is None


HIDDEN = "\u200b\u200e\u2066\U000e0041\ue000\ufff9\ufffe\u2800\U00013430\U0010fffd"


@pytest.mark.parametrize("hidden", HIDDEN, ids=lambda c: f"U+{ord(c):04X}")
def test_no_manifest_holds_an_invisible_character(hidden: str) -> None:
    """P5: neither as its author writes it nor on the wire."""
    (found,) = problems(PLAIN_TOML.replace("Open doors", f"Open{hidden}doors"))
    message = str(found)
    assert "printable" in message or f"the invisible character U+{ord(hidden):04X}" in message
    assert "title" in refused(packed({**PLAIN, "title": f"A{hidden}B"}))


# --- Rounds follow from the manifest and a clock: whole, gapless, and none before or after.


HOURS = Schedule(first=1000, period=60, count=3, grace=25)
SCHEDULES = st.builds(
    Schedule,
    st.integers(0, 253_402_300_799),
    st.integers(1, 366 * 86_400),
    st.integers(1, 65_536),
    st.integers(0, 366 * 86_400),
)


@pytest.mark.parametrize(
    ("now", "number"),
    [
        (-1e12, None),
        (999.999, None),
        (1000, 0),
        (1000.0, 0),
        (1059.999, 0),
        (1060, 1),
        (1179.999, 2),
        (1180, None),
        (1e15, None),
    ],
)
def test_the_round_at_a_moment(now: float, number: int | None) -> None:
    assert HOURS.round_at(now) == number


def test_opening_closing_and_deadline() -> None:
    assert [HOURS.opens(i) for i in range(3)] == [1000, 1060, 1120]
    assert [HOURS.closes(i) for i in range(3)] == [1060, 1120, 1180]
    assert [HOURS.deadline(i) for i in range(3)] == [1085, 1145, 1205]
    assert HOURS.end == 1205
    assert HOURS.round_at(math.inf) is None


@given(SCHEDULES, st.data())
def test_a_round_is_open_from_its_first_instant_to_before_the_next(
    schedule: Schedule, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, schedule.count - 1))
    opens, closes = schedule.opens(number), schedule.closes(number)
    inside = data.draw(st.integers(opens, closes - 1))
    assert schedule.round_at(inside) == schedule.round_at(opens) == number
    assert schedule.round_at(closes) == (number + 1 if number + 1 < schedule.count else None)
    assert schedule.deadline(number) - closes == schedule.grace
    assert schedule.round_at(schedule.first - 1) is None
    assert schedule.end == schedule.deadline(schedule.count - 1)
