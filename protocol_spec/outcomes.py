"""What becomes of a report: a closed list of stable names, one counter each.

Every message the collector receives ends in exactly one of these, so their sum is the number
received. The names are part of the protocol: results, metrics and documentation use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What became of one received message; `help` says so in words."""

    help: str

    def __new__(cls, name: str, text: str = "") -> Outcome:
        member = str.__new__(cls, name)
        member._value_, member.help = name, text
        return member

    ACCEPTED = "accepted", "counted in its round"
    DUPLICATE = "duplicate", "the same bytes again: already counted, harmless"
    CONFLICT = "conflict", "other bits for a round already counted: the first stays"
    MALFORMED = "malformed", "not a report of this protocol version"
    OVERSIZE = "oversize", "longer than any report can be; not decoded"
    UNKNOWN_CAMPAIGN = "unknown_campaign", "no such campaign is open here"
    WRONG_MANIFEST = "wrong_manifest", "made for another manifest than this campaign's"
    EARLY = "early", "for a round that has not begun: the device's clock may be ahead"
    LATE = "late", "for a round already sealed"
    BAD_ATTRIBUTE = "bad_attribute", "the manifest has no attribute of that number"
    ATTRIBUTE_CHANGED = "attribute_changed", "the device reported another attribute before"
    BAD_LENGTH = "bad_length", "the body has another length than the attribute asks for"
    BAD_PADDING = "bad_padding", "bits behind the last value are set"
    BAD_VALUE = "bad_value", "the reported value is outside the attribute's domain"
    BAD_LEVEL = "bad_level", "a level that the device cannot have reached by this round"
    TOO_MANY = "too_many", "the device has answered in as many rounds as it was asked to"
    TOPIC_MISMATCH = "topic_mismatch", "the topic is not one a device reports on"
    RETAINED = "retained", "published as retained, so it may be old; reports never are"
    REVOKED = "revoked", "the device's credential was revoked"
    FORGOTTEN = "forgotten", "the device asked to be forgotten in this campaign"
    SUSPENDED = "suspended", "one of too many messages of one device; not decoded"


OUTCOME_HELP = {outcome: outcome.help for outcome in Outcome}


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why bytes were not taken as a message. `detail` never holds anything from a report's body."""

    outcome: Outcome
    detail: str
