"""`asyncapi.yaml`, and a small checker of its schemas.

The checker is not only shown good messages: whatever it accepts the decoders must accept, and
whatever it refuses they must refuse.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from tests.support.harness import ROOT

Schema = Mapping[str, Any]

DOCUMENT: Mapping[str, Any] = yaml.load(  # by libyaml, in a tenth of the time
    (ROOT / "protocol_spec/asyncapi.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader
)
CHANNELS: Mapping[str, Any] = DOCUMENT["channels"]
OPERATIONS: Mapping[str, Any] = DOCUMENT["operations"]
COMPONENTS: Mapping[str, Any] = DOCUMENT["components"]
SCHEMAS: Mapping[str, Schema] = COMPONENTS["schemas"]


def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a `$ref` points to; a node without one is itself."""
    while "$ref" in node:
        found: Any = DOCUMENT
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        node = found
    return node


def nodes(node: Any) -> Iterator[Any]:
    """A part of the document and everything inside it."""
    yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from nodes(child)


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


def matches(value: Any, pattern: str, _: Schema) -> bool:
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
    "pattern": matches,
    "x-item-bytes": _ascending,
    "x-multiple-of": lambda value, size, _: len(value) % size == 0,
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


# --- Values that are rarely right: for whatever reads messages, names or numbers.


ODDITIES: list[Any] = [None, False, True, -1, 0, 1, 2, 3, 4, 126, 127, 128, 255, 256]
ODDITIES += [65_534, 65_535, 65_536, 65_537, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1]
ODDITIES += [-1.0, 0.0, 0.5, 1.0, 2.0, math.nan, math.inf, -math.inf, "", "1", "x" * 8, "x" * 32]
ODDITIES += ["model", "Model", "x" * 33, "L-GRR", "auto", "exact", b"", b"\x01", b"\0\0\0\1"]
ODDITIES += [bytes(4), bytes(7), bytes(8), bytes(9), b"\0\0\0\1\0\0\0\2", b"\0\0\0\2\0\0\0\1"]
ODDITIES += [
    *(bytes(n) for n in (31, 32, 33, 63, 65, 128, 129, 512, 513, 514)),
    [],
    [1],
    {},
    {"a": 1},
]

# Levels of topics, and other names.
LEVELS = ["", "a", "0", "-", "_", "A", "é", "a b", "a/b", "a\n", "a-", "-a", "a-b", "a_", "a_b"]
LEVELS += ["a+", "#", "7", "07", "12345", "99999", "123456", "-1", "a" * 31, "0" * 32, "a" * 32]
LEVELS += ["a" * 33, "a" * 64, "a" * 65, "a-0123abcd", "-0123abcd", "a-0123ABCD", "a-0123abc"]
LEVELS += ["a" * 32 + "-0123abcd", "a" * 33 + "-0123abcd", "a--0123abcd", "a_b-0123abcd"]
