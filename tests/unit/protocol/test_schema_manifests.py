"""The schema of manifests takes what the reader takes, field by field, and refuses the rest."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from protocol_spec import Manifest, ManifestError, canonical, limits, manifest_reader
from tests.support.protocol.asyncapi import SCHEMAS, Schema, fits, resolved
from tests.support.protocol.oddities import LEVELS

TOML = """\
format = 1
slug = "fleet"
title = "Fleet"
purpose = "Test"
owner = "Tests"
contact = "tests@example.org"
eps_inf = 2.0
eps_1 = 1.0
[rounds]
first = 2027-01-01T00:00:00Z
period = "1h"
count = 24
[[attributes]]
name = "model"
question = "Which model?"
values = ["a", "b", "c"]
[[attributes]]
name = "heat"
question = "How warm?"
edges = [-inf, 0, 40.5, inf]
unit = "°C"
protocol = "L-OSUE"
calibration = "paper"
"""
CAMPAIGN = Manifest.from_toml(TOML)


def _map_of(payload: bytes) -> dict[str, Any]:
    return dict(canonical.unpack_manifest(payload))


def test_a_manifest_has_the_fields_of_its_schema_in_order() -> None:
    document = _map_of(CAMPAIGN.to_bytes())
    assert fits(document, SCHEMAS["manifest"])
    places = [(document, "manifest"), (document["attributes"][0], "namedValues")]
    places += [(document["attributes"][1], "bins")]
    for found, name in places:
        assert list(found) == SCHEMAS[name]["required"] == list(SCHEMAS[name]["properties"])
    rounds = SCHEMAS["manifest"]["properties"]["rounds"]
    assert list(document["rounds"]) == rounds["required"] == list(rounds["properties"])


def _set(document: dict[str, Any], path: Sequence[str | int], value: Any) -> dict[str, Any]:
    """A copy of the document with another value, or without the field when it is `...`."""
    changed = copy.deepcopy(document)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


def _plain(value: Any) -> Any:
    """The same with lists for tuples, to change and pack again."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


MANIFEST: dict[str, Any] = _plain(_map_of(CAMPAIGN.to_bytes()))


def _paths() -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    """Every single field of the manifest and its schema."""
    top = SCHEMAS["manifest"]["properties"]
    for name, schema in top.items():
        if name == "rounds":
            yield from (((name, inner), each) for inner, each in schema["properties"].items())
        elif name != "attributes":
            yield (name,), schema
    for place, kind in enumerate(("namedValues", "bins")):
        for name, schema in SCHEMAS[kind]["properties"].items():
            yield ("attributes", place, name), schema


FIELDS = list(_paths())
NAMES = ["/".join(map(str, path)) for path, _ in FIELDS]


@pytest.mark.parametrize(("path", "_schema"), FIELDS, ids=NAMES)
def test_a_manifest_needs_every_field(path: Sequence[str | int], _schema: Schema) -> None:
    changed = _set(MANIFEST, path, ...)
    assert not fits(changed, SCHEMAS["manifest"])
    with pytest.raises(ManifestError):
        Manifest.from_bytes(canonical.pack(changed))


@pytest.mark.parametrize(
    "path", [("extra",), ("rounds", "extra"), ("attributes", 0, "unit"), ("attributes", 1, "extra")]
)
def test_a_manifest_has_no_other_field(path: Sequence[str | int]) -> None:
    changed = _set(MANIFEST, path, "x")
    assert not fits(changed, SCHEMAS["manifest"])
    with pytest.raises(ManifestError):
        Manifest.from_bytes(canonical.pack(changed))


def _around(schema: Schema) -> Iterator[Any]:
    """Values at the ends of what a schema allows, and just beyond."""
    schema = resolved(schema)
    if schema["type"] == "integer":
        low, high = (schema["const"],) * 2 if "const" in schema else _bounds(schema)
        yield from (low - 1, low, high, high + 1)
    elif schema["type"] == "number":
        low, high = map(float, _bounds(schema))
        yield from (math.nextafter(low, 0.0), low, high, math.nextafter(high, math.inf))
    elif schema["type"] == "array":
        lengths = (schema["minItems"], schema["maxItems"])
        for length in (lengths[0] - 1, *lengths, lengths[1] + 1):
            numbers = schema["items"]["type"] == "number"
            yield [float(i) if numbers else f"v{i}" for i in range(length)]
        if schema["items"]["type"] == "string":
            longest = schema["items"]["maxLength"]
            yield from (["a", "x" * length] for length in (0, 1, longest, longest + 1))
            yield ["a", "a"]
    elif "maxLength" in schema:
        lengths = (schema["minLength"], schema["maxLength"])
        yield from ("x" * n for n in {max(lengths[0] - 1, 0), *lengths, lengths[1] + 1})
    elif "pattern" in schema:
        yield from LEVELS
    else:
        yield from (*schema["enum"], "", "other")


def _bounds(schema: Schema) -> tuple[Any, Any]:
    return schema["minimum"], schema["maximum"]


@pytest.mark.parametrize(("path", "schema"), FIELDS, ids=NAMES)
def test_a_manifests_limits_are_those_of_the_code(
    path: Sequence[str | int], schema: Schema
) -> None:
    """The reader names each field it refuses; a wrong format keeps it from comparing fields."""
    spoilt = MANIFEST if path == ("format",) else {**MANIFEST, "format": 0}
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]
    answers = set()
    for value in _around(schema):
        try:
            manifest_reader.read_manifest(_set(spoilt, path, value))
            refused = False
        except ManifestError as error:
            refused = name in {problem.field for problem in error.problems}
        assert fits(value, schema) is not refused, value
        answers.add(refused)
    assert answers == {True, False}


def test_a_manifest_has_as_many_attributes_as_the_code_allows() -> None:
    described = SCHEMAS["manifest"]["properties"]["attributes"]
    assert (described["minItems"], described["maxItems"]) == (1, limits.MAX_ATTRIBUTES)


def test_numbers_of_the_wrong_type_fit_neither() -> None:
    for path, value in (
        (("eps_inf",), 2),
        (("created",), 1.0),
        (("attributes", 1, "edges"), [0, 1, 2]),
    ):
        changed = _set(MANIFEST, path, value)
        assert not fits(changed, SCHEMAS["manifest"])
        with pytest.raises(ManifestError):
            Manifest.from_bytes(canonical.pack(changed))
