"""The tables of README.md. Its authors write the last column, the code the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_client.records import Timing
from protocol_spec import OUTCOME_HELP, Outcome, limits, manifest
from protocol_spec.published import PROTOCOL_NUMBERS
from specification import examples
from specification.asyncapi import QOS, load
from specification.blocks import Blocks, SpecificationError, explained, table, written
from specification.channels import CHANNELS, check_channels
from specification.schemas import in_words

LIMITS = {
    "MAX_MANIFEST_BYTES": "manifest, bytes",
    "MAX_REPORT_BYTES": "report, bytes",
    "MAX_CONTROL_BYTES": "state, request, response, bytes",
    "MAX_SIGNATURE_BYTES": "signature, bytes",
    "MAX_THRESHOLDS_BYTES": "thresholds, bytes",
    "MAX_RECEIPT_BYTES": "receipt page, bytes",
    "MAX_RESULT_BYTES": "result, bytes",
    "MAX_JSON_BYTES": "result in JSON, bytes",
    "MAX_BODY_BYTES": "body of a report, bytes",
    "MAX_ATTRIBUTES": "attributes of a campaign",
    "MAX_VALUES": "values of an attribute",
    "MAX_ROUNDS": "rounds of a campaign",
    "MAX_RECEIPT_PAGES": "receipt pages of a campaign",
    "MAX_LEVELS": "levels of nested reports",
    "DIGEST_BYTES": "digest in a message, bytes",
    "TAG_BYTES": "receipt tag, bytes",
    "NONCE_BYTES": "nonce of a request, bytes",
    "SIGNATURE_BYTES": "Ed25519 signature in it, bytes",
}
# In the table of the manifest's fields, or in the requirement that names them.
LIMITS_ELSEWHERE = {
    "DEVICES_PER_PAGE",  # M66
    "KEY_BYTES",
    "MAX_CONTACT_LENGTH",
    "MAX_COUNT",  # M23
    "MAX_DEVICES",
    "MAX_DEVICE_LENGTH",  # M2
    "MAX_DRAIN_SECONDS",
    "MAX_EPS_INF",
    "MAX_INSTANT",
    "MAX_MIN_REPORTS",
    "MAX_NAMESPACE_LENGTH",  # section 5
    "MAX_NAME_LENGTH",
    "MAX_OWNER_LENGTH",
    "MAX_PERIOD_SECONDS",
    "MAX_PURPOSE_LENGTH",
    "MAX_QUESTION_LENGTH",
    "MAX_RETENTION_SECONDS",
    "MAX_SLUG_LENGTH",
    "MAX_TITLE_LENGTH",
    "MAX_UNIT_LENGTH",
    "MAX_VALUE_LENGTH",
    "MIN_EPSILON",
    "MIN_LEVELS",
    "MIN_PUBLISHED_EPS_1",  # M113
    "MIN_VALUES",
    "PAGE_TAGS",  # M105
}
LIMITS_OF_THE_REFERENCE = {"MAX_DOMAIN", "MAX_EPSILON"}  # nothing on the wire reaches them

# Defaults that follow from other fields.
DEFAULTS = {
    "created": "`rounds.first`",
    "expires": "end of the last round's grace",
    "rounds.grace": "`rounds.period`",
    "eps_1": "for `once`: M62",
    "receipt_pages": "16; M66",
    "rounds.each": "for `once` 1, else 0",
    "attributes[].low": "nil",
    "attributes[].high": "nil",
    "attributes[].changes": "true with `edges`, else false",
    "attributes[].levels": "M64",
}


def limits_table(_inside: str) -> str:
    said = {*LIMITS, *LIMITS_ELSEWHERE, *LIMITS_OF_THE_REFERENCE}
    if said != set(limits.__all__):
        raise SpecificationError(f"limits nobody documents: {said ^ set(limits.__all__)}")
    rows = [(label, str(getattr(limits, name))) for name, label in LIMITS.items()]
    return table(("limit", "number"), rows)


def fields_table(inside: str) -> str:
    words = written(inside)
    rows = []
    for name, field in _fields().items():
        kind, bounds = in_words(field.kind)
        key = f"`{name}`"
        default = DEFAULTS.get(name) or _default(field)
        rows.append((key, kind, bounds, default, explained(words, key)))
    return table(("field", "type", "limits", "default", "meaning"), rows)


def _fields() -> dict[str, manifest.Field]:
    """Every field in the order of the wire, those of inner maps in their place."""
    known = manifest.FIELDS
    inner = {"rounds": ("rounds.", known.rounds), "attributes": ("attributes[].", known.attribute)}
    found: dict[str, manifest.Field] = {}
    for name, field in known.manifest.items():
        if name in inner:
            prefix, fields = inner[name]
            found |= {f"{prefix}{each}": field for each, field in fields.items()}
        else:
            found[name] = field
    return found


def _default(field: manifest.Field) -> str:
    if field.required:
        return ""
    if field.default in ("", b""):
        return "empty"
    if isinstance(field.default, str):
        return f"`{field.default}`"
    return str(field.default)


def topics_table(inside: str) -> str:
    check_channels()
    words = written(inside)
    rows = []
    for channel in CHANNELS.values():
        key = _topic(channel.address)
        kept = "yes" if channel.retained else "no"
        rows.append((key, channel.route, str(QOS), kept, explained(words, key)))
    return table(("topic", "from, to", "QoS", "retain", "payload"), rows)


def subscriptions_table(inside: str) -> str:
    words = written(inside)
    keys = [_topic(channel.filter) for channel in CHANNELS.values() if channel.filter]
    return table(("subscription", "of"), [(key, explained(words, key)) for key in keys])


def _topic(address: str) -> str:
    return f"`{address.replace('{namespace}', '{ns}')}`"


def outcomes_table(_inside: str) -> str:
    missing = [outcome for outcome in Outcome if not OUTCOME_HELP.get(outcome)]
    if missing:
        raise SpecificationError(f"outcomes without words in OUTCOME_HELP: {missing}")
    rows = [(f"`{outcome}`", OUTCOME_HELP[outcome]) for outcome in Outcome]
    return table(("outcome", "meaning"), rows)


def result_table(schema: Mapping[str, Any], first: str, names: Mapping[str, str]) -> Any:
    """A table of the fields that a schema of asyncapi.yaml lists, in its order."""

    def made(inside: str) -> str:
        words = written(inside)
        rows = []
        for field in schema["required"]:
            key = f"`{field}`"
            rows.append((key, names[field], explained(words, key)))
        return table((first, "type", "meaning"), rows)

    return made


def _types(schemas: Mapping[str, Any], name: str, spelt: Mapping[str, str]) -> dict[str, str]:
    return {
        field: _type(schemas, each, spelt) for field, each in schemas[name]["properties"].items()
    }


def _type(schemas: Mapping[str, Any], schema: Mapping[str, Any], spelt: Mapping[str, str]) -> str:
    """The type of a schema in the words of msgpack or of JSON."""
    if "$ref" in schema:
        return _type(schemas, schemas[schema["$ref"].rsplit("/", 1)[1]], spelt)
    if "allOf" in schema:
        return _type(schemas, schema["allOf"][0], spelt)
    if "oneOf" in schema:
        found = [_type(schemas, each, spelt) for each in schema["oneOf"]]
        return " or ".join(sorted(found, key=lambda word: word in ("nil", "null")))
    if schema.get("format") == "binary":
        return "bin"
    if schema["type"] == "array" and "array of" in spelt and isinstance(schema["items"], dict):
        return f"array of {_type(schemas, schema['items'], spelt)}"
    return spelt[schema["type"]]


MSGPACK = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "object": "map",
    "null": "nil",
    "array": "array",
    "array of": "",
}
JSON = {
    "integer": "number",
    "number": "number",
    "string": "string",
    "object": "object",
    "null": "null",
    "boolean": "boolean",
    "array": "array",
}


def pauses_table(_inside: str) -> str:
    """The agent's own numbers."""
    waits = Timing()
    rows = [
        ("after a connect that failed, or a connection that was lost", waits.reconnect,
         waits.reconnect_longest),
        ("after a report was sent, while its tag is on no page", waits.resend,
         waits.resend_longest),
    ]  # fmt: skip
    head = ("pause", "first, seconds", "doubled each time, up to")
    steady = f"a connection that lasted less than {waits.steady:g} s and carried nothing"
    said = [(what, f"{first:g}", f"{longest:g}") for what, first, longest in rows]
    return f"{table(head, said)}\n\nA pause is doubled after {steady}, too.\n"


def protocol_numbers_table(_inside: str) -> str:
    rows = [(str(number), name) for number, name in enumerate(PROTOCOL_NUMBERS)]
    return table(("number", "protocol"), rows)


def blocks(readme: str, asyncapi: str) -> Blocks:
    schemas = load(asyncapi)["components"]["schemas"]
    return {
        "limits": limits_table,
        "fields": fields_table,
        "topics": topics_table,
        "subscriptions": subscriptions_table,
        "outcomes": outcomes_table,
        "pauses": pauses_table,
        "protocol numbers": protocol_numbers_table,
        "result": result_table(schemas["result"], "field", _types(schemas, "result", MSGPACK)),
        "numbers": result_table(
            schemas["numbers"], "of numbers", _types(schemas, "numbers", MSGPACK)
        ),
        "result json": result_table(
            schemas["resultJson"], "key", _types(schemas, "resultJson", JSON)
        ),
        **examples.blocks(readme),
    }
