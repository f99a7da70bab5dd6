"""The messages of a campaign except manifest and results, as bytes and back.

Claim (R19, R20): a decoder turns any bytes into a message or a `Rejected`, never into an exception;
and what it accepts, it would have encoded to the same bytes.

    report     [v, digest8, round, attribute, body]
    signature  [v, digest8, signature]                     see `signed_bytes`
    state      [v, digest8, presence, last sealed round or nil]
    receipts   [v, digest8, round, page, tags]            tags: sorted, 4 bytes each
    request    [v, digest8, kind, nonce]                  kind 1: forget
    response   [v, digest8, kind, nonce, status, rounds]  rounds: how many were withdrawn

`digest8` is the first 8 bytes of the manifest's digest; v is 1. A report holds no time, host or
software version, and all reports of a campaign have bodies of one length, so that their size does
not show which question is answered.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

from protocol_spec.encoding import (
    DIGEST,
    WIRE_VERSION,
    ArrayMessage,
    Bad,
    decode,
    member,
    octets,
    pack,
    uint,
)
from protocol_spec.limits import (
    DIGEST_BYTES,
    MAX_ATTRIBUTES,
    MAX_BODY_BYTES,
    MAX_CONTROL_BYTES,
    MAX_RECEIPT_BYTES,
    MAX_RECEIPT_PAGES,
    MAX_REPORT_BYTES,
    MAX_ROUNDS,
    MAX_SIGNATURE_BYTES,
    NONCE_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
)
from protocol_spec.manifest import Manifest
from protocol_spec.outcomes import Outcome, Rejected


@dataclass(frozen=True, slots=True)
class Report:
    """One randomised answer of one device for one round."""

    digest8: bytes
    round: int
    attribute: int
    body: bytes

    def encode(self) -> bytes:
        return pack([WIRE_VERSION, self.digest8, self.round, self.attribute, self.body])


def digest8(manifest: Manifest) -> bytes:
    """The part of a manifest's digest that is in every message."""
    return manifest.digest[:DIGEST_BYTES]


def make_report(manifest: Manifest, round_number: int, attribute: int, answer: bytes) -> Report:
    """The report of an answer, with zeros behind it up to the campaign's one length."""
    body = answer.ljust(manifest.body_bytes, b"\0")
    return Report(digest8(manifest), round_number, attribute, body)


def decode_report(payload: bytes) -> Report | Rejected:
    """Read a report; `report_fault` says whether it fits a campaign."""
    return decode(payload, Report, _REPORT, limit=MAX_REPORT_BYTES, binary=MAX_BODY_BYTES)


_ROUND: Final = uint("round", MAX_ROUNDS)
_REPORT: Final = (DIGEST, _ROUND, uint("attribute", MAX_ATTRIBUTES), octets("body"))


def report_fault(report: Report, manifest: Manifest) -> Rejected | None:
    """Why a well-formed report does not belong to a campaign, clocks and history apart."""
    if report.digest8 != digest8(manifest):
        return Rejected(Outcome.WRONG_MANIFEST, "another digest than this campaign's")
    if report.attribute >= len(manifest.attributes):
        return Rejected(Outcome.BAD_ATTRIBUTE, f"attribute {report.attribute}")
    fault = _body_fault(report, manifest)
    if fault is not None:
        return Rejected(fault, f"attribute {report.attribute}")
    if report.round >= manifest.rounds.count:
        return Rejected(Outcome.EARLY, f"round {report.round} of {manifest.rounds.count}")
    fault = manifest.mechanisms[report.attribute].round_fault(report.body, report.round)
    return None if fault is None else Rejected(fault, f"round {report.round}")


def _body_fault(report: Report, manifest: Manifest) -> Outcome | None:
    index, body = report.attribute, report.body
    mechanism, answer = manifest.mechanisms[index], manifest.answer_lengths[index]
    if len(body) != manifest.body_bytes:
        return Outcome.BAD_LENGTH
    if len(body) == answer:
        return mechanism.fault(body)
    fault = mechanism.fault(body[:answer])
    if fault is None and any(body[answer:]):
        return Outcome.BAD_PADDING
    return fault


# --- receipts: a device finds its report's tag on its page when it was counted --------------------


NameHash = Callable[[bytes], bytes]
"""From a device's name, in ASCII, to a hash; what is the same for all devices is hashed before."""


def receipt_tag(manifest: Manifest, round_number: int, device: str) -> bytes:
    """What represents a device's report of a round on a receipt page."""
    return hashed_for_tag(manifest, round_number)(device.encode("ascii"))[:TAG_BYTES]


def receipt_page(manifest: Manifest, device: str) -> int:
    """The page on which a device finds its receipts, the same in every round."""
    hashed = hashed_for_page(manifest)(device.encode("ascii"))
    return int.from_bytes(hashed[:4]) % manifest.receipt_pages


def hashed_for_tag(manifest: Manifest, round_number: int) -> NameHash:
    """The hash that begins with the tag of a device's report."""
    return _hash_after(manifest.digest + round_number.to_bytes(4))


def hashed_for_page(manifest: Manifest) -> NameHash:
    """The hash whose first four bytes, modulo the number of pages, are a device's page."""
    return _hash_after(manifest.digest)


def _hash_after(prefix: bytes) -> NameHash:
    begun = hashlib.sha256(prefix)

    def hashed(device: bytes) -> bytes:
        copy = begun.copy()
        copy.update(device)
        return copy.digest()

    return hashed


class Tags(Set[bytes]):
    """The tags of a page, kept as the bytes that arrived: a device looks for one of thousands."""

    __slots__ = ("_sorted",)
    __hash__ = Set._hash

    def __init__(self, joined: bytes) -> None:
        self._sorted = joined

    @classmethod
    def _from_iterable(cls, tags: Iterable[bytes]) -> Tags:  # type: ignore[override]
        return cls(b"".join(sorted(set(tags))))

    def __len__(self) -> int:
        return len(self._sorted) // TAG_BYTES

    def __iter__(self) -> Iterator[bytes]:
        return (self._at(i) for i in range(len(self)))

    def __contains__(self, tag: object) -> bool:
        if not isinstance(tag, bytes):
            return False
        place = bisect_left(range(len(self)), tag, key=self._at)
        return place < len(self) and self._at(place) == tag

    def _at(self, i: int) -> bytes:
        return self._sorted[TAG_BYTES * i : TAG_BYTES * (i + 1)]


@dataclass(frozen=True, slots=True)
class ReceiptPage:
    """The tags of all reports of a round, on one page, that are durably counted."""

    digest8: bytes
    round: int
    page: int
    tags: Set[bytes]

    def encode(self) -> bytes:
        return pack_receipts(self.digest8, self.round, self.page, b"".join(sorted(self.tags)))


def pack_receipts(digest: bytes, round_number: int, page: int, sorted_tags: bytes) -> bytes:
    """A receipt page's bytes from tags already sorted, unique and joined: pages can be large."""
    return pack([WIRE_VERSION, digest, round_number, page, sorted_tags])


def decode_receipts(payload: bytes) -> ReceiptPage | Rejected:
    """Read a page of receipts."""
    limit = MAX_RECEIPT_BYTES
    return decode(payload, ReceiptPage, _RECEIPTS, limit=limit, binary=limit)


def _tags(joined: Any) -> Tags:
    if type(joined) is not bytes or len(joined) % TAG_BYTES:
        raise Bad("tags")
    if not all(low < high for low, high in pairwise(Tags(joined))):
        raise Bad("tags")
    return Tags(joined)


_RECEIPTS: Final = (DIGEST, _ROUND, uint("page", MAX_RECEIPT_PAGES), _tags)


# --- control messages -----------------------------------------------------------------------------


_SIGNED: Final = b"allomfree manifest signature, version 1\0"


def signed_bytes(digest: bytes) -> bytes:
    """What an operator signs: the manifest's whole digest, and what the signature is for.

    The words keep a signature from being taken for one of anything else made with the same key.
    """
    return _SIGNED + digest


@dataclass(frozen=True, slots=True)
class Signature(ArrayMessage):
    """An operator's Ed25519 signature (RFC 8032) of a manifest, over `signed_bytes`."""

    digest8: bytes
    signature: bytes


class Presence(IntEnum):
    """What the collector says about itself; OFFLINE is its last will."""

    OFFLINE = 0
    ONLINE = 1
    CLOSED = 2


@dataclass(frozen=True, slots=True)
class State(ArrayMessage):
    """The collector's presence in a campaign."""

    digest8: bytes
    presence: Presence
    last_sealed: int | None


class RequestKind(IntEnum):
    """What a device can ask of the collector."""

    FORGET = 1


class ResponseStatus(IntEnum):
    """How the collector answered. REFUSED means nothing changed."""

    DONE = 0
    REFUSED = 1


@dataclass(frozen=True, slots=True)
class Request(ArrayMessage):
    """A device's request; the nonce ties the answer to it."""

    digest8: bytes
    kind: RequestKind
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Response(ArrayMessage):
    """The collector's answer, with the number of rounds whose reports were withdrawn."""

    digest8: bytes
    kind: RequestKind
    nonce: bytes
    status: ResponseStatus
    rounds: int


_SEALED: Final = uint("last sealed round", MAX_ROUNDS)
_SIGNATURE: Final = (DIGEST, octets("signature", SIGNATURE_BYTES))
_STATE: Final = (
    DIGEST,
    member("presence", Presence),
    lambda number: None if number is None else _SEALED(number),
)
_REQUEST: Final = (DIGEST, member("kind", RequestKind), octets("nonce", NONCE_BYTES))
_RESPONSE: Final = (*_REQUEST, member("status", ResponseStatus), uint("rounds", MAX_ROUNDS + 1))


def decode_signature(payload: bytes) -> Signature | Rejected:
    """Read an operator's signature. Whether it is a valid one takes a library to check."""
    return decode(payload, Signature, _SIGNATURE, limit=MAX_SIGNATURE_BYTES, binary=SIGNATURE_BYTES)


def decode_state(payload: bytes) -> State | Rejected:
    """Read the collector's presence."""
    return decode(payload, State, _STATE, limit=MAX_CONTROL_BYTES)


def decode_request(payload: bytes) -> Request | Rejected:
    """Read a device's request."""
    return decode(payload, Request, _REQUEST, limit=MAX_CONTROL_BYTES)


def decode_response(payload: bytes) -> Response | Rejected:
    """Read the collector's answer."""
    return decode(payload, Response, _RESPONSE, limit=MAX_CONTROL_BYTES)
