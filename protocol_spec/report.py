"""The one message that carries an answer: a report, and whether it belongs to a campaign.

    [v, digest8, round, attribute, body]      v: the format of the campaign's manifest

A report holds no time, host or version of software. In campaigns of format 2 all reports have
bodies of one length, so that their size does not tell which question is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from protocol_spec.canonical import pack
from protocol_spec.decoding import Bad, binary, decode, uint
from protocol_spec.limits import (
    DIGEST_BYTES,
    MAX_ATTRIBUTES,
    MAX_BODY_BYTES,
    MAX_REPORT_BYTES,
    MAX_ROUNDS,
    MAX_VALUES,
)
from protocol_spec.manifest import Manifest
from protocol_spec.outcomes import Outcome, Rejected

__all__ = [
    "MAX_BODY",
    "REPORT_VERSIONS",
    "Report",
    "decode_report",
    "digest8",
    "make_report",
    "report_fault",
]

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
    return decode(payload, 5, _report, limit=limit, binary=MAX_BODY_BYTES, versions=versions)


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
    index, body = report.attribute, report.body
    way, answer = manifest.ways[index], manifest.answer_lengths[index]
    if len(body) != manifest.body_lengths[index]:
        return Outcome.BAD_LENGTH
    if len(body) == answer:
        return way.fault(body)
    fault = way.fault(body[:answer])
    if fault is None and any(body[answer:]):
        return Outcome.BAD_PADDING
    return fault


def _report(items: tuple[Any, ...]) -> Report:
    version, digest, number, attribute, body = items
    if len(binary(body, "body")) > MAX_BODY[version]:
        raise Bad("body")
    return Report(
        binary(digest, "digest", DIGEST_BYTES),
        uint(number, "round", MAX_ROUNDS),
        uint(attribute, "attribute", MAX_ATTRIBUTES),
        body,
        version,
    )
