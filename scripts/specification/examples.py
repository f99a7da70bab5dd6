"""The messages that README.md shows byte by byte, and what follows from its example campaign."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from protocol_spec import (
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
    make_report,
    published_thresholds,
    receipt_page,
    receipt_tag,
    thresholds,
)
from protocol_spec.encoding import pack, unpack
from protocol_spec.manifest import unpack_manifest
from protocol_spec.programs import signing
from specification.blocks import Blocks, SpecificationError, table

DEVICE = "k7f3-0b2q"
ROUND = 3
NONCE = bytes(range(8))
SECRET = bytes(range(32))  # of the operator in the example
WIDTH = 22  # bytes on a line
TITLES = {"thresholds": " message"}  # the table of thresholds has the shorter title

Part = tuple[bytes, str]


def example_manifest(readme: str) -> Manifest:
    [text] = re.findall(r"^```toml\n(.*?)^```$", readme, re.M | re.S)
    return Manifest.from_toml(text)


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
    """The bytes in hex, a part to a line, with a remark beside each."""
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


def _fields(document: dict[str, Any], count: str = "") -> list[Part]:
    """Key and value of each field on a line; the first has the map's header before it."""
    header = _header(document)
    parts = [part for name, value in document.items() for part in _field(name, value)]
    first, remark = parts[0]
    return [(header + first, f"map of {len(document)}, {remark}{count}"), *parts[1:]]


def _header(collection: dict[str, Any] | tuple[Any, ...]) -> bytes:
    inside = collection.items() if isinstance(collection, dict) else collection
    packed = sum(
        len(pack(item))
        if not isinstance(collection, dict)
        else len(pack(item[0])) + len(pack(item[1]))
        for item in inside
    )
    whole = pack(collection)
    return whole[: len(whole) - packed]


def _field(name: str, value: Any) -> list[Part]:
    key = pack(name)
    if name == "attributes" and isinstance(value, tuple):
        head = (key + _header(value), f"attributes, array of {len(value)}")
        return [head, *(part for each in value for part in _fields(each))]
    if name in ("rounds", "outcomes") and isinstance(value, dict):
        head = (key + _header(value), f"{name}, map of {len(value)}")
        return [head, *((pack(k) + pack(v), k) for k, v in value.items())]
    if name == "edges":
        return _edges(key, value)
    return [(key + pack(value), name)]


def _edges(key: bytes, edges: tuple[float, ...]) -> list[Part]:
    """The first beside its key, then two to a line."""
    said = [f"{edge:g}" for edge in edges]
    parts = [(key + _header(edges) + pack(edges[0]), f"edges: {said[0]}")]
    for i in range(1, len(edges), 2):
        two = slice(i, i + 2)
        parts.append((b"".join(map(pack, edges[two])), ", ".join(said[two])))
    return parts


def remarks(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """What stands beside each item of an array."""
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
        "thresholds": (*named, "protocols: L-GRR, L-OSUE", "p1, q1, p2, q2 of each"),
        "state": (
            *named,
            "presence: online",
            f"last sealed round: {messages['state'].last_sealed}",
        ),
        "receipt": (*named, f"round {receipt.round}", f"page {receipt.page}", "two tags"),
        "request": request,
        "response": (*request, "status: done", "one round"),
    }


def blocks(readme: str) -> Blocks:
    """A block for each example, and the tables that follow from the example campaign."""
    manifest = example_manifest(readme)
    messages = example_messages(manifest)
    said = remarks(manifest)

    def array(name: str) -> Callable[[str], str]:
        message = messages[name].encode()
        return lambda _: shown(name, message, array_parts(message, said[name]))

    def whole_manifest(_: str) -> str:
        payload = manifest.to_bytes()
        return shown("manifest", payload, _fields(unpack_manifest(payload)))

    def result(_: str) -> str:
        payload = messages["result"].encode()
        document = unpack(payload, array=8, text=64, binary=64, maps=32)
        return shown("result", payload, _fields(document))

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
        (attribute.name, noise.protocol, *map(str, thresholds(noise)))
        for attribute, noise in zip(manifest.attributes, manifest.calibrations, strict=True)
    ]
    return table(("attribute", "protocol", "p1", "q1", "p2", "q2"), rows)
