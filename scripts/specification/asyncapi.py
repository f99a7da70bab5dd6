"""The blocks of asyncapi.yaml. Its authors write summaries and descriptions, the code the rest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from protocol_spec import DEFAULT_NAMESPACE, limits, topics
from protocol_spec.fields import TABLES
from protocol_spec.manifest import FIELDS, Field
from specification.blocks import Blocks, SpecificationError
from specification.channels import CHANNELS, check_channels
from specification.schemas import (
    Schema,
    decimal,
    parts,
    pattern,
    reference,
    schema,
    tables,
)

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
    inner = {"rounds": _map(fields.rounds), "attributes": tables(TABLES, *ATTRIBUTES)}
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
