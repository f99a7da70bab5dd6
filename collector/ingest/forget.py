"""Devices ask to be forgotten: their reports leave every round that is not sealed yet.

All requests of a batch are one transaction. A device is forgotten once in a campaign, so asking
again costs one look at its row; asking many times at once is one request (A2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from collector.ingest.admit import OpenCampaigns
from collector.ingest.receipts import ReceiptPages
from collector.mqtt import Message
from collector.records import Campaign, Withdrawal
from collector.store import Store
from protocol_spec import (
    Rejected,
    Request,
    Response,
    ResponseStatus,
    Topics,
    decode_request,
    digest8,
    parse_from_device,
)

Answer = tuple[str, bytes]  # topic and payload


class Asked(NamedTuple):
    """A request that is one, and who asks."""

    campaign: Campaign
    device: str
    request: Request

    def answer(self, withdrawal: Withdrawal, namespace: str) -> Answer:
        """That it is done."""
        request = self.request
        rounds, done = len(withdrawal.reports), ResponseStatus.DONE
        response = Response(request.digest8, request.kind, request.nonce, done, rounds)
        return Topics(self.campaign.name, namespace).response(self.device), response.encode()


def is_request(message: Message) -> bool:
    """Whether a message claims to be a request rather than a report."""
    return message.topic is not None and message.topic.endswith("/request")


def forget(
    messages: Sequence[Message], store: Store, campaigns: OpenCampaigns, receipts: ReceiptPages
) -> list[Answer]:
    """Withdraw the reports of devices that ask for it, forget the devices, and say so.

    When this returns, it is durable. A `StorageFailure` means that nothing was changed.
    """
    asked, repeated = _asked(messages, campaigns)
    numbers = [(a.campaign.id, campaigns.key.number(a.campaign.manifest, a.device)) for a in asked]
    invalid = len(messages) - repeated - len(asked)
    withdrawals = store.withdraw(numbers, repeated=repeated, invalid=invalid)
    for report in (report for each in withdrawals for report in each.reports):
        receipts.remove(report.campaign, report.round, report.page, report.tag)
    return [a.answer(done, campaigns.namespace) for a, done in zip(asked, withdrawals)]


def _asked(messages: Iterable[Message], campaigns: OpenCampaigns) -> tuple[list[Asked], int]:
    """The latest valid request of each device and campaign, and how many came before these."""
    latest: dict[str | None, Asked] = {}
    valid = 0
    for message in messages:
        asked = _read(message, campaigns)
        if asked is not None:
            latest[message.topic] = asked
            valid += 1
    return list(latest.values()), valid - len(latest)


def _read(message: Message, campaigns: OpenCampaigns) -> Asked | None:
    origin = parse_from_device(message.topic or "", campaigns.namespace)
    request = decode_request(message.payload)
    campaign = campaigns.by_name.get(origin.campaign) if origin else None
    if origin is None or campaign is None or isinstance(request, Rejected) or message.retained:
        return None
    if request.digest8 != digest8(campaign.manifest):
        return None
    return Asked(campaign, origin.device, request)
