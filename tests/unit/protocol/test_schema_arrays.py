"""The schemas of arrays take what the decoders take, and refuse what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol_spec import (
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
    decode_receipts,
    decode_report,
    decode_request,
    decode_response,
    decode_signature,
    decode_state,
    decode_thresholds,
    encoding,
    limits,
)
from tests.support.protocol.asyncapi import SCHEMAS, fits
from tests.support.protocol.oddities import ODDITIES

D8 = bytes(range(8))
NONCE = bytes(range(8))
TAGS = frozenset({b"\0\0\0\1", b"\0\0\0\2", b"\xff\xff\xff\xff"})
ARRAYS: dict[str, tuple[Any, Callable[[bytes], Any]]] = {
    "report": (Report(D8, 3, 1, b"\x40"), decode_report),
    "signature": (Signature(D8, bytes(64)), decode_signature),
    "thresholds": (PublishedThresholds(D8, b"\x00", bytes(32)), decode_thresholds),
    "state": (State(D8, Presence.ONLINE, None), decode_state),
    "receipt": (ReceiptPage(D8, 3, 5, TAGS), decode_receipts),
    "request": (Request(D8, RequestKind.FORGET, NONCE), decode_request),
    "response": (
        Response(D8, RequestKind.FORGET, NONCE, ResponseStatus.REFUSED, 0),
        decode_response,
    ),
}


def _unpacked(payload: bytes) -> list[Any]:
    items = encoding.unpack(payload, array=4096, text=64, binary=1 << 20, maps=32)
    return list(items)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_real_message_fits_its_schema(name: str) -> None:
    message, decode = ARRAYS[name]
    assert fits(_unpacked(message.encode()), SCHEMAS[name])
    assert decode(message.encode()) == message


@pytest.mark.parametrize("name", ARRAYS)
def test_schema_and_decoder_take_the_same_arrays(name: str) -> None:
    message, decode = ARRAYS[name]
    good = _unpacked(message.encode())
    others = [good[:-1], [*good, 0], [], None, 1, {}, {"a": 1}, b"", "", good[0]]
    for place in range(len(good)):
        others += [[*good[:place], odd, *good[place + 1 :]] for odd in ODDITIES]
    taken = 0
    for other in others:
        accepted = not isinstance(decode(encoding.pack(other)), Rejected)
        assert fits(other, SCHEMAS[name]) == accepted, other
        taken += accepted
    assert 0 < taken < len(others)


def test_the_largest_page_of_receipts_just_fits() -> None:
    longest = SCHEMAS["tags"]["maxLength"]

    def size(tags: int) -> int:
        return len(encoding.pack([1, D8, 65_535, 65_535, bytes(tags)]))

    assert size(longest) <= limits.MAX_RECEIPT_BYTES < size(longest + limits.TAG_BYTES)
