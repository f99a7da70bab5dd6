"""Messages for the vectors: good ones field by field, bad ones with the outcome they must get."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.protocol import reference_wire as wire
from tests.support.protocol.manifest_cases import FLEET_DOCUMENT

FLEET = wire.packed(FLEET_DOCUMENT)
DIGEST = wire.digest_of(FLEET)
NONCE = bytes(range(8))

Fields = dict[str, Any]
Good = tuple[str, Fields, bytes]
Bad = tuple[str, str, bytes, str]  # kind, why, bytes, outcome

RESULT: Fields = {
    "digest": DIGEST,
    "attribute": "model",
    "round": 7,
    "rounds": 1,
    "protocol": "L-GRR",
    "n": 1000,
    "devices": 1000,
    "min_reports": 200,
    "confidence": 0.95,
    "device_bound": 0.005,
    "counts": [500, 300, 200],
    "raw": [0.75, 0.3, -0.05],
    "projected": [0.725, 0.275, 0.0],
    "privacy_error": [0.0625, 0.0625, 0.0625],
    "sampling_error": [0.015, 0.0145, 0.0],
    "low": [0.5, 0.125, 0.0],
    "high": [0.875, 0.4375, 0.1],
    "low_all": [0.4375, 0.0625, 0.0],
    "high_all": [0.9375, 0.5, 0.125],
    "outcomes": {"accepted": 1000, "duplicate": 3, "late": 2},
}
SERIES = tuple(RESULT)[11:19]  # raw to high_all: one number for each value
WITHHELD: Fields = {
    **RESULT,
    **{name: [] for name in ("counts", *SERIES)},
    "n": 3,
    "devices": 3,
    "device_bound": 0.0,
    "outcomes": {"accepted": 3},
}
POOLED: Fields = {**RESULT, "round": None, "rounds": 12, "n": 11_000, "device_bound": 0.006}


def good() -> Iterator[Good]:
    for number, attribute, body in (
        (0, 0, b"\x02"),
        (127, 1, b"\xf0"),
        (128, 2, b"\x01\x2b"),
        (256, 3, b"\xff\xc0"),
        (1458, 5, b"\x00"),
        (65_535, 6, b"\xe0"),
        (65_535, 127, b"\xff" * 512),
        (0, 0, b""),
    ):
        fields: Fields = {"round": number, "attribute": attribute, "body": body}
        yield "report", fields, wire.report(DIGEST, number, attribute, body)
    for secret in (bytes(32), bytes(range(32))):
        signed = Ed25519PrivateKey.from_private_bytes(secret).sign(
            b"allomfree manifest signature, version 1\0" + DIGEST
        )
        yield "signature", {"signature": signed}, wire.signature(DIGEST, signed)
    for presence, sealed in ((0, None), (1, 0), (2, 65_535)):
        fields = {"presence": presence, "last_sealed": sealed}
        yield "state", fields, wire.state(DIGEST, presence, sealed)
    for count in (0, 1, 3, 300):
        tags = [wire.tag_of(DIGEST, 5, f"device-{i}") for i in range(count)]
        fields = {"round": 5, "page": 511, "tags": sorted(tags)}
        yield "receipts", fields, wire.receipts(DIGEST, 5, 511, tags)
    yield "request", {"kind": 1, "nonce": NONCE}, wire.request(DIGEST, 1, NONCE)
    for status, rounds in ((0, 65_536), (1, 0)):
        fields = {"kind": 1, "nonce": NONCE, "status": status, "rounds": rounds}
        yield "response", fields, wire.response(DIGEST, 1, NONCE, status, rounds)
    for result in (RESULT, WITHHELD, POOLED):
        yield "result", result, wire.result(result)


_PIECES = {
    "head": b"\x95",
    "version": b"\x01",
    "digest": b"\xc4\x08" + DIGEST[:8],
    "round": b"\x05",
    "attribute": b"\x00",
    "body": b"\xc4\x01\x02",
    "tail": b"",
}


def _report(**pieces: bytes) -> bytes:
    """A good report with some of its pieces replaced."""
    return b"".join({**_PIECES, **pieces}.values())


NAN = b"\xcb" + struct.pack(">d", float("nan"))
FOUR_GB = {
    "array": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "bin": b"\xc6\xff\xff\xff\xff",
    "str": b"\xdb\xff\xff\xff\xff",
    "ext": b"\xc9\xff\xff\xff\xff\x01",
}
_WRONG_PIECES: dict[str, dict[str, bytes]] = {
    "version": {
        "0": b"\x00",
        "3": b"\x03",
        "negative": b"\xff",
        "true": b"\xc3",
        "float": b"\xcb" + struct.pack(">d", 1.0),
        "not in its shortest form": b"\xcc\x01",
        "text": b"\xa11",
    },
    "digest": {
        "of 7 bytes": b"\xc4\x07" + DIGEST[:7],
        "of 9 bytes": b"\xc4\x09" + DIGEST[:9],
        "of 0 bytes": b"\xc4\x00",
        "as text": b"\xa8abcdefgh",
        "with a 16-bit length": b"\xc5\x00\x08" + DIGEST[:8],
        "an array": b"\x98" + b"\x00" * 8,
        "an extension": b"\xd7\x01" + DIGEST[:8],
        "nil": b"\xc0",
        "of 4 GB": FOUR_GB["bin"],
    },
    "round": {
        "float": b"\xcb" + struct.pack(">d", 5.0),
        "NaN": NAN,
        "nil": b"\xc0",
        "true": b"\xc3",
        "negative": b"\xff",
        "65536": b"\xce\x00\x01\x00\x00",
        "2^63": b"\xcf" + struct.pack(">Q", 1 << 63),
        "2^64 - 1": b"\xcf" + b"\xff" * 8,
        "-2^63": b"\xd3\x80" + b"\x00" * 7,
        "uint8 of 5": b"\xcc\x05",
        "uint16 of 5": b"\xcd\x00\x05",
        "uint32 of 5": b"\xce\x00\x00\x00\x05",
        "uint64 of 5": b"\xcf\x00\x00\x00\x00\x00\x00\x00\x05",
        "int8 of 5": b"\xd0\x05",
        "a time stamp": b"\xd6\xff\x00\x00\x00\x05",
        "an array": b"\x91\x05",
        "a map": b"\x81\xa0\x05",
    },
    "attribute": {
        "128": b"\xcc\x80",
        "negative": b"\xff",
        "float": b"\xca\x00\x00\x00\x00",
        "false": b"\xc2",
        "nil": b"\xc0",
    },
    "body": {
        "as text": b"\xa1\x02",
        "an integer": b"\x02",
        "an array": b"\x91\x02",
        "nil": b"\xc0",
        "of 513 bytes": b"\xc5\x02\x01" + b"\x00" * 513,
        "shorter than its length": b"\xc4\x05\x02",
        "invalid UTF-8": b"\xa2\xff\xfe",
        "an empty extension": b"\xc7\x00\x05",
    },
    "tail": {"one byte": b"\x00", "another report": _report()},
    "head": {
        "an array of 4": b"\x94",
        "an array of 6": b"\x96",
        "a 16-bit array length": b"\xdc\x00\x05",
        "a 32-bit array length": b"\xdd\x00\x00\x00\x05",
        "an array inside an array": b"\x91\x95",
        "a map": b"\x85",
    },
}
_WHOLE = {
    "empty": b"",
    "nil": b"\xc0",
    "an integer": b"\x01",
    "NaN": NAN,
    "the reserved byte": b"\xc1",
    "an empty array": b"\x90",
    "an empty map": b"\x80",
    "500 arrays in one another": b"\x91" * 500,
    "JSON": b'{"round": 5}',
    **{f"4 GB of {name}": header for name, header in FOUR_GB.items()},
}


_LIMITS = {"state": 64, "request": 64, "response": 64, "signature": 78}


def bad() -> Iterator[Bad]:
    for why, payload in _WHOLE.items():
        for kind in ("report", "state", "receipts", "request", "response", "result", "signature"):
            limit = _LIMITS.get(kind, 512)
            outcome = "oversize" if len(payload) > limit else "malformed"
            yield kind, why, payload, outcome
    for piece, wrong in _WRONG_PIECES.items():
        for why, replacement in wrong.items():
            payload = _report(**{piece: replacement})
            yield "report", f"{piece}: {why}", payload, "malformed"
    for length in range(1, len(_report())):
        yield "report", f"cut after {length} bytes", _report()[:length], "malformed"
    too_long = wire.report(DIGEST, 65_535, 0, b"\x00" * 515)
    yield "report", "longer than any report", too_long, "oversize"
    yield "report", "long and no msgpack", b"\xc1" * 534, "oversize"
    yield from _bad_control()
    yield from _bad_result()


def _bad_control() -> Iterator[Bad]:
    d, tag, other = DIGEST[:8], b"\x00\x00\x00\x01", b"\x00\x00\x00\x02"
    wrong: dict[str, dict[str, list[Any]]] = {
        "state": {
            "presence 3": [1, d, 3, None],
            "presence true": [1, d, True, None],
            "presence nil": [1, d, None, None],
            "round 65536": [1, d, 1, 65_536],
            "round -1": [1, d, 1, -1],
            "version 2": [2, d, 1, None],
            "five fields": [1, d, 1, None, 0],
        },
        "signature": {
            "of 63 bytes": [1, d, bytes(63)],
            "as text": [1, d, "a" * 32],
            "nil": [1, d, None],
            "version 2": [2, d, bytes(64)],
            "two fields": [1, d],
        },
        "receipts": {
            "half a tag": [1, d, 0, 0, tag + b"\x00"],
            "tags not sorted": [1, d, 0, 0, other + tag],
            "a tag twice": [1, d, 0, 0, tag + tag],
            "tags in an array": [1, d, 0, 0, [tag]],
            "page 65536": [1, d, 0, 65_536, tag],
            "page -1": [1, d, 0, -1, tag],
            "round 65536": [1, d, 65_536, 0, tag],
        },
        "request": {
            "kind 0": [1, d, 0, NONCE],
            "kind 2": [1, d, 2, NONCE],
            "kind true": [1, d, True, NONCE],
            "nonce of 7 bytes": [1, d, 1, NONCE[:7]],
            "nonce an integer": [1, d, 1, 7],
        },
        "response": {
            "status 2": [1, d, 1, NONCE, 2, 0],
            "status false": [1, d, 1, NONCE, False, 0],
            "rounds 65537": [1, d, 1, NONCE, 0, 65_537],
            "rounds -1": [1, d, 1, NONCE, 0, -1],
            "rounds nil": [1, d, 1, NONCE, 0, None],
        },
    }
    for kind, cases in wrong.items():
        for why, items in cases.items():
            yield kind, why, wire.packed(items), "malformed"


def _bad_result() -> Iterator[Bad]:
    changes: dict[str, Fields] = {
        "fields of version 1 as version 2": {"v": 2},
        "version 3": {"v": 3},
        "version true": {"v": True},
        "digest of 31 bytes": {"digest": DIGEST[:31]},
        "digest as text": {"digest": "a" * 32},
        "attribute with a slash": {"attribute": "a/b"},
        "attribute empty": {"attribute": ""},
        "round 65536": {"round": 65_536},
        "round true": {"round": True},
        "rounds 0": {"rounds": 0},
        "rounds 2 of one round": {"rounds": 2},
        "a histogram of too few": {"devices": 199},
        "withheld though there are enough": {
            "device_bound": 0.0,
            **{name: [] for name in ("counts", *SERIES)},
        },
        "protocol one-time": {"protocol": "GRR"},
        "n negative": {"n": -1},
        "n float": {"n": 1000.0},
        "n 2^63": {"n": 1 << 63},
        "more devices than reports": {"devices": 1001},
        "confidence 0": {"confidence": 0.0},
        "confidence 1": {"confidence": 1.0},
        "confidence an integer": {"confidence": 1},
        "device_bound 0": {"device_bound": 0.0},
        "device_bound negative": {"device_bound": -0.005},
        "device_bound an integer": {"device_bound": 1},
        "device_bound nil": {"device_bound": None},
        "device_bound NaN": {"device_bound": float("nan")},
        "device_bound infinite": {"device_bound": float("inf")},
        "device_bound of a withheld one": {**WITHHELD, "device_bound": 0.005},
        "counts negative": {"counts": [-1, 0, 0]},
        "counts float": {"counts": [1.0, 0.0, 0.0]},
        "counts of another length": {"counts": [1, 2]},
        "one value": {"counts": [1], **{name: [0.5] for name in SERIES}},
        "raw NaN": {"raw": [0.5, float("nan"), 0.5]},
        "raw infinite": {"raw": [0.5, float("inf"), 0.5]},
        "raw integers": {"raw": [0, 1, 0]},
        "raw nil": {"raw": None},
        "low shorter": {"low": [0.0, 0.0]},
        "unknown field": {"host": "pi"},
    }
    for why, change in changes.items():
        counters = {"outcomes": dict.fromkeys(wire.OUTCOMES, 0)}
        fields = {"v": 1, **RESULT, **change, **counters}
        yield "result", why, wire.packed(fields), "malformed"
    fields = {"v": 1, **RESULT, "outcomes": dict.fromkeys(wire.OUTCOMES, 0)}
    without = {name: value for name, value in fields.items() if name != "n"}
    yield "result", "a field missing", wire.packed(without), "malformed"
    backwards = dict(reversed(fields.items()))
    yield "result", "fields in another order", wire.packed(backwards), "malformed"
    for why, outcomes in (
        ("outcomes missing", {"accepted": 0}),
        ("outcomes in another order", dict.fromkeys(reversed(wire.OUTCOMES), 0)),
        ("outcomes unknown", dict.fromkeys((*wire.OUTCOMES, "lost"), 0)),
        ("outcomes negative", dict.fromkeys(wire.OUTCOMES, -1)),
    ):
        yield "result", why, wire.packed({**fields, "outcomes": outcomes}), "malformed"


def unfit() -> Iterator[tuple[str, bytes, str]]:
    """Well-formed reports that the fleet's manifest does not allow: why, bytes, outcome."""
    other = bytes(8)
    yield "another digest", wire.report(other, 0, 0, b"\x02"), "wrong_manifest"
    yield "the digest is looked at first", wire.report(other, 0, 9, b""), "wrong_manifest"
    yield "attribute 7 of 7", wire.report(DIGEST, 0, 7, b"\x02"), "bad_attribute"
    yield "attribute 127", wire.report(DIGEST, 0, 127, b"\x02"), "bad_attribute"
    yield "round 1459 of 1459", wire.report(DIGEST, 1459, 0, b"\x02"), "early"
    yield "the last round of all", wire.report(DIGEST, 65_535, 0, b"\x02"), "early"
    for attribute, size in enumerate((1, 1, 2, 2, 1, 1, 1)):
        for length in sorted({0, size - 1, size + 1, 512}):
            payload = wire.report(DIGEST, 0, attribute, bytes(length))
            yield f"attribute {attribute}, {length} bytes", payload, "bad_length"
    for attribute, body in ((1, b"\x01"), (1, b"\xf8"), (3, b"\x00\x20"), (6, b"\x10")):
        payload = wire.report(DIGEST, 0, attribute, body)
        yield f"attribute {attribute}, padding set", payload, "bad_padding"
    for attribute, body in (
        (0, b"\x03"),
        (0, b"\xff"),
        (2, b"\x01\x2c"),
        (2, b"\xff\xff"),
        (4, b"\x08"),
    ):
        payload = wire.report(DIGEST, 0, attribute, body)
        yield f"attribute {attribute}, value beyond the last", payload, "bad_value"
