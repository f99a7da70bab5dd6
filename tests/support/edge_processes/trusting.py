"""The agent as it must not be: it takes the broker's acknowledgement for delivery.

A negative control. The checks for lost reports must fail for it.
"""

from __future__ import annotations

from edge_client.link import MakeLink, PahoLink
from protocol_spec import (
    Manifest,
    ReceiptPage,
    Rejected,
    decode_report,
    digest8,
    parse_from_device,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.packets import Message
from protocol_spec.topics import Topics


def receipt_for(manifest: Manifest, topic: str, payload: bytes) -> Message:
    """The receipt that a collector would give for a report."""
    origin, report = parse_from_device(topic), decode_report(payload)
    assert origin is not None
    assert not isinstance(report, Rejected)
    page = receipt_page(manifest, origin.device)
    tags = frozenset({receipt_tag(manifest, report.round, origin.device)})
    content = ReceiptPage(digest8(manifest), report.round, page, tags).encode()
    return Message(Topics(manifest.campaign).receipt(report.round, page), content)


def trusting_link(manifest: Manifest) -> MakeLink:
    """The `make_link` of an agent that trusts acknowledgements of this campaign's reports."""

    class TrustingLink(PahoLink):
        """Passes every acknowledgement off as a receipt of the collector."""

        def publish(self, topic: str, payload: bytes) -> int:
            number = super().publish(topic, payload)
            receipts[number] = receipt_for(manifest, topic, payload)
            return number

        def step(self, timeout_seconds: float) -> list[Message]:
            arrived = super().step(timeout_seconds)
            return arrived + [receipts[n] for n in self._answered if n in receipts]

    receipts: dict[int, Message] = {}
    return TrustingLink
