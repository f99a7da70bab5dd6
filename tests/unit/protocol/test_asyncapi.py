"""`asyncapi.yaml` says what the code does: topics, flags, limits, names and the shape of payloads.

Schemas are checked by a small checker below, and it is not only shown good messages: whatever it
accepts the decoders must accept, and whatever it refuses they must refuse.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

import protocol_spec
from protocol_spec import (
    LONGITUDINAL,
    Manifest,
    ManifestError,
    Outcome,
    ParameterError,
    Presence,
    ReceiptPage,
    Rejected,
    Report,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Result,
    State,
    Topics,
    canonical,
    decode_receipts,
    decode_report,
    decode_request,
    decode_response,
    decode_result,
    decode_state,
    digest8,
    manifest,
    manifest_reader,
    result,
    topics,
    wire,
)
from protocol_spec.calibration import Method

Schema = Mapping[str, Any]

DOCUMENT: Mapping[str, Any] = yaml.safe_load(
    (Path(protocol_spec.__file__).parent / "asyncapi.yaml").read_text(encoding="utf-8")
)
CHANNELS: Mapping[str, Any] = DOCUMENT["channels"]
OPERATIONS: Mapping[str, Any] = DOCUMENT["operations"]
COMPONENTS: Mapping[str, Any] = DOCUMENT["components"]
SCHEMAS: Mapping[str, Schema] = COMPONENTS["schemas"]

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
D8 = digest8(CAMPAIGN)
SAMPLE = {
    "namespace": "acme",
    "campaign": CAMPAIGN.campaign,
    "device": "d-1",
    "attribute": "model",
    "round": "12",
    "page": "5",
}


def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a `$ref` points to; a node without one is itself."""
    while "$ref" in node:
        found: Any = DOCUMENT
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        node = found
    return node


# --- the checker --------------------------------------------------------------------------------

TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: type(value) is bool,
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) is float and not math.isnan(value),
    "string": lambda value: type(value) in (str, bytes),
    "array": lambda value: type(value) in (list, tuple),
    "object": lambda value: type(value) is dict,
}
# Read together with another keyword, or by people.
WORDS = ("description", "additionalItems", "x-infinite", "x-enum-varnames")


def fits(value: Any, schema: Schema) -> bool:
    """Whether a decoded payload, or a part of it, is as its schema says."""
    schema = resolved(schema)
    if "type" in schema and not TYPES[schema["type"]](value):
        return False
    return all(
        KEYWORDS[keyword](value, bound, schema)
        for keyword, bound in schema.items()
        if keyword not in ("type", *WORDS)
    )


def _format(value: Any, name: str, schema: Schema) -> bool:
    if name == "binary":
        return type(value) is bytes
    assert name == "double"
    return math.isfinite(value) or schema.get("x-infinite", False)


def _pattern(value: Any, pattern: str, _: Schema) -> bool:
    assert pattern.startswith("^")
    assert pattern.endswith("$")
    return type(value) is str and re.fullmatch(pattern[1:-1], value) is not None


def _ascending(value: bytes, size: int, _: Schema) -> bool:
    parts = [value[i : i + size] for i in range(0, len(value), size)]
    return len(value) % size == 0 and parts == sorted(set(parts))


def _items(value: Sequence[Any], items: Any, schema: Schema) -> bool:
    if isinstance(items, list):
        assert schema["additionalItems"] is False
        return len(value) == len(items) and all(map(fits, value, items))
    return all(fits(item, items) for item in value)


def _properties(value: Mapping[str, Any], properties: Mapping[str, Schema], schema: Schema) -> bool:
    assert schema["additionalProperties"] is False
    return all(name in properties and fits(item, properties[name]) for name, item in value.items())


def _additional(value: Mapping[str, Any], rest: Any, schema: Schema) -> bool:
    return rest is False or all(fits(item, rest) for item in value.values())


KEYWORDS: dict[str, Callable[[Any, Any, Schema], bool]] = {
    "const": lambda value, const, _: value == const,
    "enum": lambda value, allowed, _: type(value) is not bool and value in allowed,
    "format": _format,
    "minimum": lambda value, bound, _: value >= bound,
    "maximum": lambda value, bound, _: value <= bound,
    "exclusiveMinimum": lambda value, bound, _: value > bound,
    "exclusiveMaximum": lambda value, bound, _: value < bound,
    "minLength": lambda value, bound, _: len(value) >= bound,
    "maxLength": lambda value, bound, _: len(value) <= bound,
    "pattern": _pattern,
    "x-item-bytes": _ascending,
    "minItems": lambda value, bound, _: len(value) >= bound,
    "maxItems": lambda value, bound, _: len(value) <= bound,
    "uniqueItems": lambda value, _, __: len(set(value)) == len(value),
    "items": _items,
    "required": lambda value, names, _: list(value) == names,  # maps are in this order
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": lambda value, names, _: all(fits(name, names) for name in value),
    "minProperties": lambda value, bound, _: len(value) >= bound,
    "oneOf": lambda value, options, _: sum(fits(value, option) for option in options) == 1,
    "allOf": lambda value, parts, _: all(fits(value, part) for part in parts),
}


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _nodes(child)


# --- the document -------------------------------------------------------------------------------


def test_every_reference_leads_somewhere() -> None:
    references = [node for node in _nodes(DOCUMENT) if isinstance(node, dict) and "$ref" in node]
    assert references
    for reference in references:
        assert isinstance(resolved(reference), dict)


def test_every_component_is_used() -> None:
    used = {node["$ref"] for node in _nodes(DOCUMENT) if isinstance(node, dict) and "$ref" in node}
    for kind, members in COMPONENTS.items():
        for name in members:
            assert f"#/components/{kind}/{name}" in used


def test_every_payload_is_msgpack_but_the_one_for_dashboards() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert DOCUMENT["defaultContentType"] == "application/msgpack"
    kinds = {name: message["contentType"] for name, message in COMPONENTS["messages"].items()}
    assert kinds.pop("resultJson") == "application/json"
    assert set(kinds.values()) == {"application/msgpack"}


# --- topics -------------------------------------------------------------------------------------


def _filled(address: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: SAMPLE[match[1]], address)


def _built(*, filters: bool) -> set[str]:
    """Every topic, or every filter, that `Topics` can build, with the sample's parts."""
    root = Topics(SAMPLE["campaign"], SAMPLE["namespace"])
    arguments: dict[str, Any] = {
        "round_number": int(SAMPLE["round"]),
        "page": int(SAMPLE["page"]),
        "attribute": SAMPLE["attribute"],
        "device": SAMPLE["device"],
    }
    built = set()
    for name, member in vars(Topics).items():
        described = isinstance(member, property) or inspect.isfunction(member)
        if name.startswith("_") or not described:
            continue
        if (member.__doc__ or "").startswith("Filter:") is not filters:
            continue
        if isinstance(member, property):
            built.add(getattr(root, name))
            continue
        parameters = list(inspect.signature(member).parameters.values())[1:]
        required = {p.name: arguments[p.name] for p in parameters if p.default is p.empty}
        built.add(member(root, **required))
        built.add(member(root, **{p.name: arguments[p.name] for p in parameters}))
    return {topic for topic in built if not topic.endswith("/")}  # what ends so is only a prefix


def test_the_channels_are_the_topics_of_the_code() -> None:
    addresses = [_filled(channel["address"]) for channel in CHANNELS.values()]
    assert len(set(addresses)) == len(addresses)
    assert set(addresses) == _built(filters=False)


def test_the_subscriptions_are_the_filters_of_the_code() -> None:
    channels = [channel for channel in CHANNELS.values() if "x-subscription" in channel]
    assert {_filled(channel["x-subscription"]) for channel in channels} == _built(filters=True)
    for channel in channels:
        levels = zip(channel["x-subscription"].split("/"), channel["address"].split("/"))
        assert all(
            level == part or (level == "+" and part.startswith("{")) for level, part in levels
        )


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_describes_its_parameters_and_no_others(name: str) -> None:
    named = re.findall(r"\{(\w+)\}", CHANNELS[name]["address"])
    assert list(CHANNELS[name]["parameters"]) == named
    for parameter in named:
        reference = {"$ref": f"#/components/parameters/{parameter}"}
        assert CHANNELS[name]["parameters"][parameter] == reference


def _is_namespace(text: str) -> bool:
    try:
        topics.check_namespace(text)
    except ParameterError:
        return False
    return True


def _is_page_or_round(text: str) -> bool:
    number = topics.parse_receipt(f"a/v1/c/pub/receipt/{text}/0")
    return number is not None and number[0] < 100_000


LEVELS = ["", "a", "0", "-", "_", "A", "é", "a b", "a/b", "a\n", "a-", "-a", "a-b", "a_", "a_b"]
LEVELS += ["a+", "#", "7", "07", "12345", "99999", "123456", "-1", "a" * 31, "0" * 32, "a" * 32]
LEVELS += ["a" * 33, "a" * 64, "a" * 65, "a-0123abcd", "-0123abcd", "a-0123ABCD", "a-0123abc"]
LEVELS += ["a" * 32 + "-0123abcd", "a" * 33 + "-0123abcd", "a--0123abcd", "a_b-0123abcd"]


@pytest.mark.parametrize(
    ("parameter", "accepts"),
    [
        ("namespace", _is_namespace),
        ("campaign", topics.is_campaign),
        ("device", topics.is_device),
        ("attribute", lambda text: manifest_reader.NAME.fullmatch(text) is not None),
        ("round", _is_page_or_round),
        ("page", _is_page_or_round),
    ],
)
def test_a_parameter_matches_what_the_code_takes(
    parameter: str, accepts: Callable[[str], bool]
) -> None:
    described = COMPONENTS["parameters"][parameter]
    for text in (*LEVELS, *described.get("examples", [described.get("default")])):
        assert _pattern(text, described["x-pattern"], {}) == accepts(text), text


def test_the_namespace_has_the_default_of_the_code() -> None:
    described = COMPONENTS["parameters"]
    assert set(described) == set(SAMPLE)
    assert described["namespace"]["default"] == topics.DEFAULT_NAMESPACE
    for channel in CHANNELS.values():
        assert channel["address"].split("/")[1] == topics.VERSION


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_has_one_operation_with_its_flags(name: str) -> None:
    """The subtree decides: what the collector tells all is retained, what passes is not."""
    reference = {"$ref": f"#/channels/{name}"}
    [operation] = [each for each in OPERATIONS.values() if each["channel"] == reference]
    subtree = CHANNELS[name]["address"].split("/")[3]
    assert operation["action"] == {"pub": "send", "down": "send", "up": "receive"}[subtree]
    flags = resolved(operation["bindings"])["mqtt"]
    assert flags == {"qos": 1, "retain": subtree == "pub", "bindingVersion": "0.2.0"}


def test_a_device_publishes_where_the_code_listens() -> None:
    upward = {name for name, channel in CHANNELS.items() if "/up/" in channel["address"]}
    for name in upward:
        parsed = topics.parse_from_device(_filled(CHANNELS[name]["address"]), SAMPLE["namespace"])
        assert parsed == topics.FromDevice(SAMPLE["campaign"], SAMPLE["device"], name)
    assert upward == {"report", "request"}


# --- names and limits ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "members"),
    [("presence", Presence), ("requestKind", RequestKind), ("responseStatus", ResponseStatus)],
)
def test_numbered_names_are_those_of_the_code(name: str, members: type[IntEnum]) -> None:
    assert SCHEMAS[name]["enum"] == [int(member) for member in members]
    assert SCHEMAS[name]["x-enum-varnames"] == [member.name for member in members]


def test_names_are_those_of_the_code() -> None:
    assert SCHEMAS["outcome"]["enum"] == [str(outcome) for outcome in Outcome]
    assert SCHEMAS["protocol"]["enum"] == list(LONGITUDINAL)
    assert SCHEMAS["askedProtocol"]["enum"] == ["auto", *LONGITUDINAL]
    assert SCHEMAS["calibration"]["enum"] == list(get_args(Method))


def test_sizes_are_those_of_the_code() -> None:
    sizes = {name: message["x-max-bytes"] for name, message in COMPONENTS["messages"].items()}
    assert sizes == {
        "manifest": manifest.MAX_MANIFEST_BYTES,
        "state": wire.MAX_CONTROL_BYTES,
        "receipt": wire.MAX_RECEIPT_BYTES,
        "result": result.MAX_RESULT_BYTES,
        "resultJson": result.MAX_JSON_BYTES,
        "report": wire.MAX_REPORT_BYTES,
        "request": wire.MAX_CONTROL_BYTES,
        "response": wire.MAX_CONTROL_BYTES,
    }


def test_the_largest_page_of_receipts_just_fits() -> None:
    longest = SCHEMAS["receipt"]["items"][4]["maxLength"]

    def size(tags: int) -> int:
        return len(canonical.pack([1, D8, 65_535, 65_535, bytes(tags)]))

    assert size(longest) <= wire.MAX_RECEIPT_BYTES < size(longest + wire.TAG_BYTES)


def test_constants_are_those_of_the_code() -> None:
    assert SCHEMAS["version"]["const"] == wire.WIRE_VERSION == result.RESULT_VERSION
    assert SCHEMAS["version"]["const"] == manifest.FORMAT
    assert SCHEMAS["digest8"]["maxLength"] == wire.DIGEST_BYTES
    assert SCHEMAS["nonce"]["maxLength"] == wire.NONCE_BYTES
    assert SCHEMAS["roundNumber"]["maximum"] == manifest_reader.MAX_ROUNDS - 1
    assert SCHEMAS["receipt"]["items"][4]["x-item-bytes"] == wire.TAG_BYTES
    assert SCHEMAS["report"]["items"][3]["maximum"] == manifest_reader.MAX_ATTRIBUTES - 1
    assert SCHEMAS["report"]["items"][4]["maxLength"] == wire.MAX_BODY_BYTES
    assert SCHEMAS["instant"]["maximum"] == manifest_reader.MAX_INSTANT


# --- shapes of arrays ---------------------------------------------------------------------------

NONCE = bytes(range(8))
TAGS = frozenset({b"\0\0\0\1", b"\0\0\0\2", b"\xff\xff\xff\xff"})
ARRAYS: dict[str, tuple[Any, Callable[[bytes], Any]]] = {
    "report": (Report(D8, 3, 1, b"\x40"), decode_report),
    "state": (State(D8, Presence.ONLINE, None), decode_state),
    "receipt": (ReceiptPage(D8, 3, 5, TAGS), decode_receipts),
    "request": (Request(D8, RequestKind.FORGET, NONCE), decode_request),
    "response": (
        Response(D8, RequestKind.FORGET, NONCE, ResponseStatus.REFUSED, 0),
        decode_response,
    ),
}
ODDITIES: list[Any] = [None, False, True, -1, 0, 1, 2, 3, 4, 126, 127, 128, 255, 256]
ODDITIES += [65_534, 65_535, 65_536, 65_537, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1]
ODDITIES += [-1.0, 0.0, 0.5, 1.0, 2.0, math.nan, math.inf, -math.inf, "", "1", "x" * 8, "x" * 32]
ODDITIES += ["model", "Model", "x" * 33, "L-GRR", "auto", "exact", b"", b"\x01", b"\0\0\0\1"]
ODDITIES += [bytes(4), bytes(7), bytes(8), bytes(9), b"\0\0\0\1\0\0\0\2", b"\0\0\0\2\0\0\0\1"]
ODDITIES += [bytes(31), bytes(32), bytes(33), bytes(512), bytes(513), [], [1], {}, {"a": 1}]


def _unpacked(payload: bytes) -> list[Any]:
    items = canonical.unpack(payload, array=4096, text=64, binary=1 << 20, maps=32)
    return list(items)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_real_message_fits_its_schema(name: str) -> None:
    message, decode = ARRAYS[name]
    assert fits(_unpacked(message.encode()), SCHEMAS[name])
    assert decode(message.encode()) == message


@pytest.mark.parametrize("name", ARRAYS)
def test_schema_and_decoder_take_the_same_arrays(name: str) -> None:
    message, decode = ARRAYS[name]
    good = _unpacked(message.encode())
    others = [good[:-1], [*good, 0], [], None, 1, {}, {"a": 1}, b"", "", good[0]]
    for place in range(len(good)):
        others += [[*good[:place], odd, *good[place + 1 :]] for odd in ODDITIES]
    taken = 0
    for other in others:
        accepted = not isinstance(decode(canonical.pack(other)), Rejected)
        assert fits(other, SCHEMAS[name]) == accepted, other
        taken += accepted
    assert 0 < taken < len(others)


# --- shapes of maps -----------------------------------------------------------------------------

HISTOGRAM = Result(
    digest=CAMPAIGN.digest,
    attribute="model",
    round=3,
    rounds=1,
    protocol="L-GRR",
    n=(1 << 63) - 1,
    devices=0,
    min_reports=2,
    confidence=0.95,
    device_bound=0.5,
    counts=(3, 4, 5),
    **dict.fromkeys(result.SERIES, (0.25, 0.5, 0.25)),
    outcomes={Outcome.ACCEPTED: 12},
)


def _map_of(payload: bytes) -> dict[str, Any]:
    return dict(canonical.unpack(payload, array=4097, text=4096, binary=64, maps=32))


def test_a_result_has_the_fields_of_its_schema_in_order() -> None:
    schema = SCHEMAS["result"]
    document = _map_of(HISTOGRAM.encode())
    assert list(document) == schema["required"] == list(schema["properties"])
    assert fits(document, schema)
    assert list(document["outcomes"]) == SCHEMAS["outcome"]["enum"]
    assert schema["properties"]["outcomes"]["minProperties"] == len(Outcome)


def _changed_results() -> Iterator[dict[str, Any]]:
    good = _map_of(HISTOGRAM.encode())
    arrays = ("counts", *result.SERIES)
    for field in good:
        yield {name: item for name, item in good.items() if name != field}
        lonely = field in arrays  # of another length than the other arrays, which no schema sees
        yield from ({**good, field: odd} for odd in ODDITIES if not (lonely and odd in ([], [1])))
    yield {**good, "extra": 1}
    yield {"extra": 1, **good}
    for field in arrays:
        for odd in ODDITIES:
            yield {**good, field: [good[field][0], odd, good[field][2]]}
    for length in (0, 2, 4096, 4097):
        yield {**good, "counts": [1] * length, **dict.fromkeys(result.SERIES, [0.5] * length)}
    outcomes = good["outcomes"]
    for odd in ODDITIES:
        yield {**good, "outcomes": {**outcomes, "late": odd}}
    yield {**good, "outcomes": {**outcomes, "lost": 0}}
    yield {**good, "outcomes": {name: n for name, n in outcomes.items() if name != "late"}}


def _contradicts_itself(document: dict[str, Any]) -> bool:
    """What no schema sees: fields that are right by themselves but not together."""
    withheld = document["devices"] < max(1, document["min_reports"])
    one_round = document["round"] is None or document["rounds"] == 1
    counted = document["devices"] <= document["n"]
    told = withheld == (not document["counts"]) == (document["device_bound"] == 0.0)
    return not (one_round and counted and told)


def test_schema_and_decoder_take_the_same_results() -> None:
    taken = refused = 0
    for document in _changed_results():
        accepted = not isinstance(decode_result(canonical.pack(document)), Rejected)
        fitting = fits(document, SCHEMAS["result"]) and not _contradicts_itself(document)
        assert fitting == accepted, document
        taken, refused = taken + accepted, refused + (not accepted)
    assert taken > 10
    assert refused > 200


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
    limits = SCHEMAS["manifest"]["properties"]["attributes"]
    assert (limits["minItems"], limits["maxItems"]) == (1, manifest_reader.MAX_ATTRIBUTES)


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
