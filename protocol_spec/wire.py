"""Every message but the manifest, as bytes and back.

Claim (R19, R20): a decoder turns any bytes into a message or a `Rejected`, never into an exception;
and what it accepts, it would have encoded to the same bytes.

    report     [v, digest8, round, attribute, body]       v: 2 in campaigns of format 2, else 1
    state      [v, digest8, presence, last sealed round or nil]
    receipts   [v, digest8, round, page, tags]            tags: sorted, 4 bytes each
    request    [v, digest8, kind, nonce]                  kind 1: forget
    response   [v, digest8, kind, nonce, status, rounds]  rounds: how many were withdrawn
    result     a map, see `protocol_spec.result`

`digest8` is the first 8 bytes of the manifest's digest. A report holds no time, host or version of
software. In campaigns of format 2 all reports have bodies of one length, so that their size does
not tell which question is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

from protocol_spec.canonical import Undecodable, pack, unpack
from protocol_spec.limits import (
    DIGEST_BYTES,
    MAX_ATTRIBUTES,
    MAX_BODY_BYTES,
    MAX_CONTROL_BYTES,
    MAX_RECEIPT_BYTES,
    MAX_RECEIPT_PAGES,
    MAX_REPORT_BYTES,
    MAX_ROUNDS,
    MAX_VALUES,
    NONCE_BYTES,
    TAG_BYTES,
)
from protocol_spec.manifest import Manifest
from protocol_spec.outcomes import Outcome, Rejected
from protocol_spec.receipts import Tags

__all__ = [
    "MAX_BODY",
    "REPORT_VERSIONS",
    "WIRE_VERSION",
    "Presence",
    "ReceiptPage",
    "Report",
    "Request",
    "RequestKind",
    "Response",
    "ResponseStatus",
    "State",
    "decode_receipts",
    "decode_report",
    "decode_request",
    "decode_response",
    "decode_state",
    "digest8",
    "make_report",
    "pack_receipts",
    "report_fault",
]

WIRE_VERSION: Final = 1
REPORT_VERSIONS: Final = (1, 2)  # a report has the version of its campaign's format

MAX_BODY: Final = {1: MAX_VALUES // 8, 2: MAX_BODY_BYTES}  # in bytes


@dataclass(frozen=True, slots=True)
class Report:
    """One randomised answer of one device for one round."""

    digest8: bytes
    round: int
    attribute: int
    body: bytes
    version: int = 1

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack([self.version, self.digest8, self.round, self.attribute, self.body])


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


def digest8(manifest: Manifest) -> bytes:
    """The part of a manifest's digest that stands in every message."""
    return manifest.digest[:DIGEST_BYTES]


def make_report(manifest: Manifest, round_number: int, attribute: int, answer: bytes) -> Report:
    """The report of an answer, with zeros behind it where the campaign has one length for all."""
    body = answer.ljust(manifest.body_lengths[attribute], b"\0")
    return Report(digest8(manifest), round_number, attribute, body, manifest.format)


def decode_report(payload: bytes) -> Report | Rejected:
    """Read a report. Whether it fits a campaign is `report_fault`'s to say."""
    versions, limit = REPORT_VERSIONS, MAX_REPORT_BYTES
    return _decode(payload, 5, _report, limit=limit, binary=MAX_BODY_BYTES, versions=versions)


def report_fault(report: Report, manifest: Manifest) -> Rejected | None:
    """Why a well-formed report does not belong to a campaign, clocks and history apart."""
    if report.version != manifest.format:
        return Rejected(
            Outcome.MALFORMED, f"bad version for a campaign of format {manifest.format}"
        )
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
    way, body = manifest.ways[report.attribute], report.body
    if len(body) != manifest.body_lengths[report.attribute]:
        return Outcome.BAD_LENGTH
    fault = way.fault(body[: way.answer_bytes])
    if fault is None and any(body[way.answer_bytes :]):
        return Outcome.BAD_PADDING
    return fault


def decode_state(payload: bytes) -> State | Rejected:
    """Read the collector's presence."""
    return _decode(payload, 4, _state, limit=MAX_CONTROL_BYTES, binary=DIGEST_BYTES)


def decode_receipts(payload: bytes) -> ReceiptPage | Rejected:
    """Read a page of receipts."""
    return _decode(payload, 5, _receipts, limit=MAX_RECEIPT_BYTES, binary=MAX_RECEIPT_BYTES)


def decode_request(payload: bytes) -> Request | Rejected:
    """Read a device's request."""
    return _decode(payload, 4, _request, limit=MAX_CONTROL_BYTES, binary=DIGEST_BYTES)


def decode_response(payload: bytes) -> Response | Rejected:
    """Read the collector's answer."""
    return _decode(payload, 6, _response, limit=MAX_CONTROL_BYTES, binary=DIGEST_BYTES)


class _Encodable(Protocol):
    def encode(self) -> bytes: ...


Message = TypeVar("Message", bound=_Encodable)
Member = TypeVar("Member", bound=IntEnum)


class _Bad(Exception):
    """A field is of the wrong type or out of range; the argument names it."""


def _decode(
    payload: bytes,
    fields: int,
    build: Callable[[Any], Message],
    *,
    limit: int,
    binary: int,
    versions: tuple[int, ...] = (WIRE_VERSION,),
) -> Message | Rejected:
    if len(payload) > limit:
        return Rejected(Outcome.OVERSIZE, f"more than {limit} bytes")
    try:
        items = unpack(payload, array=fields, binary=binary)
        if type(items) is not tuple or len(items) != fields:
            raise _Bad(f"shape: not an array of {fields}")
        if type(items[0]) is not int or items[0] not in versions:
            raise _Bad("version")
        message = build(items)
    except Undecodable:
        return Rejected(Outcome.MALFORMED, "not msgpack within the limits")
    except _Bad as bad:
        return Rejected(Outcome.MALFORMED, f"bad {bad}")
    if message.encode() != payload:
        return Rejected(Outcome.MALFORMED, "not the canonical encoding")
    return message


def _report(items: tuple[Any, ...]) -> Report:
    version, digest, number, attribute, body = items
    if len(_binary(body, "body")) > MAX_BODY[version]:
        raise _Bad("body")
    return Report(
        _binary(digest, "digest", DIGEST_BYTES),
        _uint(number, "round", MAX_ROUNDS),
        _uint(attribute, "attribute", MAX_ATTRIBUTES),
        body,
        version,
    )


def _state(items: tuple[Any, ...]) -> State:
    _, digest, presence, sealed = items
    return State(
        _binary(digest, "digest", DIGEST_BYTES),
        _member(Presence, presence, "presence"),
        None if sealed is None else _uint(sealed, "last sealed round", MAX_ROUNDS),
    )


def _receipts(items: tuple[Any, ...]) -> ReceiptPage:
    _, digest, number, page, tags = items
    joined = _binary(tags, "tags")
    if len(joined) % TAG_BYTES or not all(low < high for low, high in pairwise(Tags(joined))):
        raise _Bad("tags")
    return ReceiptPage(
        _binary(digest, "digest", DIGEST_BYTES),
        _uint(number, "round", MAX_ROUNDS),
        _uint(page, "page", MAX_RECEIPT_PAGES),
        Tags(joined),
    )


def _request(items: tuple[Any, ...]) -> Request:
    _, digest, kind, nonce = items
    return Request(
        _binary(digest, "digest", DIGEST_BYTES),
        _member(RequestKind, kind, "kind"),
        _binary(nonce, "nonce", NONCE_BYTES),
    )


def _response(items: tuple[Any, ...]) -> Response:
    _, digest, kind, nonce, status, rounds = items
    return Response(
        _binary(digest, "digest", DIGEST_BYTES),
        _member(RequestKind, kind, "kind"),
        _binary(nonce, "nonce", NONCE_BYTES),
        _member(ResponseStatus, status, "status"),
        _uint(rounds, "rounds", MAX_ROUNDS + 1),
    )


def _uint(value: Any, field: str, bound: int) -> int:
    if type(value) is not int or not 0 <= value < bound:
        raise _Bad(field)
    return value


def _binary(value: Any, field: str, length: int | None = None) -> bytes:
    if type(value) is not bytes or (length is not None and len(value) != length):
        raise _Bad(field)
    return value


def _member(kind: type[Member], value: Any, field: str) -> Member:
    if type(value) is not int or value not in kind._value2member_map_:
        raise _Bad(field)
    return kind(value)
