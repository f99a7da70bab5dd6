"""Manifests as bytes that must be refused, one fault each, and the field that the refusal names.

A device never sees TOML, so the faults of `manifest_cases` are here once more as a collector, a
broker or an attacker would send them. Where the bytes decode to a sound manifest and are only not
the canonical ones, the field is `manifest`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tests.support.protocol.manifest_cases import BY_NAME, DAY, INF, PLAIN, changed
from tests.support.protocol.reference_wire import packed

Path = tuple[str | int, ...]
Fault = tuple[Path, Any, str]

NAN = float("nan")
WHOLE = "manifest"
_DOOR = PLAIN["attributes"][0]

_BAD_TEXTS = (
    *("", " Open", "Open ", "Open\ndoors", "Open\tdoors", "Open\x00doors", "Open\x7fdoors"),
    *("Open\x85doors", "Open\u2028doors", "Open \u202esrood", "Open \u2066doors", 7, None, b"Open"),
)
_TOO_LONG = {"title": 100, "purpose": 1000, "owner": 100, "contact": 200}
_BAD_NUMBERS: tuple[tuple[Path, tuple[Any, ...]], ...] = (
    (("format",), (0, 2, True, "1", None, 1.5)),
    (("created",), (-1, 253402300800, "2027-01-01", None)),
    (("expires",), (-1, 253402300800, 1.5)),
    (("retention",), (-1, 3162240001, None)),
    (("eps_inf",), (0.0, -1.0, NAN, INF, 1e308, 20.5, 9e-10, "1", True, None)),
    (("eps_1",), (0.0, -0.5, NAN, 9e-10, "0.5", None)),
    (("min_reports",), (0, 1.5, 10**12 + 1, None)),
    (("max_values",), (0, 4, 4097, 1.5)),
    (("receipt_pages",), (0, 65537, None)),
    (("rounds", "first"), (-1, 253402300800, None)),
    (("rounds", "period"), (0, 31622401, 1.5)),
    (("rounds", "count"), (0, 65537, True, None)),
    (("rounds", "grace"), (-1, 31622401, None)),
)
_BAD_NAMES: tuple[tuple[Path, tuple[Any, ...]], ...] = (
    (("slug",), ("Open Doors", "-doors", "doors-", "d" * 33, "", "doors\n", 7, None)),
    (("attributes", 0, "name"), ("", "1door", "door/+", "Door", "d" * 33, "door\n", None)),
    (("attributes", 0, "calibration"), ("fast", None)),
    (("attributes", 0, "protocol"), ("L-XYZ", "SUE", "", None)),
)
_BAD_VALUES: tuple[Any, ...] = (
    *(["open"], ["open", "open"], ["open", 1], ["open", ""], ["open", " closed"], "open", None, []),
    *(["open", "a" * 101], ["open", "a\nb"]),
)
_BAD_EDGES: tuple[Any, ...] = (
    *([0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, 1.0], [0.0, NAN, 1.0], [0.0, INF, INF]),
    *([-INF, -INF, 1.0], [INF, 1.0, 2.0], [0.0, "1", 2.0], [0.0, True, 2.0], "0, 1, 2", None),
)


def refused() -> Iterator[tuple[str, str, bytes]]:
    """(what is wrong, the field to be named, the bytes)."""
    for path, value, field in (*_of_texts(), *_of_others(), *_together(), *_absent()):
        shown = "absent" if value is ... else _short(value)
        yield f"plain: {_dotted(path)} {shown}", field, _bytes("plain", path, value)
    yield from ((f"plain: {why}", WHOLE, payload) for why, payload in _forms("plain"))
    yield from ((why, WHOLE, payload) for why, payload in _NO_MANIFEST)
    for name, path, value in _OF_WAYS:
        yield f"{name}: {_dotted(path)} {_short(value)}", _dotted(path), _bytes(name, path, value)


def _bytes(name: str, path: Path, value: Any) -> bytes:
    return packed(changed(BY_NAME[name], path, value))


def _dotted(path: Path) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def _short(value: Any) -> str:
    return repr(value)[:40]


def _of_texts() -> Iterator[Fault]:
    for text in _BAD_TEXTS:
        yield ("title",), text, "title"
    for name, longest in _TOO_LONG.items():
        yield (name,), "d" * (longest + 1), name
    for question in ("", "d" * 301, "Is it\u2029open?", None):
        yield ("attributes", 0, "question"), question, "attributes[0].question"


def _of_others() -> Iterator[Fault]:
    for path, values in (*_BAD_NUMBERS, *_BAD_NAMES):
        yield from ((path, value, _dotted(path)) for value in values)
    for listed in _BAD_VALUES:
        yield ("attributes", 0, "values"), listed, "attributes[0].values"
    for path in (("rounds",), ("attributes",), ("attributes", 0)):
        yield path, 7, "attributes" if path[0] == "attributes" else "rounds"
    yield ("attributes",), [], "attributes"
    yield ("attributes",), [{**_DOOR, "name": f"d{i}"} for i in range(129)], "attributes"
    yield ("epsinf",), 1.0, "epsinf"
    yield ("rounds", "periode"), DAY, "rounds.periode"
    yield ("attributes", 0, "unit"), "m", "attributes[0].unit"
    yield ("eps_inf",), 1, WHOLE  # in place of 1.0


def _together() -> Iterator[Fault]:
    first = PLAIN["rounds"]["first"]
    yield ("created",), first + 1, "created"
    yield ("expires",), PLAIN["expires"] - 1, "expires"
    for eps_1 in (1.0, 1.5):
        yield ("eps_1",), eps_1, "eps_1"
    yield ("rounds", "first"), 253402300799, "rounds.count"


def _absent() -> Iterator[Fault]:
    """Every field of the wire is present; a reader may name the field, or the whole."""
    required = ("slug", "title", "purpose", "owner", "contact", "eps_inf", "eps_1")
    for field in required:
        yield (field,), ..., field
    for field in ("created", "expires", "retention", "min_reports", "max_values", "receipt_pages"):
        yield (field,), ..., WHOLE
    for field in ("first", "period", "count"):
        yield ("rounds", field), ..., f"rounds.{field}"
    yield ("rounds", "grace"), ..., WHOLE
    for field in ("name", "question", "values"):
        yield ("attributes", 0, field), ..., f"attributes[0].{field}"
    for field in ("protocol", "calibration"):
        yield ("attributes", 0, field), ..., WHOLE
    yield ("format",), ..., "format"


def _forms(name: str) -> Iterator[tuple[str, bytes]]:
    """The same values in other bytes, and bytes that hold no such values."""
    sound = packed(BY_NAME[name])
    eps = b"\xa7eps_inf\xcb" + struct.pack(">d", 1.0)
    slug = b"\xa4slug\xa5doors"
    assert sound.count(eps) == sound.count(slug) == 1
    yield "a byte behind it", sound + b"\x00"
    yield "the last byte missing", sound[:-1]
    yield "a float32", sound.replace(eps, b"\xa7eps_inf\xca" + struct.pack(">f", 1.0))
    yield "a longer form of a text", sound.replace(slug, b"\xa4slug\xd9\x05doors")
    yield "a key twice", _one_more(sound).replace(slug, slug + slug)


_NO_MANIFEST = (
    ("no bytes", b""),
    ("nil", b"\xc0"),
    ("an array", b"\x90"),
    ("an extension", b"\xd4\x01\x00"),
    ("an array that is not there", b"\xdd\xff\xff\xff\xff"),
    ("a map that is not there", b"\xdf\xff\xff\xff\xff"),
    ("a text that is no UTF-8", b"\x81\xa1\xff\x01"),
    ("no byte of msgpack", b"\xc1"),
)


def _one_more(sound: bytes) -> bytes:
    """The same bytes with a header of a map of one field more."""
    if sound[0] == 0xDE:
        return sound[:2] + bytes([sound[2] + 1]) + sound[3:]
    return bytes([sound[0] + 1]) + sound[1:] if sound[0] < 0x8F else b"\xde\x00\x10" + sound[1:]


_OF_WAYS: tuple[tuple[str, Path, Any], ...] = (
    *(("fleet", ("attributes", 1, "edges"), edges) for edges in _BAD_EDGES),
    ("fleet", ("attributes", 1, "unit"), "d" * 17),
    ("fleet", ("attributes", 1, "name"), "model"),
    ("fleet", ("attributes", 1, "protocol"), "OUE"),
    ("plain", ("reporting",), None),
    ("plain", ("choose_for",), "ever"),
    ("plain", ("devices",), -1),
    ("plain", ("devices",), 10**12 + 1),
    ("plain", ("operator",), bytes(31)),
    ("plain", ("rounds", "each"), 1),
    ("plain", ("rounds", "drain"), 0),
    ("plain", ("rounds", "drain"), 86401),
    ("plain", ("title",), "Open\u200bdoors"),
    ("plain", ("owner",), "Facilities\U000e0041"),
    ("plain", ("attributes", 0, "question"), "Is the \u200fdoor open?"),
    ("plain", ("attributes", 0, "values"), ["open", "o\u2060pen", "closed"]),
    ("plain", ("attributes", 0, "protocol"), "GRR"),
    ("tour", ("attributes", 2, "low"), 0.0),
    ("tour", ("attributes", 2, "high"), 40.0),
    ("tour", ("attributes", 2, "high"), NAN),
    ("tour", ("attributes", 3, "edges"), [-1.0, *(float(i) for i in range(4096))]),
    ("trend", ("rounds", "each"), 0),
    ("trend", ("rounds", "each"), 31),
    ("trend", ("eps_1",), 1.4),
    ("trend", ("max_values",), 2),
    ("trend", ("choose_for",), "pooled"),
    ("trend", ("attributes", 1, "protocol"), "L-GRR"),
    ("trend", ("attributes", 1, "calibration"), "paper"),
    ("trend", ("attributes", 1, "levels"), [1.5, 3.0]),
    ("cells", ("eps_1",), 2.0),
    ("cells", ("max_values",), 2),
    ("cells", ("choose_for",), "pooled"),
    ("cells", ("attributes", 0, "protocol"), "L-GRR"),
    ("steps", ("eps_1",), 2.0),
    ("steps", ("max_values",), 2),
    ("steps", ("attributes", 1, "levels"), [0.6, 1.0, 1.0, 2.0]),
    ("steps", ("attributes", 1, "levels"), [0.5, 1.0, 2.0]),
    ("steps", ("attributes", 1, "levels"), [2.0]),
    ("steps", ("attributes", 2, "protocol"), "SUE"),
    ("steps", ("attributes", 2, "calibration"), "paper"),
)
