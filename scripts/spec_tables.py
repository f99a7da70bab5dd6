#!/usr/bin/env python
"""Write the generated parts of protocol_spec/README.md from the code and asyncapi.yaml.

./scripts/spec_tables.py            write them
./scripts/spec_tables.py --check    compare, and exit 1 with the difference
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
import yaml

from edge_client.records import Timing
from protocol_spec import (
    OUTCOME_HELP,
    RESULT_SERIES,
    Manifest,
    Outcome,
    Presence,
    ReceiptPage,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Result,
    Signature,
    State,
    digest8,
    limits,
    make_report,
    manifest,
    published_thresholds,
    receipt_page,
    receipt_tag,
    thresholds,
    topics,
)
from protocol_spec.encoding import pack, unpack
from protocol_spec.fields import Kind
from protocol_spec.manifest import unpack_manifest
from protocol_spec.programs import signing
from protocol_spec.published import PROTOCOL_NUMBERS

Blocks = Mapping[str, Callable[[str], str]]


class SpecificationError(Exception):
    """The code has something that the documents do not explain, or the other way round."""


_BLOCK = re.compile(
    r"(?P<begin>^<!-- generated: (?P<name>[\w ]+?) -->\n)"
    r"(?P<inside>.*?)"
    r"(?P<end>^<!-- end of (?P=name) -->$)",
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
        return match["begin"] + made + "\n" + match["end"]

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


# --- the messages that README.md shows byte by byte


DEVICE = "k7f3-0b2q"
ROUND = 3
NONCE = bytes(range(8))
SECRET = bytes(range(32))  # of the operator in the example
WIDTH = 22  # bytes on a line
TITLES = {"thresholds": " message"}  # the table of thresholds has the shorter title

Part = tuple[bytes, str]


def example_messages(manifest: Manifest) -> dict[str, Any]:
    """One of each message of the example campaign."""
    d8, page = digest8(manifest), receipt_page(manifest, DEVICE)
    tags = frozenset({receipt_tag(manifest, ROUND, DEVICE), bytes.fromhex("b32b8c0b")})
    withheld: dict[str, Any] = dict.fromkeys(RESULT_SERIES, ())
    return {
        "report": make_report(manifest, 300, 0, b"\x03"),
        "signature": Signature(d8, signing.sign(SECRET, manifest.digest)),
        "thresholds": published_thresholds(manifest),
        "state": State(d8, Presence.ONLINE, 2),
        "receipt": ReceiptPage(d8, ROUND, page, tags),
        "request": Request(d8, RequestKind.FORGET, NONCE),
        "response": Response(d8, RequestKind.FORGET, NONCE, ResponseStatus.DONE, 1),
        "result": Result(
            digest=manifest.digest,
            attribute=manifest.attributes[0].name,
            reporting=manifest.reporting,
            round=ROUND,
            first=ROUND,
            last=ROUND,
            rounds=1,
            protocol=manifest.calibrations[0].protocol,
            n=1,
            devices=1,
            n_eff=1.0,
            min_reports=manifest.min_reports,
            confidence=0.95,
            device_bound=0.0,
            counts=(),
            outcomes=dict.fromkeys(Outcome, 0) | {Outcome.ACCEPTED: 3, Outcome.DUPLICATE: 1},
            **withheld,
        ),
    }


def shown(name: str, message: bytes, parts: Sequence[Part]) -> str:
    """The bytes in hex, a part to a line, with a remark next to each."""
    if b"".join(part for part, _ in parts) != message:
        raise SpecificationError(f"the parts of the example {name} do not make the message")
    lines = []
    for part, remark in parts:
        rows = [part[i : i + WIDTH].hex(" ") for i in range(0, len(part), WIDTH)]
        lines += [(rows[0], remark), *((row, "") for row in rows[1:])]
    column = max(len(row) for row, _ in lines) + 3
    text = "\n".join((row.ljust(column) + remark).rstrip() for row, remark in lines)
    return f"```hex {name}\n{text}\n```"


def array_parts(message: bytes, remarks: Sequence[str]) -> list[Part]:
    items = unpack(message, array=8, binary=1 << 20)
    head = (message[:1], f"array of {len(items)}")
    return [head, *((pack(item), said) for item, said in zip(items, remarks, strict=True))]


def map_parts(name: str, value: Any, lead: bytes = b"") -> list[Part]:
    """A value, and every value inside of it, each on a line with its name or number."""
    if isinstance(value, dict):
        kind, inside = "map", [(key, each, pack(key)) for key, each in value.items()]
    elif isinstance(value, tuple) and value and not isinstance(value[0], str):
        numbers = [f"{each:g}" if isinstance(each, float) else "" for each in value]
        kind, inside = "array", [(said, each, b"") for said, each in zip(numbers, value)]
    else:
        return [(lead + pack(value), name)]
    header = pack(value)[: 1 if len(value) < 16 else 3]
    said = f"{name}, {kind} of {len(value)}".removeprefix(", ")
    return [(lead + header, said), *(part for each in inside for part in map_parts(*each))]


def remarks(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """The remark next to each item of an array."""
    messages = example_messages(manifest)
    report, receipt = messages["report"], messages["receipt"]
    attribute = manifest.attributes[report.attribute]
    support = manifest.mechanisms[report.attribute].supported(report.body, DEVICE)
    [value] = manifest.body_formats[report.attribute].supported(support.body)
    named = ("version", "digest8")
    request = (*named, "kind: forget", "nonce")
    return {
        "report": (
            *named,
            f"round {report.round}",
            f"attribute {report.attribute}, {attribute.name}",
            f"body: value {value} of {attribute.k}, and a zero behind it",
        ),
        "signature": (*named, "signature"),
        "thresholds": (*named, "protocols: L-GRR, L-SS", "keep and size of RR1 and RR2 of each"),
        "state": (
            *named,
            "presence: online",
            f"last sealed round: {messages['state'].last_sealed}",
        ),
        "receipt": (*named, f"round {receipt.round}", f"page {receipt.page}", "two tags"),
        "request": request,
        "response": (*request, "status: done", "one round"),
    }


def _examples(readme: str) -> Blocks:
    """A block for each example, and the tables that follow from the example campaign."""
    [toml] = re.findall(r"^```toml\n(.*?)^```$", readme, re.M | re.S)
    manifest = Manifest.from_toml(toml)
    messages = example_messages(manifest)
    said = remarks(manifest)

    def array(name: str) -> Callable[[str], str]:
        message = messages[name].encode()
        return lambda _: shown(name, message, array_parts(message, said[name]))

    def whole_manifest(_: str) -> str:
        payload = manifest.to_bytes()
        return shown("manifest", payload, map_parts("", unpack_manifest(payload)))

    def result(_: str) -> str:
        payload = messages["result"].encode()
        document = unpack(payload, array=8, text=64, binary=64, maps=32)
        return shown("result", payload, map_parts("", document))

    return {
        **{f"example {name}{TITLES.get(name, '')}": array(name) for name in said},
        "example manifest": whole_manifest,
        "example result": result,
        "example names": lambda _: names_table(manifest),
        "example thresholds": lambda _: thresholds_table(manifest),
    }


def names_table(manifest: Manifest) -> str:
    digest = hashlib.sha256(manifest.to_bytes()).hexdigest()
    rows = [("digest", f"`{digest}`"), ("campaign", f"`{manifest.campaign}`")]
    return table(("of the example", "is"), rows)


def thresholds_table(manifest: Manifest) -> str:
    rows = [
        (attribute.name, noise.protocol, *map(str, sum(thresholds(noise), ())))
        for attribute, noise in zip(manifest.attributes, manifest.calibrations, strict=True)
    ]
    return table(("attribute", "protocol", "keep 1", "size 1", "keep 2", "size 2"), rows)


# --- The tables of README.md. Its authors write the last column, the code the rest.


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
    "MAX_GROUPS": "values in `groups`",
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
    "DEVICES_PER_PAGE", "KEY_BYTES", "MAX_CONTACT_LENGTH", "MAX_COUNT", "MAX_DEVICES",
    "MAX_DEVICE_LENGTH", "MAX_DRAIN_SECONDS", "MAX_EPS_INF", "MAX_INSTANT", "MAX_MIN_REPORTS",
    "MAX_NAMESPACE_LENGTH", "MAX_NAME_LENGTH", "MAX_OWNER_LENGTH", "MAX_PERIOD_SECONDS",
    "MAX_PURPOSE_LENGTH", "MAX_QUESTION_LENGTH", "MAX_RETENTION_SECONDS", "MAX_SLUG_LENGTH",
    "MAX_TITLE_LENGTH", "MAX_UNIT_LENGTH", "MAX_VALUE_LENGTH", "MIN_EPSILON", "MIN_LEVELS",
    "MIN_PUBLISHED_EPS_1", "MIN_VALUES", "PAGE_TAGS",
}  # fmt: skip
LIMITS_OF_THE_REFERENCE = {"MAX_DOMAIN", "MAX_EPSILON"}  # nothing on the wire reaches them

# Defaults that follow from other fields.
DEFAULTS = {
    "created": "`rounds.first`",
    "expires": "end of the last round's grace",
    "rounds.grace": "`rounds.period`",
    "eps_1": "for `once`: M62",
    "choose_for": "M75",
    "receipt_pages": "16; M66",
    "rounds.each": "for `once` 1, else 0",
    "attributes[].low": "nil",
    "attributes[].high": "nil",
    "attributes[].changes": "true with `edges`, else false",
    "attributes[].levels": "M64",
}


def limits_table(_inside: str) -> str:
    said = {*LIMITS, *LIMITS_ELSEWHERE, *LIMITS_OF_THE_REFERENCE}
    bounds = {name for name in vars(limits) if name.isupper()}
    if said != bounds:
        raise SpecificationError(f"undocumented limits: {said ^ bounds}")
    rows = [(label, str(getattr(limits, name))) for name, label in LIMITS.items()]
    return table(("limit", "number"), rows)


def fields_table(inside: str) -> str:
    words = written(inside)
    rows = []
    for name, field in _manifest_fields().items():
        kind, bounds = in_words(field.kind)
        key = f"`{name}`"
        default = DEFAULTS.get(name) or _default(field)
        rows.append((key, kind, bounds, default, explained(words, key)))
    return table(("field", "type", "limits", "default", "meaning"), rows)


def in_words(kind: Kind) -> tuple[str, str]:  # noqa: PLR0911 - one for each kind
    """Type and limits of a field, as the table of README.md writes them."""
    each = in_words(kind.each)[1] if kind.each else ""
    span = (
        f"{kind.low:g} to {kind.high:g}" if kind.name == "float" else f"{kind.low} to {kind.high}"
    )
    patterns = {
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
        case "cross":
            return "array of map", str(kind.high)
        case "key":
            return "bin", f"0 or {kind.high} bytes"
        case "name" if kind.pattern:
            return "str", patterns[kind.pattern]
        case "word":
            return "str", ", ".join(f"`{word}`" for word in kind.words)
        case "levels":
            return "array of float", f"{span}, rising, {each} each"
        case "values":
            return "array of text", f"{span} distinct, {each} each"
        case "edges":
            return "array of float", span
        case "groups":
            bounds = "1 to 32 letters, digits or ` . _ -` each, a letter or digit first"
            return "array of str", f"{span} distinct, {bounds}"
        case "text" | "int" | "duration" | "instant" | "float":
            return kind.name, span
    raise TypeError(f"no words for {kind!r}")


def _manifest_fields() -> dict[str, manifest.Field]:
    """Every field in the order of the wire, those of inner maps in their place."""
    known = manifest.FIELDS
    inner = {"rounds": ("rounds.", known.rounds), "attributes": ("attributes[].", known.attribute)}
    inner["groups"] = ("groups.", known.groups)
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


def topics_table(document: Mapping[str, Any]) -> Callable[[str], str]:
    """Topics and how messages are published to them, from the channels of asyncapi.yaml."""
    routes = {"pub": "collector, all", "up": "device, collector", "down": "collector, device"}

    def made(inside: str) -> str:
        words, rows = written(inside), []
        bindings = document["components"]["operationBindings"]
        for operation in document["operations"].values():
            channel = document["channels"][operation["channel"]["$ref"].rsplit("/", 1)[1]]
            flags = bindings[operation["bindings"]["$ref"].rsplit("/", 1)[1]]["mqtt"]
            key = _topic(channel["address"])
            kept = "yes" if flags["retain"] else "no"
            route = routes[channel["address"].split("/")[3]]
            rows.append((key, route, str(flags["qos"]), kept, explained(words, key)))
        return table(("topic", "from, to", "QoS", "retain", "payload"), rows)

    return made


def subscriptions_table(document: Mapping[str, Any]) -> Callable[[str], str]:
    filters = [c["x-subscription"] for c in document["channels"].values() if "x-subscription" in c]

    def made(inside: str) -> str:
        words = written(inside)
        keys = map(_topic, filters)
        return table(("subscription", "of"), [(key, explained(words, key)) for key in keys])

    return made


def _topic(address: str) -> str:
    return f"`{address.replace('{namespace}', '{ns}')}`"


def outcomes_table(_inside: str) -> str:
    missing = [outcome for outcome in Outcome if not OUTCOME_HELP.get(outcome)]
    if missing:
        raise SpecificationError(f"outcomes without words in OUTCOME_HELP: {missing}")
    rows = [(f"`{outcome}`", OUTCOME_HELP[outcome]) for outcome in Outcome]
    return table(("outcome", "meaning"), rows)


def result_table(
    schemas: Mapping[str, Any], name: str, first: str, spelt: Mapping[str, str]
) -> Callable[[str], str]:
    """A table of the fields that a schema of asyncapi.yaml lists, in its order."""

    def made(inside: str) -> str:
        words = written(inside)
        fields = schemas[name]["properties"]
        rows = []
        for field in schemas[name]["required"]:
            key = f"`{field}`"
            rows.append((key, _type(schemas, fields[field], spelt), explained(words, key)))
        return table((first, "type", "meaning"), rows)

    return made


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


JSON = {name: name for name in ("string", "object", "null", "boolean", "array")}
JSON |= {"integer": "number", "number": "number"}
MSGPACK = {"integer": "int", "number": "float", "string": "str", "object": "map", "null": "nil"}
MSGPACK |= {"array": "array", "array of": ""}


def pauses_table(_inside: str) -> str:
    """The agent's own numbers."""
    waits = Timing()
    rows = [
        ("after a connect that failed, or a connection that was lost", waits.reconnect_seconds,
         waits.reconnect_longest_seconds),
        ("after a report was sent, while its tag is on no page", waits.resend_seconds,
         waits.resend_longest_seconds),
    ]  # fmt: skip
    head = ("pause", "first, seconds", "doubled each time, up to")
    unstable = (
        f"a connection that lasted less than {waits.stable_after_seconds:g} s and carried nothing"
    )
    said = [(what, f"{first:g}", f"{longest:g}") for what, first, longest in rows]
    return f"{table(head, said)}\n\nA pause is doubled after {unstable}, too.\n"


def readme_blocks(readme: str, document: Mapping[str, Any]) -> Blocks:
    schemas = document["components"]["schemas"]
    return {
        "limits": limits_table,
        "fields": fields_table,
        "topics": topics_table(document),
        "subscriptions": subscriptions_table(document),
        "outcomes": outcomes_table,
        "pauses": pauses_table,
        "protocol numbers": lambda _: table(
            ("number", "protocol"),
            [(str(number), name) for number, name in enumerate(PROTOCOL_NUMBERS)],
        ),
        "result": result_table(schemas, "result", "field", MSGPACK),
        "numbers": result_table(schemas, "numbers", "of numbers", MSGPACK),
        "result json": result_table(schemas, "resultJson", "key", JSON),
        **_examples(readme),
    }


# --- the command


DOCUMENTS = Path(__file__).parent.parent / "protocol_spec"
COMMAND = "./scripts/spec_tables.py"


def main(arguments: Sequence[str] | None = None, directory: Path = DOCUMENTS) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(arguments).check
    path, schemas = directory / "README.md", directory / "asyncapi.yaml"
    before = path.read_text(encoding="utf-8")
    document = yaml.load(schemas.read_text(encoding="utf-8"), yaml.CSafeLoader)
    try:
        after = renewed(before, readme_blocks(before, document))
    except SpecificationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not check:
        path.write_text(after, encoding="utf-8")
        return 0
    names = "README.md as it is", "README.md as the code says"
    lines = before.splitlines(), after.splitlines()
    different = list(difflib.unified_diff(*lines, *names, lineterm=""))
    if different:
        print(*different, sep="\n")
        print(
            f"error: the specification does not say what the code does; run {COMMAND}",
            file=sys.stderr,
        )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
