"""What a field or an item may hold, in the words of asyncapi.yaml and of README.md."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

from protocol_spec import (
    Outcome,
    Presence,
    RequestKind,
    ResponseStatus,
    encoding,
    limits,
    published,
    results,
    topics,
)
from protocol_spec.encoding import WIRE_VERSION
from protocol_spec.fields import Kind
from protocol_spec.manifest import FIELDS
from protocol_spec.mechanisms import MECHANISMS

Schema = dict[str, Any]


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def pattern(expression: re.Pattern[str]) -> str:
    return f"^{expression.pattern}$"


def decimal(below: int) -> str:
    """A number from 0, without leading zeros, with as many digits as it can have."""
    return f"^(0|[1-9][0-9]{{0,{len(str(below - 1)) - 1}}})$"


# --- kinds of fields ------------------------------------------------------------------------------


def schema(kind: Kind) -> Schema:  # noqa: PLR0911 - one for each kind
    """The JSON schema of a field's kind."""
    counted = {"minItems": kind.low, "maxItems": kind.high}
    number = {"type": "number", "format": "double"}
    match kind.name:
        case "flag":
            return {"type": "boolean"}
        case "finite":
            return {"oneOf": [{"type": "null"}, number]}
        case "key":
            return {"oneOf": [_binary(0), _binary(int(kind.high))]}
        case "text":
            return {"type": "string", "minLength": kind.low, "maxLength": kind.high}
        case "name" if kind.pattern:
            return {"type": "string", "pattern": pattern(kind.pattern)}
        case "word":
            return {"type": "string", "enum": list(kind.words)}
        case "int" | "duration" | "instant":
            return {"type": "integer", "minimum": kind.low, "maximum": kind.high}
        case "float":
            return {**number, "minimum": kind.low, "maximum": kind.high}
        case "levels" if kind.each:
            return {"type": "array", **counted, "items": schema(kind.each)}
        case "values" if kind.each:
            return {"type": "array", **counted, "uniqueItems": True, "items": schema(kind.each)}
        case "edges":
            return {"type": "array", **counted, "items": {**number, "x-infinite": True}}
    raise TypeError(f"no schema for {kind!r}")


def tables(kind: Kind, *items: str) -> Schema:
    """A list whose items have one of the named schemas."""
    either = {"oneOf": [reference(item) for item in items]}
    return {"type": "array", "minItems": kind.low, "maxItems": kind.high, "items": either}


def in_words(kind: Kind) -> tuple[str, str]:  # noqa: PLR0911 - one for each kind
    """Type and limits of a field, as the table of README.md writes them."""
    each = in_words(kind.each)[1] if kind.each else ""
    span = (
        f"{kind.low:g} to {kind.high:g}" if kind.name == "float" else f"{kind.low} to {kind.high}"
    )
    said = {
        topics.SLUG: f"1 to {limits.MAX_SLUG_LENGTH} of `a-z 0-9 -`, no `-` at the ends",
        topics.ATTRIBUTE: f"1 to {limits.MAX_NAME_LENGTH} of `a-z 0-9 _ -`, a letter first",
    }
    match kind.name:
        case "format":
            return "int", str(kind.low)
        case "flag":
            return "bool", ""
        case "finite":
            return "float or nil", "finite"
        case "key":
            return "bin", f"0 or {kind.high} bytes"
        case "name" if kind.pattern:
            return "str", said[kind.pattern]
        case "word":
            return "str", ", ".join(f"`{word}`" for word in kind.words)
        case "levels":
            return "array of float", f"{span}, rising, {each} each"
        case "values":
            return "array of text", f"{span} distinct, {each} each"
        case "edges":
            return "array of float", span
        case "text" | "int" | "duration" | "instant" | "float":
            return kind.name, span
    raise TypeError(f"no words for {kind!r}")


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
        return len(encoding.pack([WIRE_VERSION, digest, *last, bytes(length)]))

    longest = limits.MAX_RECEIPT_BYTES // limits.TAG_BYTES * limits.TAG_BYTES
    while size(longest) > limits.MAX_RECEIPT_BYTES:
        longest -= limits.TAG_BYTES
    return longest


def parts() -> dict[str, Schema]:
    """Named parts; what an array's or a map's schema says in numbers, it says by one of these."""
    top, attribute = FIELDS.manifest, FIELDS.attribute
    count = reference("count")
    ran = dict.fromkeys(name for each in MECHANISMS.values() for name in each.rules.protocols)
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
            "enum": list(results.RESULT_QUANTILES),
        },
    }
