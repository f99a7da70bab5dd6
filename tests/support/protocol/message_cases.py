"""Messages for the vectors: good ones field by field, bad ones with the outcome they must get."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.protocol import reference_wire as wire
from tests.support.protocol.manifest_cases import BY_NAME

DIGESTS = {name: wire.digest_of(wire.packed(found)) for name, found in BY_NAME.items()}
DIGEST = DIGESTS["fleet"]
NONCE = bytes(range(8))

Fields = dict[str, Any]
Good = tuple[str, Fields, bytes]
Bad = tuple[str, str, bytes, str]  # kind, why, bytes, outcome

# Manifest, round, attribute, body: the answer and what stands behind it.
REPORTS: tuple[tuple[str, int, int, bytes], ...] = (
    ("plain", 0, 0, b"\x02"),
    ("fleet", 0, 0, b"\x02\x00"),
    ("fleet", 127, 1, b"\xf0\x00"),
    ("fleet", 128, 2, b"\x01\x2b"),
    ("fleet", 256, 3, b"\xff\xc0"),
    ("fleet", 1458, 4, b"\x07\x00"),
    ("fleet", 1458, 5, b"\x00\x00"),
    ("fleet", 0, 6, b"\xf0\x00"),
    ("tour", 29, 0, b"\x02\x00"),
    ("tour", 0, 1, b"\x80\x80"),
    ("tour", 0, 2, b"\xe0\x00"),
    ("tour", 0, 3, b"\xc0\x00"),
    ("trend", 7, 0, b"\x80\x08"),
    ("trend", 7, 1, b"\x00\x00"),
    ("rare", 29, 0, b"\x08"),
    ("rare", 0, 1, b"\x20"),
    ("cells", 0, 0, b"\x00"),
    ("cells", 0, 1, b"\x01"),
    ("steps", 0, 0, b"\x01\x02\x00\x00\x00"),
    ("steps", 5, 1, b"\x04\xe0\x00\x00\x02"),
    ("steps", 5, 2, b"\x01\x00\x80\x00\x00"),
)

NUMBERS: Fields = {
    "mean": 11.5,
    "mean_low": 10.25,
    "mean_high": 12.75,
    "mean_bias": 1.0,
    "cdf": [0.5],
    "cdf_low": [0.25],
    "cdf_high": [0.75],
    "quantiles": [
        [0.1, None, None, 2.0],
        [0.25, 1.5, 0.0, 4.0],
        [0.5, 3.0, 2.0, 4.0],
        [0.75, 5.0, 2.0, None],
        [0.9, None, 4.0, None],
    ],
}
NO_MEAN: Fields = {
    **NUMBERS,
    **dict.fromkeys(("mean", "mean_low", "mean_high", "mean_bias")),
    "cdf": [0.25, 0.5],
    "cdf_low": [0.125, 0.25],
    "cdf_high": [0.5, 0.75],
}


SERIES = (
    "raw",
    "projected",
    "privacy_error",
    "sampling_error",
    "low",
    "high",
    "low_all",
    "high_all",
)
_EMPTY: Fields = {
    **{name: [] for name in ("counts", *SERIES)},
    "device_bound": 0.0,
    "difference": None,
}
_WITHHELD = {**_EMPTY, "numbers": None}
ROUND: Fields = {
    "digest": DIGEST,
    "attribute": "model",
    "reporting": "memoized",
    "round": 7,
    "first": 7,
    "last": 7,
    "rounds": 1,
    "protocol": "L-GRR",
    "n": 1000,
    "devices": 1000,
    "n_eff": 1000.0,
    "heard": 1100,
    "returned": 900,
    "uneven": 0.0,
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
    "difference": {"pair": 0.125, "tallest": 0.1875},
    "numbers": NUMBERS,
    "outcomes": {"accepted": 1000, "duplicate": 3, "late": 2},
}
_NOBODY: Fields = {"n": 0, "devices": 0, "n_eff": 0.0, "returned": 0}
_FEW: Fields = {"n": 3, "devices": 3, "n_eff": 3.0, "heard": 0, "returned": 0}
_NAMED = {**ROUND, "numbers": None}
_POOLED = {**ROUND, "round": None, "first": 2, "last": 13, "rounds": 12, "n": 11_000}
RESULTS: dict[str, Fields] = {
    "one round": ROUND,
    "named values": _NAMED,
    "pooled": {
        **_POOLED,
        "n_eff": 900.5,
        "uneven": 0.125,
        "device_bound": 0.006,
        "numbers": NO_MEAN,
    },
    "once": {**_NAMED, "reporting": "once", "protocol": "OUE"},
    "hashed": {**_NAMED, "reporting": "hashed", "protocol": "LOLOHA"},
    "nested": {**_NAMED, "reporting": "nested", "protocol": "GRR", "n_eff": 950.0},
    "few": {**ROUND, **_WITHHELD, **_FEW, "outcomes": {"accepted": 3}},
    "many devices, few that weigh": {**ROUND, **_WITHHELD, "n": 2000, "n_eff": 199.99},
    "nobody": {
        **ROUND,
        **_WITHHELD,
        "outcomes": {},
        **_NOBODY,
        "rounds": 0,
    },
    "from devices that were forgotten": {
        **_NAMED,
        "outcomes": {"accepted": 1000, "forgotten": 1, "suspended": 90_000},
    },
}


def good() -> Iterator[Good]:
    more = (
        ("fleet", 65_535, 127, b"\xff" * 512),
        ("fleet", 0, 0, b""),
        ("plain", 1, 127, b"\x20" + b"\xff" * 512),
    )
    for name, number, attribute, body in (*REPORTS, *more):
        fields: Fields = {"manifest": name, "round": number, "attribute": attribute, "body": body}
        yield "report", fields, wire.report(DIGESTS[name], number, attribute, body)
    for protocols, steps in ((b"\x00", 2), (b"\x03\x07", 4), (bytes(128), 9)):
        fields = {"protocols": protocols, "steps": bytes(16 * steps)}
        yield "thresholds", fields, wire.thresholds(DIGEST, protocols, bytes(16 * steps))
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
    for result in RESULTS.values():
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
        "2": b"\x02",
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
        "of 514 bytes": b"\xc5\x02\x02" + b"\x00" * 514,
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
    for why, items in _THRESHOLDS.items():
        yield "thresholds", why, wire.packed(items), "malformed"
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
    for why, change in _RESULT_CHANGES.items():
        yield "result", why, wire.packed({**_WRITTEN, **change}), "malformed"
    for why, change in _NUMBERS_CHANGES.items():
        fields = {**_WRITTEN, "numbers": {**NUMBERS, **change}}
        yield "result", f"numbers: {why}", wire.packed(fields), "malformed"
    for field in ("n", "numbers"):
        without = {name: value for name, value in _WRITTEN.items() if name != field}
        yield "result", f"{field} missing", wire.packed(without), "malformed"
    backwards = dict(reversed(_WRITTEN.items()))
    yield "result", "fields in another order", wire.packed(backwards), "malformed"
    for why, outcomes in (
        ("outcomes missing", {"accepted": 0}),
        ("outcomes in another order", dict.fromkeys(reversed(wire.OUTCOMES), 0)),
        ("outcomes unknown", dict.fromkeys((*wire.OUTCOMES, "lost"), 0)),
        ("outcomes negative", dict.fromkeys(wire.OUTCOMES, -1)),
    ):
        yield "result", why, wire.packed({**_WRITTEN, "outcomes": outcomes}), "malformed"


_WRITTEN: Fields = {"v": 1, **ROUND, "outcomes": dict.fromkeys(wire.OUTCOMES, 0)}
_D8 = bytes(8)
_THRESHOLDS: dict[str, list[Any]] = {
    "version 2": [2, _D8, b"\x00", bytes(16)],
    "three fields": [1, _D8, b"\x00"],
    "no protocol": [1, _D8, b"", bytes(16)],
    "129 protocols": [1, _D8, bytes(129), bytes(16)],
    "protocols as text": [1, _D8, "L-GRR", bytes(16)],
    "no steps": [1, _D8, b"\x00", b""],
    "half a step": [1, _D8, b"\x00", bytes(24)],
    "steps in an array": [1, _D8, b"\x00", [1, 2]],
    "digest8 of 7 bytes": [1, bytes(7), b"\x00", bytes(16)],
}
_RESULT_CHANGES: dict[str, Fields] = {
    "an unknown mechanism": {"reporting": "daily"},
    "a protocol of another mechanism": {"protocol": "GRR"},
    "no protocol": {"protocol": None},
    "first after the round": {"first": 8},
    "last before the round": {"last": 6},
    "first 65536": {"first": 65_536},
    "last nil": {"last": None},
    "pooled, last before first": {"round": None, "first": 8, "last": 7},
    "more rounds than there are": {"rounds": 2},
    "rounds 0 though there are reports": {"rounds": 0},
    "nobody, and a round": {**_NOBODY, **_WITHHELD},
    "no devices though there are reports": {"devices": 0, "returned": 0},
    "more returned than were heard": {"heard": 899},
    "more returned than reported": {"returned": 1001},
    "heard nil": {"heard": None},
    "uneven negative": {"uneven": -0.5},
    "uneven 1": {"uneven": 1.0},
    "uneven an integer": {"uneven": 0},
    "more devices than reports": {"devices": 1001},
    "n_eff an integer": {"n_eff": 1000},
    "n_eff nil": {"n_eff": None},
    "n_eff NaN": {"n_eff": float("nan")},
    "n_eff infinite": {"n_eff": float("inf")},
    "n_eff negative": {"n_eff": -1.0},
    "n_eff 0 though there are reports": {"n_eff": 0.0, **_WITHHELD},
    "a histogram of too few": {"n_eff": 199.5},
    "withheld though there are enough": _WITHHELD,
    "a difference of a withheld one": {
        "n_eff": 199.5,
        **_WITHHELD,
        "difference": {"pair": 0.5, "tallest": 0.5},
    },
    "numbers of a withheld one": {"n_eff": 199.5, **_WITHHELD, "numbers": NUMBERS},
    "no difference": {"difference": None},
    "a difference in an array": {"difference": [0.125, 0.1875]},
    "a difference in another order": {"difference": {"tallest": 0.1875, "pair": 0.125}},
    "an infinite difference": {"difference": {"pair": float("inf"), "tallest": 0.1875}},
    "half a difference": {"difference": {"pair": 0.125}},
    "device_bound 0": {"device_bound": 0.0},
    "counts of another length": {"counts": [1, 2]},
    "numbers an array": {"numbers": [0.5]},
    "numbers empty": {"numbers": {}},
    "version 2": {"v": 2},
    "version true": {"v": True},
    "digest of 31 bytes": {"digest": DIGEST[:31]},
    "digest as text": {"digest": "a" * 32},
    "attribute with a slash": {"attribute": "a/b"},
    "attribute empty": {"attribute": ""},
    "round 65536": {"round": 65_536},
    "round true": {"round": True},
    "protocol one-time": {"protocol": "GRR"},
    "n negative": {"n": -1},
    "n float": {"n": 1000.0},
    "n 2^63": {"n": 1 << 63},
    "confidence 0": {"confidence": 0.0},
    "confidence 1": {"confidence": 1.0},
    "confidence an integer": {"confidence": 1},
    "device_bound negative": {"device_bound": -0.005},
    "device_bound an integer": {"device_bound": 1},
    "device_bound nil": {"device_bound": None},
    "device_bound NaN": {"device_bound": float("nan")},
    "device_bound infinite": {"device_bound": float("inf")},
    "device_bound of a withheld one": {"n_eff": 199.5, **_WITHHELD, "device_bound": 0.005},
    "counts negative": {"counts": [-1, 0, 0]},
    "counts float": {"counts": [1.0, 0.0, 0.0]},
    "one value": {"counts": [1], **{name: [0.5] for name in SERIES}},
    "raw NaN": {"raw": [0.5, float("nan"), 0.5]},
    "raw infinite": {"raw": [0.5, float("inf"), 0.5]},
    "raw integers": {"raw": [0, 1, 0]},
    "raw nil": {"raw": None},
    "low shorter": {"low": [0.0, 0.0]},
    "unknown field": {"host": "pi"},
}
_ROWS = NUMBERS["quantiles"]
_NUMBERS_CHANGES: dict[str, Fields] = {
    "half a mean": {"mean_low": None},
    "a mean that is infinite": {"mean": float("inf")},
    "a mean that is an integer": {"mean": 11},
    "one share too many": {"cdf": [0.1, 0.2, 0.3]},
    "limits of another length": {"cdf_low": []},
    "shares NaN": {"cdf": [float("nan")]},
    "four quantiles": {"quantiles": _ROWS[:4]},
    "quantiles in another order": {"quantiles": _ROWS[::-1]},
    "a quantile of another share": {"quantiles": [[0.2, 1.0, 0.0, 2.0], *_ROWS[1:]]},
    "a quantile of three": {"quantiles": [[0.1, 1.0, 0.0], *_ROWS[1:]]},
    "an infinite end": {"quantiles": [[0.1, 1.0, float("-inf"), 2.0], *_ROWS[1:]]},
    "a quantile in a map": {"quantiles": [{"tau": 0.1}, *_ROWS[1:]]},
}


def unfit() -> Iterator[tuple[str, str, bytes, str]]:
    """Well-formed reports that a manifest does not allow: manifest, why, bytes, outcome."""
    for name, number, attribute, body in REPORTS:
        digest = DIGESTS[name]

        def made(
            body: bytes, digest: bytes = digest, place: tuple[int, int] = (number, attribute)
        ) -> bytes:
            return wire.report(digest, *place, body)

        yield name, f"attribute {attribute}, a byte more", made(body + b"\x00"), "bad_length"
        yield name, f"attribute {attribute}, a byte less", made(body[:-1]), "bad_length"
    for name, why, attribute, body, outcome in _FAULTS:
        yield name, why, wire.report(DIGESTS[name], 0, attribute, body), outcome
    yield (
        "plain",
        "the digest is looked at first",
        wire.report(bytes(8), 0, 9, b""),
        "wrong_manifest",
    )
    yield (
        "plain",
        "then the attribute",
        wire.report(DIGESTS["plain"], 99, 1, b""),
        "bad_attribute",
    )
    early = wire.report(DIGESTS["steps"], 1, 0, b"\x03\x01\x00\x00\x00")
    yield "steps", "level 3 in the second round", early, "bad_level"
    yield "plain", "then the round", wire.report(DIGESTS["plain"], 30, 0, b"\x02"), "early"


_FAULTS: tuple[tuple[str, str, int, bytes, str], ...] = (
    ("plain", "value beyond the last", 0, b"\x03", "bad_value"),
    ("fleet", "value beyond the last", 0, b"\x03\x00", "bad_value"),
    ("fleet", "value 300 of 300", 2, b"\x01\x2c", "bad_value"),
    ("fleet", "value 65535", 2, b"\xff\xff", "bad_value"),
    ("fleet", "value 8 of 8", 4, b"\x08\x00", "bad_value"),
    ("fleet", "a bit behind four values is set", 1, b"\x01\x00", "bad_padding"),
    ("fleet", "a bit behind ten values is set", 3, b"\x00\x20", "bad_padding"),
    ("tour", "a byte behind the answer is set", 0, b"\x00\x01", "bad_padding"),
    ("tour", "a bit behind the last value is set", 3, b"\xc0\x08", "bad_padding"),
    ("tour", "a set of three in place of two", 1, b"\xe0\x00", "bad_value"),
    ("tour", "a bit behind three values is set", 2, b"\x10\x00", "bad_padding"),
    ("tour", "bad value before bad padding", 0, b"\x03\x01", "bad_value"),
    ("trend", "value beyond the last", 1, b"\x03\x00", "bad_value"),
    ("trend", "no value in a set", 0, b"\x00\x00", "bad_value"),
    ("trend", "a set too small before bad padding", 0, b"\x80\x01", "bad_value"),
    ("cells", "cell 2", 0, b"\x02", "bad_value"),
    ("cells", "cell 255", 1, b"\xff", "bad_value"),
    ("steps", "level 0", 0, b"\x00\x01\x00\x00\x00", "bad_value"),
    ("steps", "level 5 of 4", 1, b"\x05\x00\x00\x00\x00", "bad_value"),
    ("steps", "level 255", 2, b"\xff\x00\x00\x00\x00", "bad_value"),
    ("steps", "value beyond the last", 0, b"\x01\x03\x00\x00\x00", "bad_value"),
    ("steps", "a bit behind the last value is set", 1, b"\x01\xff\xe0\x00\x01", "bad_padding"),
    ("steps", "the set of another level", 1, b"\x01\xf0\x00\x00\x00", "bad_value"),
    ("steps", "a byte behind the answer is set", 2, b"\x01\x00\x80\x00\x01", "bad_padding"),
)
