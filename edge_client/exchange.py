"""Questions to a broker outside of the loop: one connection, one answer, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from edge_client.errors import BrokerUnreachable, CampaignProblem
from edge_client.mqtt.connector import Connector
from edge_client.mqtt.link import Arrived, Link, Lost, connect
from edge_client.records import Invitation, Membership
from protocol_spec import (
    Manifest,
    ManifestError,
    Rejected,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Topics,
    decode_response,
    digest8,
)
from protocol_spec.programs.address import BrokerUrl, parse_broker

Found = TypeVar("Found")


def fetch_invitation(
    connector: Connector, broker: BrokerUrl, namespace: str, campaign: str, timeout: float
) -> Invitation:
    """The campaign as the broker offers it; only if it is the one that its name promises."""
    try:
        payload = _retained(connector, broker, Topics(campaign, namespace).manifest, timeout)
    except BrokerUnreachable as error:
        raise BrokerUnreachable(f"{error}. Nothing was drawn, sent or spent") from None
    if not payload:
        raise CampaignProblem(
            f"{broker} has no campaign {campaign}; nothing was drawn, sent or spent. "
            "Check the address, or ask the campaign's owner whether it is open"
        )
    try:
        manifest = Manifest.from_bytes(payload)
    except ManifestError as error:
        raise CampaignProblem(
            f"{campaign}'s manifest is not valid; nothing was drawn, sent or spent. {error}"
        ) from None
    if manifest.campaign != campaign:
        raise CampaignProblem(
            f"the broker offered {manifest.campaign} under the name {campaign}: the manifest "
            "is not the one invited to. Nothing was drawn, sent or spent"
        )
    return Invitation(manifest, broker, namespace)


def ask_to_forget(
    connector: Connector, membership: Membership, nonce: bytes, timeout: float
) -> str:
    """Ask the collector to withdraw this device's reports; returns what it did, in words."""
    request = Request(digest8(membership.manifest), RequestKind.FORGET, nonce)
    topics, device = membership.topics, membership.device

    def answer(event: Arrived) -> Response | None:
        response = decode_response(event.payload)
        if isinstance(response, Rejected) or response.nonce != nonce:
            return None
        return response

    link = connector.link(parse_broker(membership.broker))
    connect(link)
    try:
        link.subscribe([topics.response(device)])
        link.publish(topics.request(device), request.encode())
        response = _await(link, answer, timeout)
    finally:
        link.close()
    if response is None:
        return "did not answer; reports of rounds not yet sealed may still be counted"
    if response.status is ResponseStatus.DONE:
        return f"withdrew this device's reports from {response.rounds} unsealed rounds"
    return "refused; reports of rounds not yet sealed may still be counted"


def _retained(connector: Connector, broker: BrokerUrl, topic: str, timeout: float) -> bytes | None:
    link = connector.link(broker)
    connect(link)
    try:
        link.subscribe([topic])
        return _await(link, lambda e: e.payload if e.topic == topic else None, timeout)
    finally:
        link.close()


def _await(link: Link, wanted: Callable[[Arrived], Found | None], timeout: float) -> Found | None:
    """The first arriving message that is wanted, or None in time."""
    limit = time.monotonic() + timeout
    while time.monotonic() < limit:
        for event in link.step(0.1):
            if isinstance(event, Lost):
                raise BrokerUnreachable(event.reason)
            found = wanted(event) if isinstance(event, Arrived) else None
            if found is not None:
                return found
    return None
