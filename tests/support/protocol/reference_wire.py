"""The wire once more, byte by byte: a msgpack writer, hashes and topics. No `protocol_spec`."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

OUTCOMES = (
    "accepted",
    "duplicate",
    "conflict",
    "malformed",
    "oversize",
    "unknown_campaign",
    "wrong_manifest",
    "early",
    "late",
    "bad_attribute",
    "attribute_changed",
    "bad_length",
    "bad_padding",
    "bad_value",
    "bad_level",
    "too_many",
    "topic_mismatch",
    "retained",
    "revoked",
    "forgotten",
    "suspended",
)


def packed(value: Any) -> bytes:
    """Canonical msgpack of plain values."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int | float):
        return _integer(value) if isinstance(value, int) else b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return _header(len(value), {1: 0xC4, 2: 0xC5, 4: 0xC6}) + value
    if isinstance(value, str):
        text = value.encode()
        return _header(len(text), {1: 0xD9, 2: 0xDA, 4: 0xDB}, short=(0xA0, 32)) + text
    if isinstance(value, Mapping):
        head = _header(len(value), {2: 0xDE, 4: 0xDF}, short=(0x80, 16))
        return head + b"".join(packed(key) + packed(item) for key, item in value.items())
    head = _header(len(value), {2: 0xDC, 4: 0xDD}, short=(0x90, 16))
    return head + b"".join(packed(item) for item in value)


def _header(length: int, codes: Mapping[int, int], short: tuple[int, int] = (0, 0)) -> bytes:
    """The shortest type byte and length: inside one byte below `short`, else 1, 2 or 4 more."""
    if length < short[1]:
        return bytes([short[0] + length])
    size = next(size for size in codes if length < 1 << 8 * size)
    return bytes([codes[size]]) + length.to_bytes(size)


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return value.to_bytes(1, signed=True)
    size = next(s for s in (1, 2, 4, 8) if -(value < 0) << 8 * s - 1 <= value < 1 << 8 * s)
    code = (0xCC if value > 0 else 0xD0) + size.bit_length() - 1
    return bytes([code]) + value.to_bytes(size, signed=value < 0)


def report(digest: bytes, number: int, attribute: int, body: bytes) -> bytes:
    return packed([1, digest[:8], number, attribute, body])


def signature(digest: bytes, signed: bytes) -> bytes:
    return packed([1, digest[:8], signed])


def thresholds(digest: bytes, protocols: bytes, steps: bytes) -> bytes:
    return packed([1, digest[:8], protocols, steps])


def state(digest: bytes, presence: int, last_sealed: int | None) -> bytes:
    return packed([1, digest[:8], presence, last_sealed])


def receipts(digest: bytes, number: int, page: int, tags: Sequence[bytes]) -> bytes:
    return packed([1, digest[:8], number, page, b"".join(sorted(tags))])


def request(digest: bytes, kind: int, nonce: bytes) -> bytes:
    return packed([1, digest[:8], kind, nonce])


def response(digest: bytes, kind: int, nonce: bytes, status: int, rounds: int) -> bytes:
    return packed([1, digest[:8], kind, nonce, status, rounds])


def result(fields: Mapping[str, Any]) -> bytes:
    """`fields` in their order; every outcome is written, those not given as 0."""
    counters = {name: fields["outcomes"].get(name, 0) for name in OUTCOMES}
    return packed({"v": 1, **fields, "outcomes": counters})


def digest_of(manifest: bytes) -> bytes:
    return hashlib.sha256(manifest).digest()


def campaign_of(slug: str, manifest: bytes) -> str:
    return f"{slug}-{digest_of(manifest).hex()[:8]}"


def tag_of(digest: bytes, number: int, device: str) -> bytes:
    return hashlib.sha256(digest + struct.pack(">I", number) + device.encode()).digest()[:4]


def page_of(digest: bytes, device: str, pages: int) -> int:
    (head,) = struct.unpack(">I", hashlib.sha256(digest + device.encode()).digest()[:4])
    return int(head % pages)


def body_bytes(protocol: str, k: int) -> int:
    """Bytes of every report's body: an index below k for GRR, else k bits."""
    bits = (k - 1).bit_length() if protocol.endswith("GRR") else k
    return (bits + 7) // 8


def answer_bytes(reporting: str, protocol: str, k: int) -> int:
    """Bytes of every answer: with a level before it for nested reports, one for a cell."""
    if reporting == "hashed":
        return 1
    return body_bytes(protocol, k) + (reporting == "nested")
