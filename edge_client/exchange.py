"""Questions to a broker outside of the loop: one connection, one answer, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TypeVar

from edge_client.errors import BrokerUnreachable, CampaignProblem
from edge_client.link import Connector, Link, connect
from edge_client.records import Invitation, Membership
from protocol_spec import (
    Manifest,
    ManifestError,
    Rejected,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Signature,
    Topics,
    decode_response,
    decode_signature,
    digest8,
)
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUrl, CampaignAddress, parse_broker

Found = TypeVar("Found")


def fetch_invitation(
    connector: Connector, place: CampaignAddress, digest: bytes | None, timeout: float
) -> Invitation:
    """The campaign as the broker offers it; only if it is the one that was invited to."""
    broker, namespace, campaign, named = place
    with _asking(connector, broker) as link:
        payload = _retained(link, Topics(campaign, namespace).manifest, timeout)
        if not payload:
            raise CampaignProblem(
                f"{broker} has no campaign {campaign}{connector.note(broker)}; nothing was drawn, "
                "sent or spent. Check the address, or ask the campaign's owner whether it is open"
            )
        try:
            manifest = Manifest.from_bytes(payload)
        except ManifestError as error:
            raise CampaignProblem(
                f"{campaign}'s manifest is not valid; nothing was drawn, sent or spent. {error}"
            ) from None
        _check_digest(manifest, campaign, named, digest)
        whole = named is not None or digest is not None
        signer = _signer(link, manifest, namespace, timeout)
        return Invitation(manifest, broker, namespace, whole, signer)


def fetch_signer(
    connector: Connector, offered: Invitation, digest: bytes | None, timeout: float
) -> Invitation:
    """For a manifest that is here already: only its signature is fetched, if it has one."""
    manifest, broker = offered.manifest, offered.broker
    _check_digest(manifest, manifest.campaign, digest)
    known = replace(offered, whole_digest=True)  # the owner has the manifest itself
    if not manifest.operator:
        return known
    with _asking(connector, broker) as link:
        return replace(known, operator=_signer(link, manifest, offered.namespace, timeout))


@contextmanager
def _asking(connector: Connector, broker: BrokerUrl) -> Iterator[Link]:
    """A connection for one question; an error says why there is none, and what did not happen."""
    link = connector.link(broker)
    try:
        connect(link)
        with closing(link):
            yield link
    except BrokerUnreachable as error:
        note = connector.note(broker)
        raise BrokerUnreachable(f"{error}{note}. Nothing was drawn, sent or spent") from None


def _check_digest(manifest: Manifest, campaign: str, *digests: bytes | None) -> None:
    """Compare with all that is known of the manifest invited to: its name, and all 32 bytes."""
    wanted = [digest.hex() for digest in digests if digest is not None]
    if manifest.campaign != campaign:
        raise CampaignProblem(
            f"the broker offered {manifest.campaign} under the name {campaign}: the manifest "
            "is not the one invited to. Nothing was drawn, sent or spent"
        )
    if any(digest != manifest.digest.hex() for digest in wanted):
        raise CampaignProblem(
            f"the manifest of {campaign} has digest {manifest.digest.hex()}, but you were invited "
            f"to {wanted[-1]}: it is another campaign under the same name. Nothing was drawn, sent "
            "or spent; tell whoever invited you"
        )


def _signer(link: Link, manifest: Manifest, namespace: str, timeout: float) -> bytes:
    """The key whose signature was verified; empty if there is none or it cannot be checked."""
    if not manifest.operator:
        return b""
    payload = _retained(link, Topics(manifest.campaign, namespace).signature, timeout)
    message = decode_signature(payload) if payload else None
    problem = "is not there" if message is None else "is not one"
    if isinstance(message, Signature):
        from protocol_spec.programs import signing  # noqa: PLC0415 - only to join what is signed

        try:
            good = signing.is_signed_by(manifest.operator, manifest.digest, message.signature)
        except signing.NoSignatures:
            return b""
        if good and message.digest8 == digest8(manifest):
            return manifest.operator
        problem = "is wrong"
    raise CampaignProblem(
        f"{manifest.campaign} says that {manifest.operator.hex()} has signed it, but the signature "
        f"{problem}. Nothing was drawn, sent or spent. Ask the operator to run "
        "`allomfree-collector open` again; if that does not help, do not join"
    )


def ask_to_forget(
    connector: Connector, membership: Membership, nonce: bytes, timeout: float
) -> str:
    """Ask the collector to withdraw this device's reports; returns what it did, in words."""
    request = Request(digest8(membership.manifest), RequestKind.FORGET, nonce)
    topics, device = membership.topics, membership.device

    def answer(message: Message) -> Response | None:
        response = decode_response(message.payload)
        if isinstance(response, Rejected) or response.nonce != nonce:
            return None
        return response

    link = connector.link(parse_broker(membership.broker))
    connect(link)
    with closing(link):
        link.subscribe([topics.response(device)])
        link.publish(topics.request(device), request.encode())
        response = _await(link, answer, timeout)
    if response is None:
        return "did not answer; reports of rounds not yet sealed may still be counted"
    if response.status is ResponseStatus.DONE:
        rounds = (
            "1 unsealed round" if response.rounds == 1 else f"{response.rounds} unsealed rounds"
        )
        return f"withdrew this device's reports from {rounds}"
    return "refused; reports of rounds not yet sealed may still be counted"


def _retained(link: Link, topic: str, timeout: float) -> bytes | None:
    """Asked for twice: a broker may take the first subscription after it has handed a message on
    and before it keeps it, and then stays silent."""
    for _ in range(2):
        link.subscribe([topic])
        found = _await(link, lambda m: m.payload if m.topic == topic else None, timeout / 2)
        if found is not None:
            return found
    return None


def _await(link: Link, wanted: Callable[[Message], Found | None], timeout: float) -> Found | None:
    """The first arriving message that is wanted, or None in time."""
    limit = time.monotonic() + timeout
    while time.monotonic() < limit:
        for message in link.step(0.1):
            found = wanted(message)
            if found is not None:
                return found
        if link.lost is not None:
            raise BrokerUnreachable(link.lost)
    return None
