"""Admission: whether a message is a report that may be counted. Pure, and the same every time.

Whatever needs history (a repeated report, a changed attribute, a sealed round) is the store's to
say; everything else is decided here. A bad message is data with a name, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collector.device_key import DeviceKey
from collector.mqtt import Message
from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Candidate, Refusal
from protocol_spec import (
    Outcome,
    Rejected,
    Way,
    decode_report,
    receipt_page,
    receipt_tag,
    report_fault,
)
from protocol_spec.topics import parse_from_device


@dataclass(frozen=True, slots=True)
class OpenCampaigns:
    """What admission knows: open campaigns by name, revoked devices, the key, the namespace."""

    by_name: Mapping[str, Campaign]
    revoked: frozenset[str]
    key: DeviceKey
    namespace: str


def admit(message: Message, campaigns: OpenCampaigns, now: float) -> Candidate | Refusal:
    """A report ready to be counted, or the one reason why not."""
    origin = parse_from_device(message.topic, campaigns.namespace) if message.topic else None
    if origin is None or origin.kind != "report":
        return Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.TOPIC_MISMATCH)
    campaign = campaigns.by_name.get(origin.campaign)
    if campaign is None or campaign.closed is not None:
        return Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.UNKNOWN_CAMPAIGN)
    if message.retained:
        return Refusal(campaign.id, NO_ROUND, Outcome.RETAINED)
    if origin.device in campaigns.revoked:
        return Refusal(campaign.id, NO_ROUND, Outcome.REVOKED)
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
        _counted(report.body, manifest.ways[report.attribute], device),
    )


def _counted(body: bytes, way: Way, device: str) -> bytes:
    """What the store counts, and takes out again if the device withdraws, when its name is gone:
    the supported values, behind the number of their channel where there are several."""
    if way.reporting == "memoized":  # the most frequent, and the least to do
        return body[: way.answer_bytes]
    channel, supported = way.supported(body, device)
    return bytes((channel,)) + supported if len(way.channels) > 1 else supported


def _clock_fault(number: int, campaign: Campaign, now: float) -> Rejected | None:
    """A round must have begun. Whether it is too late, only its sealing decides: what a broker
    kept while the collector was away was not sent too late."""
    rounds = campaign.manifest.rounds
    if now < rounds.opens(number):
        return Rejected(Outcome.EARLY, f"round {number}")
    return None
