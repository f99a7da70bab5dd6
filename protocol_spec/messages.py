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
version of software, and all reports of a campaign have bodies of one length, so that their size
does not show which question is answered.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

from protocol_spec.encoding import WIRE_VERSION, Bad, binary, decode, member, pack, uint
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
    """The part of a manifest's digest that stands in every message."""
    return manifest.digest[:DIGEST_BYTES]


def make_report(manifest: Manifest, round_number: int, attribute: int, answer: bytes) -> Report:
    """The report of an answer, with zeros behind it up to the campaign's one length."""
    body = answer.ljust(manifest.body_bytes, b"\0")
    return Report(digest8(manifest), round_number, attribute, body)


def decode_report(payload: bytes) -> Report | Rejected:
    """Read a report. Whether it fits a campaign is `report_fault`'s to say."""
    return decode(payload, 5, _report, limit=MAX_REPORT_BYTES, binary=MAX_BODY_BYTES)


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
    return None


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


def _report(items: tuple[Any, ...]) -> Report:
    _, digest, number, attribute, body = items
    return Report(
        binary(digest, "digest", DIGEST_BYTES),
        uint(number, "round", MAX_ROUNDS),
        uint(attribute, "attribute", MAX_ATTRIBUTES),
        binary(body, "body"),
    )


# --- receipts: a device finds its report's tag on its page when it was counted --------------------


NameHash = Callable[[bytes], bytes]
"""From a device's name, in ASCII, to a hash; what is the same for all devices is done before."""


def receipt_tag(manifest: Manifest, round_number: int, device: str) -> bytes:
    """What stands for a device's report of a round on a receipt page."""
    return hashed_for_tag(manifest, round_number)(device.encode("ascii"))[:TAG_BYTES]


def receipt_page(manifest: Manifest, device: str) -> int:
    """The page on which a device finds its receipts, the same in every round."""
    hashed = hashed_for_page(manifest)(device.encode("ascii"))
    return int.from_bytes(hashed[:4]) % manifest.receipt_pages


def hashed_for_tag(manifest: Manifest, round_number: int) -> NameHash:
    """The hash that begins with the tag of a device's report."""
    return _hashed_behind(manifest.digest + round_number.to_bytes(4))


def hashed_for_page(manifest: Manifest) -> NameHash:
    """The hash whose first four bytes, modulo the number of pages, are a device's page."""
    return _hashed_behind(manifest.digest)


def _hashed_behind(front: bytes) -> NameHash:
    begun = hashlib.sha256(front)

    def hashed(device: bytes) -> bytes:
        ours = begun.copy()
        ours.update(device)
        return ours.digest()

    return hashed


class Tags(Set[bytes]):
    """The tags of a page, kept as the bytes that came: a device looks for one of thousands."""

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


# --- control messages -----------------------------------------------------------------------------


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
        return pack([WIRE_VERSION, self.digest8, int(self.presence), self.last_sealed])


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
