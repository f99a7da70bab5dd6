"""A device asks to be forgotten: its reports leave every round that is not sealed yet."""

from __future__ import annotations

from collector.ingest.admit import OpenCampaigns
from collector.ingest.receipts import ReceiptPages
from collector.mqtt import Message
from collector.store import Store
from protocol_spec import (
    Rejected,
    Response,
    ResponseStatus,
    Topics,
    decode_request,
    digest8,
    parse_from_device,
)

Answer = tuple[str, bytes]  # topic and payload


def is_request(message: Message) -> bool:
    """Whether a message claims to be a request rather than a report."""
    return message.topic is not None and message.topic.endswith("/request")


def forget(
    message: Message, store: Store, campaigns: OpenCampaigns, receipts: ReceiptPages
) -> Answer | None:
    """Withdraw a device's reports, forget the device, and say so; None if the request is not valid.

    When this returns, it is durable. A `StorageFailure` means that nothing was changed.
    """
    origin = parse_from_device(message.topic or "", campaigns.namespace)
    request = decode_request(message.payload)
    campaign = campaigns.by_name.get(origin.campaign) if origin else None
    if origin is None or campaign is None or isinstance(request, Rejected) or message.retained:
        return None
    if request.digest8 != digest8(campaign.manifest):
        return None
    device = campaigns.key.number(campaign.manifest, origin.device)
    withdrawn = store.withdraw(campaign, device)
    for number in store.open_rounds(campaign.id):
        receipts.reload(campaign.id, number, store.receipt_tags(campaign.id, number))
    status = ResponseStatus.DONE
    response = Response(request.digest8, request.kind, request.nonce, status, withdrawn)
    topics = Topics(campaign.name, campaigns.namespace)
    return topics.response(origin.device), response.encode()
