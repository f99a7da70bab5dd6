"""The schemas of arrays take what the decoders take, and refuse what they refuse."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from protocol_spec import (
    RESULT_QUANTILES,
    RESULT_SERIES,
    Manifest,
    ManifestError,
    ParameterError,
    Presence,
    PublishedThresholds,
    ReceiptPage,
    Rejected,
    Report,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Result,
    Signature,
    State,
    decode_receipts,
    decode_report,
    decode_request,
    decode_response,
    decode_result,
    decode_signature,
    decode_state,
    decode_thresholds,
    encoding,
    limits,
    manifest,
    topics,
)
from protocol_spec.topics import ATTRIBUTE
from tests.support.protocol import manifest_cases, message_cases, reference_wire
from tests.support.protocol.asyncapi import (
    CHANNELS,
    COMPONENTS,
    DOCUMENT,
    LEVELS,
    ODDITIES,
    OPERATIONS,
    SCHEMAS,
    Schema,
    fits,
    matches,
    nodes,
    resolved,
)

D8 = bytes(range(8))
NONCE = bytes(range(8))
TAGS = frozenset({b"\0\0\0\1", b"\0\0\0\2", b"\xff\xff\xff\xff"})
ARRAYS: dict[str, tuple[Any, Callable[[bytes], Any]]] = {
    "report": (Report(D8, 3, 1, b"\x40"), decode_report),
    "signature": (Signature(D8, bytes(64)), decode_signature),
    "thresholds": (PublishedThresholds(D8, b"\x00", bytes(32)), decode_thresholds),
    "state": (State(D8, Presence.ONLINE, None), decode_state),
    "receipt": (ReceiptPage(D8, 3, 5, TAGS), decode_receipts),
    "request": (Request(D8, RequestKind.FORGET, NONCE), decode_request),
    "response": (
        Response(D8, RequestKind.FORGET, NONCE, ResponseStatus.REFUSED, 0),
        decode_response,
    ),
}


def _unpacked(payload: bytes) -> list[Any]:
    items = encoding.unpack(payload, array=4096, text=64, binary=1 << 20, maps=32)
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
        accepted = not isinstance(decode(encoding.pack(other)), Rejected)
        assert fits(other, SCHEMAS[name]) == accepted, other
        taken += accepted
    assert 0 < taken < len(others)


# --- `asyncapi.yaml` is whole: references lead somewhere, and topics are what the code parses.


SAMPLE = {
    "namespace": "acme",
    "campaign": "fleet-0123abcd",
    "device": "d-1",
    "attribute": "model",
    "round": "12",
    "page": "5",
}


def test_every_reference_leads_somewhere() -> None:
    references = [node for node in nodes(DOCUMENT) if isinstance(node, dict) and "$ref" in node]
    assert references
    for reference in references:
        assert isinstance(resolved(reference), dict)


def _is_namespace(text: str) -> bool:
    try:
        topics.check_namespace(text)
    except ParameterError:
        return False
    return True


def _is_page_or_round(text: str) -> bool:
    return re.fullmatch(r"0|[1-9][0-9]{0,8}", text) is not None and int(text) < 100_000


@pytest.mark.parametrize(
    ("parameter", "accepts"),
    [
        ("namespace", _is_namespace),
        ("campaign", topics.is_campaign),
        ("device", topics.is_device),
        ("attribute", lambda text: ATTRIBUTE.fullmatch(text) is not None),
        ("round", _is_page_or_round),
        ("page", _is_page_or_round),
    ],
)
def test_a_parameter_matches_what_the_code_takes(
    parameter: str, accepts: Callable[[str], bool]
) -> None:
    described = COMPONENTS["parameters"][parameter]
    for text in (*LEVELS, *described.get("examples", [described.get("default")])):
        assert matches(text, described["x-pattern"], {}) == accepts(text), text


PLACES: dict[str, Any] = {
    "round_number": (11111, "{round}"),
    "page": (22222, "{page}"),
    "attribute": ("attribute-name", "{attribute}"),
    "device": ("device-name", "{device}"),
}


def _built() -> Iterator[str]:
    """What every public member of `Topics` builds, with and without its optional parts."""
    built = topics.Topics("campaign-00000000", "namespace-name")
    for name in (name for name in dir(built) if not name.startswith("_")):
        member = getattr(built, name)
        if isinstance(member, str):
            yield member
            continue
        parts = inspect.signature(member).parameters.values()
        yield member(**{p.name: PLACES[p.name][0] for p in parts if p.default is p.empty})
        yield member(**{p.name: PLACES[p.name][0] for p in parts})


def test_channels_are_the_topics_and_filters_of_the_code() -> None:
    names = {"namespace-name": "{namespace}", "campaign-00000000": "{campaign}"}
    names |= {str(value): place for value, place in PLACES.values()}
    built = {"/".join(names.get(level, level) for level in topic.split("/")) for topic in _built()}
    described = {channel["address"] for channel in CHANNELS.values()}
    described |= {c["x-subscription"] for c in CHANNELS.values() if "x-subscription" in c}
    assert described == {topic for topic in built if not topic.endswith("/")}
    for channel in CHANNELS.values():
        assert list(channel["parameters"]) == re.findall(r"\{(\w+)\}", channel["address"])


def test_the_largest_messages_are_those_of_the_code() -> None:
    control = limits.MAX_CONTROL_BYTES
    assert {name: each["x-max-bytes"] for name, each in COMPONENTS["messages"].items()} == {
        "manifest": limits.MAX_MANIFEST_BYTES,
        "signature": limits.MAX_SIGNATURE_BYTES,
        "thresholds": limits.MAX_THRESHOLDS_BYTES,
        "receipt": limits.MAX_RECEIPT_BYTES,
        "result": limits.MAX_RESULT_BYTES,
        "resultJson": limits.MAX_JSON_BYTES,
        "report": limits.MAX_REPORT_BYTES,
        **dict.fromkeys(("state", "request", "response"), control),
    }
    longest = SCHEMAS["tags"]["maxLength"]
    sizes = [len(encoding.pack([1, D8, 65_535, 65_535, bytes(longest + more)])) for more in (0, 4)]
    assert sizes[0] <= limits.MAX_RECEIPT_BYTES < sizes[1]
    for name, members in (("presence", Presence), ("requestKind", RequestKind)):
        assert SCHEMAS[name]["x-enum-varnames"] == [member.name for member in members]
        assert SCHEMAS[name]["enum"] == [int(member) for member in members]


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
        parsed = topics.parse_from_device(filled(CHANNELS[name]["address"]), SAMPLE["namespace"])
        assert parsed == topics.FromDevice(SAMPLE["campaign"], SAMPLE["device"], name)
    assert upward == {"report", "request"}


def filled(address: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: SAMPLE[match[1]], address)


# --- The schema of manifests takes what the reader takes, field by field, and refuses the rest.


NESTED_BINS = manifest_cases.numeric("hour", [-math.inf, 0.0, 40.0, math.inf], 0.6, 2.0)
CAMPAIGNS = {
    "memoized": {**manifest_cases.TOUR, "attributes": manifest_cases.TOUR["attributes"][1:3]},
    "nested": {
        **manifest_cases.STEPS,
        "attributes": [manifest_cases.STEPS["attributes"][0], NESTED_BINS],
    },
}
# Of each campaign: the schema of the whole, and of its two attributes.
KINDS = {
    "memoized": ("manifest", "namedValues", "bins"),
    "nested": ("manifest", "nestedValues", "nestedBins"),
}
campaigns = pytest.mark.parametrize("campaign", CAMPAIGNS)


@campaigns
def test_a_manifest_has_the_fields_of_its_schema_in_order(campaign: str) -> None:
    document = CAMPAIGNS[campaign]
    assert Manifest.from_bytes(encoding.pack(document)).to_bytes() == encoding.pack(document)
    assert fits(document, SCHEMAS["manifest"])
    whole, *kinds = KINDS[campaign]
    places = [(document, whole), *zip(document["attributes"], kinds)]
    for found, name in places:
        assert list(found) == SCHEMAS[name]["required"] == list(SCHEMAS[name]["properties"])
    rounds = SCHEMAS[whole]["properties"]["rounds"]
    assert list(document["rounds"]) == rounds["required"] == list(rounds["properties"])


def _paths() -> Iterator[tuple[str, str, Schema]]:
    """Every single field of each manifest and its schema."""
    for campaign, (whole, *kinds) in KINDS.items():
        for name, schema in SCHEMAS[whole]["properties"].items():
            if name == "rounds":
                inner = schema["properties"].items()
                yield from ((campaign, f"{name}.{field}", each) for field, each in inner)
            elif name != "attributes":
                yield campaign, name, schema
        for place, kind in enumerate(kinds):
            for name, schema in SCHEMAS[kind]["properties"].items():
                yield campaign, f"attributes[{place}].{name}", schema


FIELDS = list(_paths())


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


@pytest.mark.parametrize(
    ("campaign", "path", "schema"),
    FIELDS,
    ids=lambda field: field if isinstance(field, str) else "",
)
def test_a_manifests_limits_are_those_of_the_code(campaign: str, path: str, schema: Schema) -> None:
    """The reader names each field it refuses, before it compares them."""
    answers = set()
    for value in _around(schema):
        refused = path in _refused(manifest_cases.changed(CAMPAIGNS[campaign], path, value))
        assert _fits(value, schema, path.rpartition(".")[2]) is not refused, value
        answers.add(refused)
    assert answers == {True, False}


def _refused(document: dict[str, Any]) -> set[str]:
    try:
        _, problems = manifest.read_fields(document)
    except ManifestError as error:  # of a format that nobody knows
        return {problem.field for problem in error.problems}
    return {problem.field for problem in problems}


def _fits(value: Any, schema: Schema, field: object) -> bool:
    """Besides the schema, what it cannot say and the reader checks at once."""
    if field == "operator" and value == "":
        return False
    if field in ("low", "high") and type(value) is int:
        value = float(value)  # an author's number; on the wire it is no float
    beyond = {"low": lambda x: x < 0.0, "high": lambda x: x > 40.0}.get(str(field))
    return fits(value, schema) and (beyond is None or value is None or beyond(value))


# --- The schema of results takes what the decoder takes, and refuses what it refuses.


_ROUND = decode_result(reference_wire.result(message_cases.ROUND))
assert isinstance(_ROUND, Result)
RESULT = replace(_ROUND, n=(1 << 63) - 1, devices=2, n_eff=2.0, returned=1, min_reports=2)


def _result_map(payload: bytes) -> dict[str, Any]:
    return dict(encoding.unpack(payload, array=4097, text=4096, binary=64, maps=32))


def test_a_result_has_the_fields_of_its_schema_in_order() -> None:
    schema = SCHEMAS["result"]
    document = _result_map(RESULT.encode())
    assert list(document) == schema["required"] == list(schema["properties"])
    assert fits(document, schema)
    assert list(document["outcomes"]) == SCHEMAS["outcome"]["enum"]
    for name in ("difference", "numbers"):
        assert list(document[name]) == SCHEMAS[name]["required"]


def _changed_results() -> Iterator[dict[str, Any]]:
    good = _result_map(RESULT.encode())
    arrays = ("counts", *RESULT_SERIES)
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
        alike = {"counts": [1] * length, **dict.fromkeys(RESULT_SERIES, [0.5] * length)}
        yield {**good, **alike, "numbers": None}
    outcomes = good["outcomes"]
    for odd in ODDITIES:
        yield {**good, "outcomes": {**outcomes, "late": odd}}
    yield {**good, "outcomes": {**outcomes, "lost": 0}}
    yield {**good, "outcomes": {name: n for name, n in outcomes.items() if name != "late"}}
    yield from _changed_parts(good)


def _changed_parts(good: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every field of the inner maps, and every item of a quantile."""
    for part in ("difference", "numbers"):
        inner = good[part]
        for field in inner:
            yield {**good, part: {name: item for name, item in inner.items() if name != field}}
            yield from ({**good, part: {**inner, field: odd}} for odd in ODDITIES)
        yield {**good, part: {**inner, "extra": 0.5}}
    rows = good["numbers"]["quantiles"]
    for place in range(4):
        for odd in ODDITIES:
            row = [*rows[0][:place], odd, *rows[0][place + 1 :]]
            yield {**good, "numbers": {**good["numbers"], "quantiles": [row, *rows[1:]]}}


def _contradicts_itself(document: dict[str, Any]) -> bool:
    """What no schema sees: fields that are right by themselves but not together."""
    n, first, last = (document[name] for name in ("n", "first", "last"))
    one = document["round"] in (None, first) and first <= last
    one &= document["round"] in (None, last) and document["rounds"] <= last - first + 1
    some = {bool(document[name]) for name in ("n", "devices", "n_eff", "rounds")}
    withheld = not n or document["n_eff"] < document["min_reports"]
    told = withheld == (not document["counts"]) == (document["device_bound"] == 0.0)
    told &= withheld == (document["difference"] is None)
    told &= document["returned"] <= min(document["heard"], document["devices"])
    return not (
        one
        and len(some) == 1
        and document["devices"] <= n
        and told
        and _numbers_fit(document["numbers"], withheld, len(document["counts"]))
        and document["reporting"] == "memoized"
    )


def _numbers_fit(numbers: Any, withheld: bool, k: int) -> bool:
    if numbers is None:
        return True
    whole = len({numbers[name] is None for name in ("mean", "mean_low", "mean_high", "mean_bias")})
    lengths = {len(numbers[name]) for name in ("cdf", "cdf_low", "cdf_high")}
    shares = [row[0] for row in numbers["quantiles"]]
    fitting = lengths in ({k - 1}, {k - 2})
    return not withheld and whole == 1 and fitting and shares == list(RESULT_QUANTILES)


def test_schema_and_decoder_take_the_same_results() -> None:
    taken = refused = 0
    for document in _changed_results():
        accepted = not isinstance(decode_result(encoding.pack(document)), Rejected)
        fitting = fits(document, SCHEMAS["result"]) and not _contradicts_itself(document)
        assert fitting == accepted, document
        taken, refused = taken + accepted, refused + (not accepted)
    assert taken > 10
    assert refused > 200
