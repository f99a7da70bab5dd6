"""A manifest has one canonical encoding, one digest, and every field in both."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import Manifest, ManifestError, receipt_page, receipt_tag
from protocol_spec.fields import Text, Wrong
from tests.support.protocol import vectors
from tests.support.protocol.manifest_cases import (
    DAY,
    FLEET_DOCUMENT,
    MINIMAL_DOCUMENT,
    MINIMAL_TOML,
    NEW_YEAR_2027,
)
from tests.support.protocol.reference_wire import packed

VECTORS = {entry["name"]: entry for entry in vectors.load("manifests.json")["good"]}
names = pytest.mark.parametrize("name", sorted(VECTORS))
Document = dict[str, Any]


@names
def test_toml_becomes_the_published_bytes(name: str) -> None:
    entry = VECTORS[name]
    manifest = Manifest.from_toml(entry["toml"])
    assert manifest.to_bytes().hex() == entry["hex"]
    assert manifest.digest.hex() == entry["digest"]
    assert manifest.campaign == entry["campaign"]


@names
def test_the_published_bytes_become_the_same_manifest(name: str) -> None:
    entry = VECTORS[name]
    assert Manifest.from_bytes(bytes.fromhex(entry["hex"])) == Manifest.from_toml(entry["toml"])


@names
def test_attributes_run_as_published(name: str) -> None:
    manifest = Manifest.from_toml(VECTORS[name]["toml"])
    got = [
        {
            "name": attribute.name,
            "k": attribute.k,
            "runs": way.protocol,
            "answer_bytes": way.answer_bytes,
            "body_bytes": body_bytes,
        }
        for attribute, way, body_bytes in zip(
            manifest.attributes, manifest.ways, manifest.body_lengths
        )
    ]
    assert got == VECTORS[name]["attributes"]
    assert manifest.body_bytes == max(manifest.body_lengths)
    assert manifest.calibrations == tuple(way.calibration for way in manifest.ways)
    assert manifest.body_formats == tuple(way.counted for way in manifest.ways)


@names
def test_receipts_stand_where_published(name: str) -> None:
    manifest = Manifest.from_toml(VECTORS[name]["toml"])
    for entry in VECTORS[name]["receipts"]:
        assert receipt_tag(manifest, entry["round"], entry["device"]).hex() == entry["tag"]
        assert receipt_page(manifest, entry["device"]) == entry["page"]


def test_the_digest_is_of_the_bytes() -> None:
    manifest = Manifest.from_toml(MINIMAL_TOML)
    assert manifest.digest == hashlib.sha256(manifest.to_bytes()).digest()
    assert manifest.campaign == f"doors-{manifest.digest.hex()[:8]}"


def test_what_the_author_left_out() -> None:
    manifest = Manifest.from_toml(MINIMAL_TOML)
    assert (manifest.min_reports, manifest.max_values, manifest.receipt_pages) == (200, 1, 16)
    assert manifest.retention == 30 * DAY
    assert manifest.rounds.grace == manifest.rounds.period == DAY
    assert manifest.created == manifest.rounds.first == NEW_YEAR_2027
    assert manifest.expires == manifest.rounds.end == NEW_YEAR_2027 + 31 * DAY
    (door,) = manifest.attributes
    assert (door.protocol, door.method, door.edges, door.unit) == ("auto", "exact", None, "")


@pytest.mark.parametrize(
    ("text", "seconds"), [('"90s"', 90), ('"15m"', 900), ('"6h"', 21_600), ('"2w"', 14 * DAY)]
)
def test_durations_in_words_or_seconds(text: str, seconds: int) -> None:
    for written in (text, str(seconds)):
        manifest = Manifest.from_toml(MINIMAL_TOML.replace('"1d"', written))
        assert manifest.rounds.period == seconds


def test_instants_in_any_zone() -> None:
    for zone in ("2027-01-01T00:00:00Z", "2026-12-31T19:00:00-05:00", str(NEW_YEAR_2027)):
        text = MINIMAL_TOML.replace("2027-01-01T00:00:00Z", zone)
        assert Manifest.from_toml(text) == Manifest.from_toml(MINIMAL_TOML)


def test_whole_epsilons_may_be_written_without_a_point() -> None:
    assert Manifest.from_toml(MINIMAL_TOML).eps_inf == 1.0
    assert Manifest.from_toml(MINIMAL_TOML.replace("eps_inf = 1", "eps_inf = 1.0")) == (
        Manifest.from_toml(MINIMAL_TOML)
    )


def test_a_manifest_cannot_be_changed() -> None:
    manifest = Manifest.from_toml(MINIMAL_TOML)
    for field in dataclasses.fields(manifest):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(manifest, field.name, None)


def test_from_file(tmp_path: Path) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text(MINIMAL_TOML, encoding="utf-8")
    assert Manifest.from_file(path) == Manifest.from_file(str(path)) == GOOD_MINIMAL


GOOD_MINIMAL = Manifest.from_toml(MINIMAL_TOML)

# Another valid value for every field of the wire, by its path.
OTHER: dict[tuple[str | int, ...], Any] = {
    ("slug",): "gates",
    ("title",): "Open gates",
    ("purpose",): "Learn something else.",
    ("owner",): "Someone",
    ("contact",): "gates@example.org",
    ("created",): NEW_YEAR_2027 - 1,
    ("expires",): NEW_YEAR_2027 + 32 * DAY,
    ("retention",): 0,
    ("eps_inf",): 1.0000000000000002,
    ("eps_1",): 0.5000000000000001,
    ("min_reports",): 201,
    ("max_values",): 2,
    ("receipt_pages",): 17,
    ("rounds", "first"): NEW_YEAR_2027 + 1,
    ("rounds", "period"): DAY - 1,
    ("rounds", "count"): 29,
    ("rounds", "grace"): DAY - 1,
    ("attributes", 0, "name"): "gate",
    ("attributes", 0, "question"): "Is the gate open?",
    ("attributes", 0, "values"): ["closed", "open"],
    ("attributes", 0, "protocol"): "L-GRR",
    ("attributes", 0, "calibration"): "paper",
}


def changed(document: Document, path: tuple[str | int, ...], value: Any) -> bytes:
    """The bytes of a document with one field replaced."""
    copied: Any = copy.deepcopy(document)
    table = copied
    for step in path[:-1]:
        table = table[step]
    table[path[-1]] = value
    if path == ("rounds", "first"):  # what follows from it must stay possible
        copied["expires"] += 1
    return packed(copied)


def test_the_digest_changes_with_any_field() -> None:
    digests = {GOOD_MINIMAL.digest}
    for path, value in OTHER.items():
        manifest = Manifest.from_bytes(changed(MINIMAL_DOCUMENT, path, value))
        assert manifest.digest not in digests, path
        digests.add(manifest.digest)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, (*path, i))]
    return [path]


def test_the_list_of_other_values_is_complete() -> None:
    assert set(leaves(MINIMAL_DOCUMENT)) == {*OTHER, ("format",)}


def refused(payload: bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_bytes(payload)
    return str(caught.value)


NOT_CANONICAL: dict[str, bytes] = {
    "a whole epsilon": changed(MINIMAL_DOCUMENT, ("eps_inf",), 1),
    "a duration in words": changed(MINIMAL_DOCUMENT, ("rounds", "period"), "1d"),
    "other order": packed(dict(reversed(MINIMAL_DOCUMENT.items()))),
    "a default left out": packed({k: v for k, v in MINIMAL_DOCUMENT.items() if k != "max_values"}),
    "an integer in more bytes": packed(MINIMAL_DOCUMENT).replace(
        b"receipt_pages\x10", b"receipt_pages\xcc\x10"
    ),
    "text with a longer header": packed(MINIMAL_DOCUMENT).replace(b"\xa5doors", b"\xd9\x05doors"),
    "a float32": packed(MINIMAL_DOCUMENT).replace(
        b"eps_1\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00", b"eps_1\xca\x3f\x00\x00\x00"
    ),
    "a key twice": b"\xde\x00\x11" + packed(MINIMAL_DOCUMENT)[3:] + b"\xa4slug\xa5doors",
    "a negative zero": changed(FLEET_DOCUMENT, ("attributes", 6, "edges"), [-0.0, 0.25, 0.5, 1.0]),
}


@pytest.mark.parametrize("why", NOT_CANONICAL)
def test_only_the_canonical_encoding_is_read(why: str) -> None:
    payload = NOT_CANONICAL[why]
    assert payload not in (packed(MINIMAL_DOCUMENT), packed(FLEET_DOCUMENT))
    assert "canonical" in refused(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80",
        b"\x90",
        b"\xc0",
        b"\xdf\xff\xff\xff\xff",
        packed(MINIMAL_DOCUMENT)[:-1],
        packed(MINIMAL_DOCUMENT) + b"\x00",
        packed([MINIMAL_DOCUMENT]),
        packed({**MINIMAL_DOCUMENT, "host": "pi"}),
        packed({**MINIMAL_DOCUMENT, "format": 2}),
        packed({**MINIMAL_DOCUMENT, "slug": b"doors"}),
        packed({**MINIMAL_DOCUMENT, "eps_1": float("nan")}),
        packed({**MINIMAL_DOCUMENT, "rounds": [1, 2, 3, 4]}),
        packed({**MINIMAL_DOCUMENT, "attributes": {}}),
        packed({**MINIMAL_DOCUMENT, "created": 1 << 63}),
        b"\x00" * 262_145,
    ],
)
def test_other_bytes_are_refused(payload: bytes) -> None:
    assert refused(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_cleanly(payload: bytes) -> None:
    assert refused(payload)


@given(st.data())
def test_changed_bytes_are_refused_or_another_manifest(data: st.DataObject) -> None:
    payload = bytearray(packed(MINIMAL_DOCUMENT))
    for _ in range(data.draw(st.integers(1, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ManifestError):
        manifest = Manifest.from_bytes(bytes(payload))
        assert manifest.to_bytes() == payload
        assert (manifest == GOOD_MINIMAL) == (payload == packed(MINIMAL_DOCUMENT))


# --- any valid manifest, there and back ---------------------------------------------------------


def _is_seen(longest: int, text: str) -> bool:
    with contextlib.suppress(Wrong):
        return bool(Text(longest)(text))
    return False


@cache
def line(longest: int) -> st.SearchStrategy[str]:
    """What an author may write. A filter of each character would take most of the time."""
    text = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=longest)
    return text.filter(partial(_is_seen, longest))


VALUES = st.lists(line(20), min_size=2, max_size=20, unique=True)
EDGES = st.lists(
    st.floats(-1e300, 1e300).map(lambda x: x + 0.0), min_size=3, max_size=12, unique=True
).map(sorted)


UNIT = st.just("") | line(16)
SLUG = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)


@st.composite
def attributes(draw: st.DrawFn, name: str) -> Document:
    numeric = draw(st.booleans())
    domain: Document = {"values": draw(VALUES)}
    if numeric:
        domain = {"edges": draw(EDGES), "unit": draw(UNIT)}
    return {
        "name": name,
        "question": draw(line(40)),
        **domain,
        "protocol": draw(st.sampled_from(("auto", "L-GRR", "L-SUE", "L-OSUE"))),
        "calibration": draw(st.sampled_from(("exact", "paper"))),
    }


@st.composite
def documents(draw: st.DrawFn) -> Document:
    first, period = draw(st.integers(0, 1 << 33)), draw(st.integers(1, 366 * DAY))
    count, grace = draw(st.integers(1, 500)), draw(st.integers(0, 366 * DAY))
    eps_inf = draw(st.floats(1e-3, 20))
    return {
        "format": 1,
        "slug": draw(SLUG),
        "title": draw(line(30)),
        "purpose": draw(line(60)),
        "owner": draw(line(30)),
        "contact": draw(line(30)),
        "created": draw(st.integers(0, first)),
        "expires": first + period * count + grace + draw(st.integers(0, 1 << 20)),
        "retention": draw(st.integers(0, 100 * 366 * DAY)),
        "eps_inf": eps_inf,
        "eps_1": draw(st.floats(0.01, 0.9)) * eps_inf,
        "min_reports": draw(st.integers(1, 10**12)),
        "max_values": draw(st.integers(1, 2)),
        "receipt_pages": draw(st.integers(1, 65_536)),
        "rounds": {"first": first, "period": period, "count": count, "grace": grace},
        "attributes": [draw(attributes(f"a{i}")) for i in range(draw(st.integers(1, 4)))],
    }


def as_toml(document: Document) -> str:
    """The document as an analyst might write it."""
    top = [f"{k} = {_toml(v)}" for k, v in document.items() if k not in ("rounds", "attributes")]
    lines = [*top, "[rounds]", *(f"{k} = {v}" for k, v in document["rounds"].items())]
    for attribute in document["attributes"]:
        lines += ["[[attributes]]", *(f"{k} = {_toml(v)}" for k, v in attribute.items())]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@given(documents())
def test_any_valid_manifest_there_and_back(document: Document) -> None:
    payload = packed(document)
    read = Manifest.from_bytes(payload)
    assert read.to_bytes() == payload
    assert Manifest.from_toml(as_toml(document)) == read
    assert read.campaign.startswith(f"{document['slug']}-")
    assert [a.name for a in read.attributes] == [a["name"] for a in document["attributes"]]
    assert len(read.calibrations) == len(read.body_formats) == len(read.attributes)
