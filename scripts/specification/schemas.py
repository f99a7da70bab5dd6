"""What a field or an item may hold, in the words of asyncapi.yaml and of README.md."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import singledispatch
from typing import Any

from protocol_spec import (
    Outcome,
    Presence,
    RequestKind,
    ResponseStatus,
    canonical,
    limits,
    manifest_fields,
    names,
    published,
    result_checks,
)
from protocol_spec.decoding import WIRE_VERSION
from protocol_spec.fields import (
    Duration,
    Edges,
    Finite,
    Flag,
    Instant,
    Key,
    Levels,
    Name,
    Number,
    OneOf,
    Tables,
    Text,
    Values,
    Version,
    Whole,
)

Schema = dict[str, Any]


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def pattern(expression: re.Pattern[str]) -> str:
    return f"^{expression.pattern}$"


def decimal(below: int) -> str:
    """A number from 0, without leading zeros, with as many digits as it can have."""
    return f"^(0|[1-9][0-9]{{0,{len(str(below - 1)) - 1}}})$"


# --- kinds of fields ------------------------------------------------------------------------------


@singledispatch
def schema(kind: object) -> Schema:
    raise TypeError(f"no schema for {kind!r}")


@schema.register
def _(_kind: Flag) -> Schema:
    return {"type": "boolean"}


@schema.register
def _(_kind: Finite) -> Schema:
    return {"oneOf": [{"type": "null"}, {"type": "number", "format": "double"}]}


@schema.register
def _(kind: Key) -> Schema:
    return {"oneOf": [_binary(0), _binary(kind.length)]}


@schema.register
def _(kind: Levels) -> Schema:
    counted = {"minItems": kind.fewest, "maxItems": kind.most}
    return {"type": "array", **counted, "items": schema(kind.each)}


@schema.register
def _(kind: Text) -> Schema:
    return {"type": "string", "minLength": kind.shortest, "maxLength": kind.longest}


@schema.register
def _(kind: Name) -> Schema:
    return {"type": "string", "pattern": pattern(kind.pattern)}


@schema.register
def _(kind: OneOf) -> Schema:
    return {"type": "string", "enum": list(kind.allowed)}


@schema.register(Whole)
@schema.register(Duration)
@schema.register(Instant)
def _(kind: Whole | Duration | Instant) -> Schema:
    return {"type": "integer", "minimum": kind.smallest, "maximum": kind.largest}


@schema.register
def _(kind: Number) -> Schema:
    return {
        "type": "number",
        "format": "double",
        "minimum": kind.smallest,
        "maximum": kind.largest,
    }


@schema.register
def _(kind: Values) -> Schema:
    counted = {"minItems": kind.fewest, "maxItems": kind.most}
    return {"type": "array", **counted, "uniqueItems": True, "items": schema(kind.each)}


@schema.register
def _(kind: Edges) -> Schema:
    number = {"type": "number", "format": "double", "x-infinite": True}
    return {"type": "array", "minItems": kind.fewest, "maxItems": kind.most, "items": number}


def tables(kind: Tables, *items: str) -> Schema:
    """A list whose items have one of the named schemas."""
    either = {"oneOf": [reference(item) for item in items]}
    return {"type": "array", "minItems": kind.fewest, "maxItems": kind.most, "items": either}


@singledispatch
def in_words(kind: object) -> tuple[str, str]:
    """Type and limits of a field, as the table of README.md writes them."""
    raise TypeError(f"no words for {kind!r}")


@in_words.register
def _(kind: Version) -> tuple[str, str]:
    return "int", " or ".join(map(str, kind.known))


@in_words.register
def _(_kind: Flag) -> tuple[str, str]:
    return "bool", ""


@in_words.register
def _(_kind: Finite) -> tuple[str, str]:
    return "float or nil", "finite"


@in_words.register
def _(kind: Key) -> tuple[str, str]:
    return "bin", f"0 or {kind.length} bytes"


@in_words.register
def _(kind: Levels) -> tuple[str, str]:
    return "array of float", f"{kind.fewest} to {kind.most}, rising, {in_words(kind.each)[1]} each"


@in_words.register
def _(kind: Text) -> tuple[str, str]:
    return "text", f"{kind.shortest} to {kind.longest}"


@in_words.register
def _(kind: Name) -> tuple[str, str]:
    said = {
        names.SLUG: f"1 to {limits.MAX_SLUG_LENGTH} of `a-z 0-9 -`, no `-` at the ends",
        names.ATTRIBUTE: f"1 to {limits.MAX_NAME_LENGTH} of `a-z 0-9 _ -`, a letter first",
    }
    return "str", said[kind.pattern]


@in_words.register
def _(kind: OneOf) -> tuple[str, str]:
    return "str", ", ".join(f"`{word}`" for word in kind.allowed)


@in_words.register
def _(kind: Whole) -> tuple[str, str]:
    return "int", f"{kind.smallest} to {kind.largest}"


@in_words.register
def _(kind: Duration) -> tuple[str, str]:
    return "duration", f"{kind.smallest} to {kind.largest}"


@in_words.register
def _(kind: Instant) -> tuple[str, str]:
    return "instant", f"{kind.smallest} to {kind.largest}"


@in_words.register
def _(kind: Number) -> tuple[str, str]:
    return "float", f"{kind.smallest:g} to {kind.largest:g}"


@in_words.register
def _(kind: Values) -> tuple[str, str]:
    each = in_words(kind.each)[1]
    return "array of text", f"{kind.fewest} to {kind.most} distinct, {each} each"


@in_words.register
def _(kind: Edges) -> tuple[str, str]:
    return "array of float", f"{kind.fewest} to {kind.most}"


# --- parts that several messages have in common ---------------------------------------------------


def _binary(size: int) -> Schema:
    return {"type": "string", "format": "binary", "minLength": size, "maxLength": size}


def _whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _numbered(members: type[IntEnum]) -> Schema:
    return {
        "type": "integer",
        "enum": [int(member) for member in members],
        "x-enum-varnames": [member.name for member in members],
    }


def _most_tags() -> int:
    """The longest tags with which a page of receipts stays within its size."""
    digest = bytes(limits.DIGEST_BYTES)
    last = [limits.MAX_ROUNDS - 1, limits.MAX_RECEIPT_PAGES - 1]

    def size(length: int) -> int:
        return len(canonical.pack([WIRE_VERSION, digest, *last, bytes(length)]))

    longest = limits.MAX_RECEIPT_BYTES // limits.TAG_BYTES * limits.TAG_BYTES
    while size(longest) > limits.MAX_RECEIPT_BYTES:
        longest -= limits.TAG_BYTES
    return longest


def parts() -> dict[str, Schema]:
    """Named parts; what an array's or a map's schema says in numbers, it says by one of these."""
    top, attribute = manifest_fields.FIELDS.manifest, manifest_fields.FIELDS.attribute
    count = reference("count")
    ran = dict.fromkeys(name for names in result_checks.PROTOCOLS.values() for name in names)
    return {
        "version": {"type": "integer", "const": WIRE_VERSION},
        "digest8": _binary(limits.DIGEST_BYTES),
        "roundNumber": _whole(0, limits.MAX_ROUNDS - 1),
        "roundsWithReports": _whole(0, limits.MAX_ROUNDS),
        "withdrawnRounds": _whole(0, limits.MAX_ROUNDS),
        "attributeNumber": _whole(0, limits.MAX_ATTRIBUTES - 1),
        "body": {"type": "string", "format": "binary", "maxLength": limits.MAX_BODY_BYTES},
        "pageNumber": _whole(0, limits.MAX_RECEIPT_PAGES - 1),
        "tags": {
            "type": "string",
            "format": "binary",
            "x-item-bytes": limits.TAG_BYTES,
            "maxLength": _most_tags(),
        },
        "nonce": _binary(limits.NONCE_BYTES),
        "ed25519Signature": _binary(limits.SIGNATURE_BYTES),
        "protocolNumbers": {
            "type": "string",
            "format": "binary",
            "minLength": 1,
            "maxLength": limits.MAX_ATTRIBUTES,
        },
        "steps": {
            "type": "string",
            "format": "binary",
            "minLength": published.STEP_BYTES,
            "maxLength": published.MAX_STEPS,
            "x-multiple-of": published.STEP_BYTES,
        },
        "presence": _numbered(Presence),
        "requestKind": _numbered(RequestKind),
        "responseStatus": _numbered(ResponseStatus),
        "outcome": {"type": "string", "enum": [str(outcome) for outcome in Outcome]},
        "outcomes": {
            "type": "object",
            "propertyNames": reference("outcome"),
            "minProperties": len(Outcome),
            "additionalProperties": count,
        },
        "instant": schema(top["created"].kind),
        "epsilon": schema(top["eps_inf"].kind),
        "attributeName": schema(attribute["name"].kind),
        "reporting": schema(top["reporting"].kind),
        "protocol": {"type": "string", "enum": list(ran)},
        "askedProtocol": schema(attribute["protocol"].kind),
        "calibration": schema(attribute["calibration"].kind),
        "valueCount": _whole(limits.MIN_VALUES, limits.MAX_VALUES),
        "count": _whole(0, limits.MAX_COUNT),
        "counts": {"type": "array", "maxItems": limits.MAX_VALUES, "items": count},
        "series": {
            "type": "array",
            "maxItems": limits.MAX_VALUES,
            "items": reference("frequency"),
        },
        "frequency": {"type": "number", "format": "double"},
        "numberOrNil": {"oneOf": [{"type": "null"}, {"type": "number", "format": "double"}]},
        "quantileShare": {
            "type": "number",
            "format": "double",
            "enum": list(result_checks.QUANTILES),
        },
    }
