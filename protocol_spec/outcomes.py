"""What becomes of a report: a closed list of stable names, one counter each.

Every message the collector receives ends in exactly one of these, so their sum is the number
received. The names are part of the protocol: they stand in results, metrics and documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The fate of one received message."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    MALFORMED = "malformed"
    OVERSIZE = "oversize"
    UNKNOWN_CAMPAIGN = "unknown_campaign"
    WRONG_MANIFEST = "wrong_manifest"
    EARLY = "early"
    LATE = "late"
    BAD_ATTRIBUTE = "bad_attribute"
    ATTRIBUTE_CHANGED = "attribute_changed"
    BAD_LENGTH = "bad_length"
    BAD_PADDING = "bad_padding"
    BAD_VALUE = "bad_value"
    TOPIC_MISMATCH = "topic_mismatch"
    RETAINED = "retained"
    REVOKED = "revoked"
    FORGOTTEN = "forgotten"
    SUSPENDED = "suspended"


OUTCOME_HELP: dict[Outcome, str] = {
    Outcome.ACCEPTED: "counted in its round",
    Outcome.DUPLICATE: "the same bytes again: already counted, harmless",
    Outcome.CONFLICT: "other bits for a round already counted: the first stays",
    Outcome.MALFORMED: "not a report of this protocol version",
    Outcome.OVERSIZE: "longer than any report can be; not decoded",
    Outcome.UNKNOWN_CAMPAIGN: "no such campaign is open here",
    Outcome.WRONG_MANIFEST: "made for another manifest than this campaign's",
    Outcome.EARLY: "for a round that has not begun: the device's clock may be ahead",
    Outcome.LATE: "for a round already sealed",
    Outcome.BAD_ATTRIBUTE: "the manifest has no attribute of that number",
    Outcome.ATTRIBUTE_CHANGED: "the device reported another attribute before",
    Outcome.BAD_LENGTH: "the body has another length than the attribute asks for",
    Outcome.BAD_PADDING: "bits behind the last value are set",
    Outcome.BAD_VALUE: "the reported value is outside the attribute's domain",
    Outcome.TOPIC_MISMATCH: "the topic is not one a device reports on",
    Outcome.RETAINED: "published as retained, so it may be old; reports never are",
    Outcome.REVOKED: "the device's credential was taken back",
    Outcome.FORGOTTEN: "the device asked to be forgotten in this campaign",
    Outcome.SUSPENDED: "one of too many messages of one device; not looked at",
}


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why bytes were not taken as a message. `detail` never holds anything from a report's body."""

    outcome: Outcome
    detail: str
