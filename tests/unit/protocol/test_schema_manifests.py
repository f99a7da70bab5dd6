"""The schema of manifests takes what the reader takes, field by field, and refuses the rest."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from protocol_spec import Manifest, ManifestError, encoding, limits, manifest
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
NESTED = """\
[[attributes]]
name = "model"
question = "Which model?"
values = ["a", "b", "c"]
levels = [1.0, 1.5, 2.0]
[[attributes]]
name = "heat"
question = "How warm?"
edges = [-inf, 0, 40.5, inf]
unit = "°C"
high = 60
levels = [1.0, 2.0]
"""
HEAD = TOML[: TOML.index("[[")].replace("eps_1", 'reporting = "nested"\neps_1')
CAMPAIGNS = {"memoized": Manifest.from_toml(TOML), "nested": Manifest.from_toml(HEAD + NESTED)}
# Of each campaign: the schema of the whole, and of its two attributes.
KINDS = {
    "memoized": ("manifest", "namedValues", "bins"),
    "nested": ("manifest", "nestedValues", "nestedBins"),
}
campaigns = pytest.mark.parametrize("campaign", CAMPAIGNS)


def _map_of(payload: bytes) -> dict[str, Any]:
    return dict(manifest.unpack_manifest(payload))


@campaigns
def test_a_manifest_has_the_fields_of_its_schema_in_order(campaign: str) -> None:
    document = _map_of(CAMPAIGNS[campaign].to_bytes())
    assert fits(document, SCHEMAS["manifest"])
    whole, *kinds = KINDS[campaign]
    places = [(document, whole), *zip(document["attributes"], kinds)]
    for found, name in places:
        assert list(found) == SCHEMAS[name]["required"] == list(SCHEMAS[name]["properties"])
    rounds = SCHEMAS[whole]["properties"]["rounds"]
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


MANIFESTS: dict[str, dict[str, Any]] = {
    name: _plain(_map_of(campaign.to_bytes())) for name, campaign in CAMPAIGNS.items()
}


def _paths() -> Iterator[tuple[str, tuple[str | int, ...], Schema]]:
    """Every single field of each manifest and its schema."""
    for campaign, (whole, *kinds) in KINDS.items():
        for name, schema in SCHEMAS[whole]["properties"].items():
            if name == "rounds":
                inner = schema["properties"].items()
                yield from ((campaign, (name, field), each) for field, each in inner)
            elif name != "attributes":
                yield campaign, (name,), schema
        for place, kind in enumerate(kinds):
            for name, schema in SCHEMAS[kind]["properties"].items():
                yield campaign, ("attributes", place, name), schema


FIELDS = list(_paths())
NAMES = [f"{campaign}-{'/'.join(map(str, path))}" for campaign, path, _ in FIELDS]


@pytest.mark.parametrize(("campaign", "path", "_schema"), FIELDS, ids=NAMES)
def test_a_manifest_needs_every_field(
    campaign: str, path: Sequence[str | int], _schema: Schema
) -> None:
    changed = _set(MANIFESTS[campaign], path, ...)
    # One attribute without levels is an attribute of another way, which no schema sees.
    assert path[-1] == "levels" or not fits(changed, SCHEMAS["manifest"])
    with pytest.raises(ManifestError):
        Manifest.from_bytes(encoding.pack(changed))


@campaigns
@pytest.mark.parametrize(
    "path", [("extra",), ("rounds", "extra"), ("attributes", 0, "unit"), ("attributes", 1, "extra")]
)
def test_a_manifest_has_no_other_field(campaign: str, path: Sequence[str | int]) -> None:
    changed = _set(MANIFESTS[campaign], path, "x")
    assert not fits(changed, SCHEMAS["manifest"])
    with pytest.raises(ManifestError):
        Manifest.from_bytes(encoding.pack(changed))


def _around(schema: Schema) -> Iterator[Any]:
    """Values at the ends of what a schema allows, and just beyond."""
    schema = resolved(schema)
    if "oneOf" in schema:
        yield from (None, 0.0, -1e308, 1e308, math.inf, math.nan, b"", bytes(31), bytes(32), 1, "1")
    elif schema["type"] == "boolean":
        yield from (True, False, None, 0, 1, "true")
    elif schema["type"] == "integer":
        low, high = (schema["const"],) * 2 if "const" in schema else _bounds(schema)
        yield from (low - 1, low, high, high + 1)
    elif schema["type"] == "number":
        low, high = map(float, _bounds(schema))
        yield from (math.nextafter(low, 0.0), low, high, math.nextafter(high, math.inf))
    elif schema["type"] == "array":
        lengths = (schema["minItems"], schema["maxItems"])
        for length in (lengths[0] - 1, *lengths, lengths[1] + 1):
            numbers = schema["items"]["type"] == "number"
            items: list[Any] = [(i + 1) / 4 if numbers else f"v{i}" for i in range(length)]
            if "x-infinite" in schema["items"]:  # else one more value makes a domain total
                items[0], items[-1] = -math.inf, math.inf
            yield items
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


@pytest.mark.parametrize(("campaign", "path", "schema"), FIELDS, ids=NAMES)
def test_a_manifests_limits_are_those_of_the_code(
    campaign: str, path: Sequence[str | int], schema: Schema
) -> None:
    """The reader names each field it refuses, before it compares them."""
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]
    answers = set()
    for value in _around(schema):
        refused = name in _refused(_set(MANIFESTS[campaign], path, value))
        assert _fits(value, schema, path[-1]) is not refused, value
        answers.add(refused)
    assert answers == {True, False}


def _refused(document: dict[str, Any]) -> set[str]:
    try:
        _, problems = manifest.read_fields(document)
    except ManifestError as error:  # of a format that nobody knows
        return {problem.field for problem in error.problems}
    return {problem.field for problem in problems}


def _fits(value: Any, schema: Schema, field: object) -> bool:
    """Beside the schema, what it cannot say and the reader checks at once."""
    if field == "operator" and value == "":
        return False
    if field in ("low", "high") and type(value) is int:
        value = float(value)  # an author's number; on the wire it is no float
    beyond = {"low": lambda x: x < 0.0, "high": lambda x: x > 40.5}.get(str(field))
    return fits(value, schema) and (beyond is None or value is None or beyond(value))


def test_a_manifest_has_as_many_attributes_as_the_code_allows() -> None:
    described = SCHEMAS["manifest"]["properties"]["attributes"]
    assert (described["minItems"], described["maxItems"]) == (1, limits.MAX_ATTRIBUTES)


@campaigns
def test_numbers_of_the_wrong_type_fit_neither(campaign: str) -> None:
    for path, value in (
        (("eps_inf",), 2),
        (("created",), 1.0),
        (("attributes", 1, "edges"), [0, 1, 2]),
    ):
        changed = _set(MANIFESTS[campaign], path, value)
        assert not fits(changed, SCHEMAS["manifest"])
        with pytest.raises(ManifestError):
            Manifest.from_bytes(encoding.pack(changed))
