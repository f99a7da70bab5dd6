"""Admission: whether a message is a report that may be counted. Pure, and the same every time.

Whatever needs history (a repeated report, a changed attribute, a sealed round) is the store's to
say; everything else is decided here. A bad message is data with a name, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from collector.device_key import DeviceKey
from collector.ingest.recognise import Recognition, counted_body
from collector.mqtt import Message
from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Candidate, Refusal
from protocol_spec import (
    Outcome,
    Rejected,
    decode_report,
    receipt_page,
    receipt_tag,
    report_fault,
)
from protocol_spec.topics import parse_from_device


@dataclass(frozen=True, slots=True)
class OpenCampaigns:
    """What admission knows: campaigns by name, revoked devices, the key, the namespace.

    A closed campaign is among them until its rounds are sealed.
    """

    by_name: Mapping[str, Campaign]
    revoked: frozenset[str]
    key: DeviceKey
    namespace: str
    recognition: Recognition = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        learnt = Recognition(self.by_name, self.revoked, self.key, self.namespace)
        object.__setattr__(self, "recognition", learnt)


def admit(
    message: Message, campaigns: OpenCampaigns, now: float, suspended: Set[str] = frozenset()
) -> Candidate | Refusal:
    """A report ready to be counted, or the one reason why not; also that its device is suspended,
    and its messages are not even looked at now."""
    origin = parse_from_device(message.topic, campaigns.namespace) if message.topic else None
    if origin is None or origin.kind != "report":
        return Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.TOPIC_MISMATCH)
    campaign = campaigns.by_name.get(origin.campaign)
    if campaign is None:
        return Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.UNKNOWN_CAMPAIGN)
    if message.retained:
        return Refusal(campaign.id, NO_ROUND, Outcome.RETAINED)
    if origin.device in campaigns.revoked:
        return Refusal(campaign.id, NO_ROUND, Outcome.REVOKED)
    if origin.device in suspended:
        return Refusal(campaign.id, NO_ROUND, Outcome.SUSPENDED)
    return _check_report(message.payload, origin.device, campaign, campaigns.key, now)


def _check_report(
    payload: bytes, device: str, campaign: Campaign, key: DeviceKey, now: float
) -> Candidate | Refusal:
    report = decode_report(payload)
    if isinstance(report, Rejected):
        return Refusal(campaign.id, NO_ROUND, report.outcome)
    manifest = campaign.manifest
    fault = report_fault(report, manifest) or _clock_fault(report.round, campaign, now)
    if fault is not None:
        return Refusal(campaign.id, NO_ROUND, fault.outcome)
    return Candidate(
        campaign.id,
        report.round,
        key.number(manifest, device),
        report.attribute,
        receipt_page(manifest, device),
        int.from_bytes(receipt_tag(manifest, report.round, device)),
        counted_body(report.body, manifest.ways[report.attribute], device),
    )


def _clock_fault(number: int, campaign: Campaign, now: float) -> Rejected | None:
    """A round must have begun. Whether it is too late, only its sealing decides: what a broker
    kept while the collector was away was not sent too late."""
    opens = campaign.manifest.rounds.opens(number)
    if now < opens:
        return Rejected(Outcome.EARLY, f"round {number}")
    if campaign.closed is not None and opens > campaign.closed:
        return Rejected(Outcome.UNKNOWN_CAMPAIGN, f"closed before round {number}")
    return None
