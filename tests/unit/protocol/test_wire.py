"""R19, R20: any bytes are a message or a named reason, and every message has one form."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol_spec import (
    Outcome,
    Presence,
    PublishedThresholds,
    ReceiptPage,
    Rejected,
    Report,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Signature,
    State,
    receipt_page,
    receipt_tag,
)
from protocol_spec.limits import (
    MAX_CONTROL_BYTES,
    MAX_RECEIPT_BYTES,
    MAX_REPORT_BYTES,
    MAX_SIGNATURE_BYTES,
    MAX_THRESHOLDS_BYTES,
)
from tests.support.protocol import message_cases, vectors
from tests.support.protocol.decoders import DECODERS, fleet

KINDS = sorted(DECODERS)
kinds = pytest.mark.parametrize("kind", KINDS)
DIGEST = st.binary(min_size=8, max_size=8)
ROUND = st.integers(0, 65_535)
TAG = st.binary(min_size=4, max_size=4)
MESSAGES: dict[str, st.SearchStrategy[Any]] = {
    "report": st.builds(Report, DIGEST, ROUND, st.integers(0, 127), st.binary(max_size=513)),
    "signature": st.builds(Signature, DIGEST, st.binary(min_size=64, max_size=64)),
    "thresholds": st.builds(
        PublishedThresholds,
        DIGEST,
        st.binary(min_size=1, max_size=128),
        st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=9).map(b"".join),
    ),
    "state": st.builds(State, DIGEST, st.sampled_from(Presence), st.none() | ROUND),
    "receipts": st.builds(
        ReceiptPage, DIGEST, ROUND, st.integers(0, 65_535), st.frozensets(TAG, max_size=70)
    ),
    "request": st.builds(Request, DIGEST, st.sampled_from(RequestKind), DIGEST),
    "response": st.builds(
        Response,
        DIGEST,
        st.sampled_from(RequestKind),
        DIGEST,
        st.sampled_from(ResponseStatus),
        st.integers(0, 65_536),
    ),
}
EXAMPLES = tuple(message_cases.good())
GOOD = {kind: [payload for k, _, payload in EXAMPLES if k == kind] for kind in KINDS}
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.binary(max_size=20)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def check(kind: str, payload: bytes) -> None:
    """Decoded to something that encodes to the same bytes, or rejected; never an exception."""
    decoded = DECODERS[kind](payload)
    if isinstance(decoded, Rejected):
        assert decoded.outcome in (Outcome.MALFORMED, Outcome.OVERSIZE), kind
        assert decoded.detail, kind
    else:
        assert decoded.encode() == payload, kind


@settings(max_examples=200)
@given(st.binary(max_size=600))
@example(b"")
def test_any_bytes(payload: bytes) -> None:
    """Of each kind: making up the bytes takes more time than reading them eight times."""
    for kind in KINDS:
        check(kind, payload)


@settings(max_examples=60)
@given(PLAIN)
def test_any_plain_value(value: Any) -> None:
    for kind in KINDS:
        check(kind, msgpack.packb(value))


BYTE = st.integers(0, 255)
OPERATION = st.sampled_from(("replace", "insert", "delete", "repeat"))
CHANGES = st.integers(1, 3)


@st.composite
def changed(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    payload = bytearray(draw(messages))
    for _ in range(draw(CHANGES)):
        place = draw(st.integers(0, len(payload) - 1))
        operation = draw(OPERATION)
        mutate(payload, place, operation, draw(BYTE))
    return bytes(payload)


CHANGED = {kind: changed(st.sampled_from(GOOD[kind])) for kind in KINDS}


@kinds
@settings(max_examples=150)
@given(st.data())
def test_a_good_message_with_some_bytes_changed(kind: str, data: st.DataObject) -> None:
    check(kind, data.draw(CHANGED[kind]))


def mutate(payload: bytearray, place: int, operation: str, byte: int) -> None:
    if operation == "replace":
        payload[place] = byte
    elif operation == "insert":
        payload.insert(place, byte)
    elif operation == "repeat":
        payload[place:place] = payload[place : place + byte]
    elif len(payload) > 1:
        del payload[place]


@kinds
def test_every_cut_and_every_extension_of_a_good_message(kind: str) -> None:
    for payload in GOOD[kind]:
        step = 1 + len(payload) // 300
        for length in range(0, len(payload), step):
            assert isinstance(DECODERS[kind](payload[:length]), Rejected)
        for tail in (b"\x00", b"\xc0", payload):
            assert isinstance(DECODERS[kind](payload + tail), Rejected)


@kinds
def test_every_single_byte_changed(kind: str) -> None:
    payload = min(GOOD[kind], key=len)
    for place in range(min(len(payload), 50)):
        for byte in range(256):
            check(kind, payload[:place] + bytes([byte]) + payload[place + 1 :])


@pytest.mark.parametrize("kind", sorted(MESSAGES))
@given(st.data())
def test_what_is_encoded_is_decoded_to_the_same(kind: str, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    assert DECODERS[kind](message.encode()) == message


def test_a_byte_array_is_as_good_as_bytes() -> None:
    for kind in KINDS:
        payload = GOOD[kind][0]
        assert DECODERS[kind](bytearray(payload)) == DECODERS[kind](payload)  # type: ignore[arg-type]


LIMITS = {
    "report": MAX_REPORT_BYTES,
    "signature": MAX_SIGNATURE_BYTES,
    "thresholds": MAX_THRESHOLDS_BYTES,
    "state": MAX_CONTROL_BYTES,
    "receipts": MAX_RECEIPT_BYTES,
    "request": MAX_CONTROL_BYTES,
    "response": MAX_CONTROL_BYTES,
    "result": 1 << 20,
}


@kinds
def test_length_is_looked_at_before_anything_else(kind: str) -> None:
    for filling in (b"\x00", b"\xc1", b"\x91"):
        at_limit = DECODERS[kind](filling * LIMITS[kind])
        above = DECODERS[kind](filling * (LIMITS[kind] + 1))
        assert (at_limit.outcome, above.outcome) == (Outcome.MALFORMED, Outcome.OVERSIZE)


def test_the_largest_report_and_page_fit() -> None:
    report = Report(b"\xff" * 8, 65_535, 127, b"\xff" * 513)
    assert len(report.encode()) <= MAX_REPORT_BYTES
    assert DECODERS["report"](report.encode()) == report
    # 65 536 devices on one page of a fleet of any size would still be taken.
    tags = frozenset(i.to_bytes(4) for i in range(65_536))
    page = ReceiptPage(b"\xff" * 8, 0, 0, tags)
    assert DECODERS["receipts"](page.encode()) == page


def hostile() -> Iterator[bytes]:
    """Small payloads that claim, or nest, as much as msgpack allows."""
    for header in message_cases.FOUR_GB.values():
        yield header
        yield b"\x95\x01" + header
        yield b"\x95\x01\xc4\x08" + bytes(8) + header
        yield header * 100
    for nest in (b"\x91", b"\x81\xa0", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"):
        yield (nest * 600)[:MAX_REPORT_BYTES]
    yield b"\xdc\x02\x00" + b"\x90" * 512


@kinds
def test_hostile_headers_cost_no_memory(kind: str) -> None:
    """R19: less than 1 MB beyond what was there."""
    payloads = list(hostile())
    assert all(isinstance(DECODERS[kind](payload), Rejected) for payload in payloads)
    tracemalloc.start()
    try:
        for payload in payloads:
            DECODERS[kind](payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("kind", ["report", "state", "request", "response"])
def test_a_payload_of_any_size_costs_no_memory(kind: str) -> None:
    payload = b"\x91" * 5_000_000
    tracemalloc.start()
    try:
        DECODERS[kind](payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_tags_and_pages_are_as_published() -> None:
    manifest = fleet()
    entries = {entry["name"]: entry for entry in vectors.load("manifests.json")["good"]}
    for entry in entries["fleet"]["receipts"]:
        device, number = entry["device"], entry["round"]
        assert receipt_tag(manifest, number, device).hex() == entry["tag"]
        assert receipt_page(manifest, device) == entry["page"]


def test_a_page_lists_its_tags_in_order() -> None:
    tags = frozenset({b"\xff\xff\xff\xff", b"\x00\x00\x00\x01", b"\x80\x00\x00\x00"})
    payload = ReceiptPage(bytes(8), 0, 0, tags).encode()
    assert payload.endswith(b"\x00\x00\x00\x01\x80\x00\x00\x00\xff\xff\xff\xff")


def test_a_report_is_no_larger_than_it_must_be() -> None:
    """L-GRR at most 20 bytes, L-UE at most 20 and a bit for each value."""
    assert len(Report(bytes(8), 65_535, 127, bytes(2)).encode()) <= 20
    assert len(Report(bytes(8), 65_535, 127, bytes(512)).encode()) <= 20 + 512
