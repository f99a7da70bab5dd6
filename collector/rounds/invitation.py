"""Publishing an invitation without the service: so that devices can join as soon as it is open."""

from __future__ import annotations

import time
from typing import Final

from collector.data_dir import client_id
from collector.links import Link
from collector.links.mqtt import PahoLink
from collector.records import Campaign
from collector.rounds.publishing import publish_manifest
from collector.settings import Settings
from protocol_spec import Topics
from protocol_spec.programs.settings import BrokerUnreachable
from protocol_spec.programs.system import random_client_id

ANSWER_SECONDS: Final = 10.0


def publish_invitation(settings: Settings, campaign: Campaign, signature: bytes) -> str | None:
    """Publish a campaign's manifest, retained; None when the broker took it, else why not.

    With a user name the connection keeps the session that goes with it, because a broker may take
    that name for the collector's own.
    """
    broker = settings.required_broker()
    named = settings.username is not None
    link = PahoLink(
        broker,
        settings.credentials(),
        client_id=client_id(settings) if named else random_client_id("open"),
        persistent=named,
    )
    try:
        link.connect()
        topics = Topics(campaign.name, settings.namespace)
        sent = publish_manifest(link, topics, campaign.manifest, signature)
        return _answer(link, sent)
    except BrokerUnreachable as error:
        return str(error)
    finally:
        link.close()


def _answer(link: Link, sent: list[int]) -> str | None:
    """The first refusal, or None when all were taken."""
    limit, answers = time.monotonic() + ANSWER_SECONDS, dict[int, str | None]()
    while time.monotonic() < limit and not link.lost:
        link.step(0.1)
        answers |= link.answers()
        if answers.keys() >= set(sent):
            return next((answers[number] for number in sent if answers[number]), None)
    return link.lost or "the broker did not answer in time"
