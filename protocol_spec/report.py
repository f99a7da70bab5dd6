"""The one message that carries an answer: a report, and whether it belongs to a campaign.

    [v, digest8, round, attribute, body]

A report holds no time, host or version of software. All reports of a campaign have bodies of one
length, so that their size does not show which question is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol_spec.canonical import pack
from protocol_spec.decoding import WIRE_VERSION, binary, decode, uint
from protocol_spec.limits import (
    DIGEST_BYTES,
    MAX_ATTRIBUTES,
    MAX_BODY_BYTES,
    MAX_REPORT_BYTES,
    MAX_ROUNDS,
)
from protocol_spec.manifest import Manifest
from protocol_spec.outcomes import Outcome, Rejected

__all__ = [
    "Report",
    "decode_report",
    "digest8",
    "make_report",
    "report_fault",
]


@dataclass(frozen=True, slots=True)
class Report:
    """One randomised answer of one device for one round."""

    digest8: bytes
    round: int
    attribute: int
    body: bytes

    def encode(self) -> bytes:
        """Canonical bytes."""
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
    way, answer = manifest.ways[index], manifest.answer_lengths[index]
    if len(body) != manifest.body_bytes:
        return Outcome.BAD_LENGTH
    if len(body) == answer:
        return way.fault(body)
    fault = way.fault(body[:answer])
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
