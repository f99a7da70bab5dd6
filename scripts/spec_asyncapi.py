"""The generated blocks of asyncapi.yaml: all but summaries and descriptions, which authors write.

Also what README.md shares with it: blocks between markers, channels, and what a field may hold.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import yaml

from protocol_spec import (
    DEFAULT_NAMESPACE,
    Outcome,
    Presence,
    RequestKind,
    ResponseStatus,
    Topics,
    encoding,
    limits,
    published,
    results,
    topics,
)
from protocol_spec.encoding import WIRE_VERSION
from protocol_spec.fields import TABLES, Kind
from protocol_spec.manifest import FIELDS, Field
from protocol_spec.mechanisms import MECHANISMS

Blocks = Mapping[str, Callable[[str], str]]


class SpecificationError(Exception):
    """The code has something that the documents do not explain, or the other way round."""


# In Markdown and in YAML; a block keeps the indentation of its marker.
_BLOCK = re.compile(
    r"(?P<begin>^(?P<indent>[ ]*)(?:<!--|#) generated: (?P<name>[\w ]+?)(?: -->)?\n)"
    r"(?P<inside>.*?)"
    r"(?P<end>^[ ]*(?:<!--|#) end of (?P=name)(?: -->)?$)",
    re.M | re.S,
)


def renewed(text: str, blocks: Blocks) -> str:
    """The document with every block generated again, each from what it held before."""
    found = [match["name"] for match in _BLOCK.finditer(text)]
    if sorted(found) != sorted(blocks):
        different = sorted(set(found) ^ set(blocks)) or "one is there twice"
        raise SpecificationError(f"markers and generated blocks do not agree: {different}")

    def renew(match: re.Match[str]) -> str:
        made = blocks[match["name"]](match["inside"]).rstrip("\n")
        lines = [match["indent"] + line if line else "" for line in made.split("\n")]
        return match["begin"] + "\n".join(lines) + "\n" + match["end"]

    return _BLOCK.sub(renew, text)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines])


def written(inside: str) -> dict[str, str]:
    """The last cell of each row of a table, which an author wrote, by the first."""
    rows = [line.strip().strip("|").split("|") for line in inside.splitlines() if "|" in line]
    return {row[0].strip(): row[-1].strip() for row in rows}


def explained(words: Mapping[str, str], key: str) -> str:
    """The author's words for a row; a row that was never written is an error that names it."""
    found = words.get(key, "")
    if not found:
        raise SpecificationError(
            f"{key} is not explained: add its row, with words in the last cell"
        )
    return found


# --- What a field or an item may hold, in the words of asyncapi.yaml and of README.md.


Schema = dict[str, Any]


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def pattern(expression: re.Pattern[str]) -> str:
    return f"^{expression.pattern}$"


def decimal(below: int) -> str:
    """A number from 0, without leading zeros, with as many digits as it can have."""
    return f"^(0|[1-9][0-9]{{0,{len(str(below - 1)) - 1}}})$"


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


# --- Every topic that the code can build, with the names of its parts instead of values.


# Values that stand for themselves: no other part of a topic looks like them.
_CAMPAIGN = "campaign-00000000"
_VALUES: dict[str, Any] = {
    "round_number": 11111,
    "page": 22222,
    "attribute": "attribute-name",
    "device": "device-name",
}
_PLACES = {
    "namespace-name": "{namespace}",
    _CAMPAIGN: "{campaign}",
    "device-name": "{device}",
    "attribute-name": "{attribute}",
    "11111": "{round}",
    "22222": "{page}",
}
_TOPICS = Topics(_CAMPAIGN, "namespace-name")


@dataclass(frozen=True, slots=True)
class Channel:
    """One kind of topic: what is published on it, and the filter it is read with."""

    address: str
    message: str
    filter: str | None = None

    @property
    def subtree(self) -> str:
        """pub, up or down: it decides who speaks and whether the broker keeps the message."""
        return self.address.split("/")[3]

    @property
    def retained(self) -> bool:
        return self.subtree == "pub"

    @property
    def action(self) -> str:
        """What the collector does on it."""
        return "receive" if self.subtree == "up" else "send"

    @property
    def route(self) -> str:
        between = {"pub": "collector, all", "up": "device, collector", "down": "collector, device"}
        return between[self.subtree]

    @property
    def parameters(self) -> list[str]:
        return [part.strip("{}") for part in self.address.split("/") if part.startswith("{")]


def _address(member: str, *names: str) -> str:
    """What a member of `Topics` builds: an attribute, or a method with the named arguments."""
    built = getattr(_TOPICS, member)
    topic = built(**{name: _VALUES[name] for name in names}) if callable(built) else built
    return "/".join(_PLACES.get(level, level) for level in topic.split("/"))


CHANNELS: dict[str, Channel] = {
    "manifest": Channel(_address("manifest"), "manifest"),
    "signature": Channel(_address("signature"), "signature"),
    "thresholds": Channel(_address("thresholds"), "thresholds"),
    "state": Channel(_address("state"), "state"),
    "receipt": Channel(
        _address("receipt", "round_number", "page"),
        "receipt",
        _address("receipts_for", "page"),
    ),
    "result": Channel(_address("result", "attribute"), "result"),
    "roundResult": Channel(_address("result", "attribute", "round_number"), "result"),
    "resultJson": Channel(_address("result_json", "attribute"), "resultJson"),
    "report": Channel(_address("report", "device"), "report", _address("all_reports")),
    "request": Channel(_address("request", "device"), "request", _address("all_requests")),
    "response": Channel(_address("response", "device"), "response"),
}


def check_channels() -> None:
    """Every topic and filter of the code is in the list, and nothing else is."""
    known = {channel.address for channel in CHANNELS.values()}
    known |= {channel.filter for channel in CHANNELS.values() if channel.filter}
    built = set(_built())
    if known != built:
        raise SpecificationError(f"topics without a channel, or the reverse: {known ^ built}")


def _built() -> list[str]:
    """What every public member of `Topics` builds, with and without its optional parts."""
    found = []
    for name in dir(_TOPICS):
        if name.startswith("_"):
            continue
        member = getattr(_TOPICS, name)
        if isinstance(member, str):
            found.append(_address(name))
        else:
            parameters = inspect.signature(member).parameters.values()
            required = [p.name for p in parameters if p.default is p.empty]
            found += [_address(name, *required), _address(name, *(p.name for p in parameters))]
    return [topic for topic in found if not topic.endswith("/")]  # what ends so is only a prefix


# --- The blocks of asyncapi.yaml. Its authors write summaries and descriptions, the code the rest.


QOS = 1
SIZES = {
    "manifest": limits.MAX_MANIFEST_BYTES,
    "signature": limits.MAX_SIGNATURE_BYTES,
    "thresholds": limits.MAX_THRESHOLDS_BYTES,
    "state": limits.MAX_CONTROL_BYTES,
    "receipt": limits.MAX_RECEIPT_BYTES,
    "result": limits.MAX_RESULT_BYTES,
    "resultJson": limits.MAX_JSON_BYTES,
    "report": limits.MAX_REPORT_BYTES,
    "request": limits.MAX_CONTROL_BYTES,
    "response": limits.MAX_CONTROL_BYTES,
}
PARAMETERS: dict[str, Schema] = {
    "namespace": {"default": DEFAULT_NAMESPACE, "x-pattern": pattern(topics.NAMESPACE)},
    "campaign": {"x-pattern": pattern(topics.CAMPAIGN)},
    "device": {"x-pattern": pattern(topics.DEVICE)},
    "attribute": {"x-pattern": pattern(topics.ATTRIBUTE)},
    "round": {"x-pattern": decimal(limits.MAX_ROUNDS)},
    "page": {"x-pattern": decimal(limits.MAX_RECEIPT_PAGES)},
}
# Fields of a manifest whose schema has a name, because it occurs more than once.
NAMED = {
    "created": "instant",
    "expires": "instant",
    "first": "instant",
    "eps_inf": "epsilon",
    "eps_1": "epsilon",
    "name": "attributeName",
    "calibration": "calibration",
    "format": "version",
    "protocol": "askedProtocol",
    "reporting": "reporting",
}
# Kinds of attributes, and which fields those do not have; `levels` are of nested reporting.
NOT_BINS = ("values",)
NOT_NAMED_VALUES = ("edges", "unit", "low", "high")
ATTRIBUTES = {
    "namedValues": (*NOT_NAMED_VALUES, "levels"),
    "bins": (*NOT_BINS, "levels"),
    "nestedValues": NOT_NAMED_VALUES,
    "nestedBins": NOT_BINS,
}
KEPT = ("description", "summary", "examples")


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, and short ones stay on one line; patterns are quoted."""

    def ignore_aliases(self, _data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = "'" if data.startswith("^") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def represent_sequence(
        self,
        tag: str,
        sequence: Any,
        flow_style: Any = None,  # noqa: ARG002
    ) -> yaml.SequenceNode:
        short = all(isinstance(item, str | int) for item in sequence) and len(str(sequence)) < 80
        return super().represent_sequence(tag, sequence, flow_style=short)


_Dumper.add_representer(str, _Dumper.represent_str)


def _dumped(document: Mapping[str, Any]) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text


@lru_cache(maxsize=1)
def _before(inside: str) -> Mapping[str, Schema]:
    """A block as it was."""
    found: Mapping[str, Schema] = load(inside) or {}
    return found


def load(text: str) -> Any:
    """The same as yaml.safe_load, compiled where it can be: ten times as fast."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe


def _words(inside: str, name: str, *, needed: str | None = None) -> Schema:
    """What an author wrote about a member of a block."""
    found = _before(inside).get(name, {})
    if needed and not found.get(needed):
        raise SpecificationError(f"{name} is not explained: give it a {needed}")
    return {key: found[key] for key in KEPT if key in found}


def channels(inside: str) -> str:
    check_channels()
    made = {}
    for name, channel in CHANNELS.items():
        made[name] = {
            "address": channel.address,
            **_words(inside, name, needed="summary"),
            **({"x-subscription": channel.filter} if channel.filter else {}),
            "messages": {channel.message: {"$ref": f"#/components/messages/{channel.message}"}},
            "parameters": {
                part: {"$ref": f"#/components/parameters/{part}"} for part in channel.parameters
            },
        }
    return _dumped(made)


def operations(_inside: str) -> str:
    made: dict[str, Schema] = {}
    for name, channel in CHANNELS.items():
        capital = name[0].upper() + name[1:]
        verb = "publish" if channel.retained else channel.action
        kind = "retained" if channel.retained else "passing"
        made[f"{verb}{capital}"] = {
            "action": channel.action,
            "channel": {"$ref": f"#/channels/{name}"},
            "bindings": {"$ref": f"#/components/operationBindings/{kind}"},
        }
    made["receiveRequest"]["reply"] = {"channel": {"$ref": "#/channels/response"}}
    return _dumped(made)


def bindings(_inside: str) -> str:
    return _dumped(
        {
            kind: {"mqtt": {"qos": QOS, "retain": retain, "bindingVersion": "0.2.0"}}
            for kind, retain in (("retained", True), ("passing", False))
        }
    )


def parameters(inside: str) -> str:
    used = {part for channel in CHANNELS.values() for part in channel.parameters}
    if used != set(PARAMETERS):
        raise SpecificationError(f"parts of topics without a parameter: {used ^ set(PARAMETERS)}")
    return _dumped(
        {
            name: {**_words(inside, name, needed="description"), **rest}
            for name, rest in PARAMETERS.items()
        }
    )


def messages(inside: str) -> str:
    used = {channel.message for channel in CHANNELS.values()}
    if used != set(SIZES):
        raise SpecificationError(f"messages without a largest size: {used ^ set(SIZES)}")
    return _dumped(
        {
            name: {
                **_words(inside, name, needed="summary"),
                "contentType": f"application/{'json' if name == 'resultJson' else 'msgpack'}",
                "x-max-bytes": size,
                "payload": reference(name),
            }
            for name, size in SIZES.items()
        }
    )


def shared_parts(inside: str) -> str:
    return _dumped({name: {**_words(inside, name), **part} for name, part in parts().items()})


def manifest(inside: str) -> str:
    fields = FIELDS
    listed = {
        "type": "array",
        "minItems": TABLES.low,
        "maxItems": TABLES.high,
        "items": {"oneOf": [reference(kind) for kind in ATTRIBUTES]},
    }
    inner = {"rounds": _map(fields.rounds), "attributes": listed}
    made = {"manifest": _map(fields.manifest, **inner)}
    for kind, without in ATTRIBUTES.items():
        made[kind] = _map({n: each for n, each in fields.attribute.items() if n not in without})
    for name, properties in ((n, m.get("properties", {})) for n, m in made.items()):
        before = _before(inside).get(name, {}).get("properties", {})
        for field, each in properties.items():
            words = before.get(field, {}).get("description")
            if words:
                properties[field] = {"description": words, **each}
    return _dumped({name: {**_words(inside, name), **each} for name, each in made.items()})


def _map(fields: Mapping[str, Field], **inner: Schema) -> Schema:
    properties = {
        name: inner.get(name) or (reference(NAMED[name]) if name in NAMED else schema(field.kind))
        for name, field in fields.items()
    }
    return {
        "type": "object",
        "required": list(fields),
        "additionalProperties": False,
        "properties": properties,
    }


# The same words make the same block, and writing YAML takes most of the time.
BLOCKS: Blocks = {
    name: lru_cache(maxsize=2)(made)
    for name, made in {
        "channels": channels,
        "operations": operations,
        "bindings": bindings,
        "parameters": parameters,
        "messages": messages,
        "parts": shared_parts,
        "manifest": manifest,
    }.items()
}
