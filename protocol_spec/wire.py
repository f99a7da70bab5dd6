"""What a campaign's parties tell each other beside reports and results, as bytes and back.

Claim (R19, R20): a decoder turns any bytes into a message or a `Rejected`, never into an exception;
and what it accepts, it would have encoded to the same bytes.

    report     see `protocol_spec.report`
    signature  [v, digest8, signature]                     see `signed_bytes`
    state      [v, digest8, presence, last sealed round or nil]
    receipts   [v, digest8, round, page, tags]            tags: sorted, 4 bytes each
    request    [v, digest8, kind, nonce]                  kind 1: forget
    response   [v, digest8, kind, nonce, status, rounds]  rounds: how many were withdrawn
    result     a map, see `protocol_spec.result`

`digest8` is the first 8 bytes of the manifest's digest; v is 1.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

from protocol_spec.canonical import pack
from protocol_spec.decoding import WIRE_VERSION, Bad, binary, decode, member, uint
from protocol_spec.limits import (
    DIGEST_BYTES,
    MAX_CONTROL_BYTES,
    MAX_RECEIPT_BYTES,
    MAX_RECEIPT_PAGES,
    MAX_ROUNDS,
    MAX_SIGNATURE_BYTES,
    NONCE_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
)
from protocol_spec.outcomes import Rejected
from protocol_spec.receipts import Tags

__all__ = [
    "Presence",
    "ReceiptPage",
    "Request",
    "RequestKind",
    "Response",
    "ResponseStatus",
    "Signature",
    "State",
    "decode_receipts",
    "decode_request",
    "decode_response",
    "decode_signature",
    "decode_state",
    "pack_receipts",
    "signed_bytes",
]

_SIGNED: Final = b"allomfree manifest signature, version 1\0"


def signed_bytes(digest: bytes) -> bytes:
    """What an operator signs: the manifest's whole digest, and what the signature is for.

    The words keep a signature from being taken for one of anything else made with the same key.
    """
    return _SIGNED + digest


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator's Ed25519 signature (RFC 8032) of a manifest, over `signed_bytes`."""

    digest8: bytes
    signature: bytes

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack([WIRE_VERSION, self.digest8, self.signature])


class Presence(IntEnum):
    """What the collector says about itself; OFFLINE is its last will."""

    OFFLINE = 0
    ONLINE = 1
    CLOSED = 2


@dataclass(frozen=True, slots=True)
class State:
    """The collector's presence in a campaign."""

    digest8: bytes
    presence: Presence
    last_sealed: int | None

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack([WIRE_VERSION, self.digest8, int(self.presence), self.last_sealed])


@dataclass(frozen=True, slots=True)
class ReceiptPage:
    """The tags of all reports of a round, on one page, that are durably counted."""

    digest8: bytes
    round: int
    page: int
    tags: Set[bytes]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack_receipts(self.digest8, self.round, self.page, b"".join(sorted(self.tags)))


def pack_receipts(digest: bytes, round_number: int, page: int, sorted_tags: bytes) -> bytes:
    """A receipt page's bytes from tags already sorted, unique and joined: pages can be large."""
    return pack([WIRE_VERSION, digest, round_number, page, sorted_tags])


class RequestKind(IntEnum):
    """What a device can ask of the collector."""

    FORGET = 1


class ResponseStatus(IntEnum):
    """How the collector answered. REFUSED means nothing changed."""

    DONE = 0
    REFUSED = 1


@dataclass(frozen=True, slots=True)
class Request:
    """A device's wish; the nonce ties the answer to it."""

    digest8: bytes
    kind: RequestKind
    nonce: bytes

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack([WIRE_VERSION, self.digest8, int(self.kind), self.nonce])


@dataclass(frozen=True, slots=True)
class Response:
    """The collector's answer, with the number of rounds whose reports were withdrawn."""

    digest8: bytes
    kind: RequestKind
    nonce: bytes
    status: ResponseStatus
    rounds: int

    def encode(self) -> bytes:
        """Canonical bytes."""
        head = [WIRE_VERSION, self.digest8, int(self.kind), self.nonce]
        return pack([*head, int(self.status), self.rounds])


def decode_signature(payload: bytes) -> Signature | Rejected:
    """Read an operator's signature; whether it is a good one takes a library to tell."""
    return decode(payload, 3, _signature, limit=MAX_SIGNATURE_BYTES, binary=SIGNATURE_BYTES)


def decode_state(payload: bytes) -> State | Rejected:
    """Read the collector's presence."""
    return decode(payload, 4, _state, limit=MAX_CONTROL_BYTES, binary=DIGEST_BYTES)


def decode_receipts(payload: bytes) -> ReceiptPage | Rejected:
    """Read a page of receipts."""
    return decode(payload, 5, _receipts, limit=MAX_RECEIPT_BYTES, binary=MAX_RECEIPT_BYTES)


def decode_request(payload: bytes) -> Request | Rejected:
    """Read a device's request."""
    return decode(payload, 4, _request, limit=MAX_CONTROL_BYTES, binary=DIGEST_BYTES)


def decode_response(payload: bytes) -> Response | Rejected:
    """Read the collector's answer."""
    return decode(payload, 6, _response, limit=MAX_CONTROL_BYTES, binary=DIGEST_BYTES)


def _signature(items: tuple[Any, ...]) -> Signature:
    _, digest, signature = items
    return Signature(
        binary(digest, "digest", DIGEST_BYTES), binary(signature, "signature", SIGNATURE_BYTES)
    )


def _state(items: tuple[Any, ...]) -> State:
    _, digest, presence, sealed = items
    return State(
        binary(digest, "digest", DIGEST_BYTES),
        member(Presence, presence, "presence"),
        None if sealed is None else uint(sealed, "last sealed round", MAX_ROUNDS),
    )


def _receipts(items: tuple[Any, ...]) -> ReceiptPage:
    _, digest, number, page, tags = items
    joined = binary(tags, "tags")
    if len(joined) % TAG_BYTES or not all(low < high for low, high in pairwise(Tags(joined))):
        raise Bad("tags")
    return ReceiptPage(
        binary(digest, "digest", DIGEST_BYTES),
        uint(number, "round", MAX_ROUNDS),
        uint(page, "page", MAX_RECEIPT_PAGES),
        Tags(joined),
    )


def _request(items: tuple[Any, ...]) -> Request:
    _, digest, kind, nonce = items
    return Request(
        binary(digest, "digest", DIGEST_BYTES),
        member(RequestKind, kind, "kind"),
        binary(nonce, "nonce", NONCE_BYTES),
    )


def _response(items: tuple[Any, ...]) -> Response:
    _, digest, kind, nonce, status, rounds = items
    return Response(
        binary(digest, "digest", DIGEST_BYTES),
        member(RequestKind, kind, "kind"),
        binary(nonce, "nonce", NONCE_BYTES),
        member(ResponseStatus, status, "status"),
        uint(rounds, "rounds", MAX_ROUNDS + 1),
    )
