"""What devices are told of a campaign: its manifest, and whether a collector is there for it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from collector.mqtt import Link, Will
from collector.records import Campaign
from collector.rounds.home_assistant import discovery, discovery_topic
from collector.store import Store
from protocol_spec import (
    Manifest,
    Presence,
    Signature,
    State,
    Topics,
    digest8,
    published_thresholds,
)
from protocol_spec.limits import MIN_PUBLISHED_EPS_1

REFUSED: Final = (
    "the broker refused %s, so Home Assistant cannot find the campaign. Let the collector's user "
    "write there, in the broker's access list; at a broker configured here, run: "
    "allomfree-collector enrol --reader home --home-assistant %s"
)

log = logging.getLogger("allomfree.collector")


def publish_manifest(link: Link, topics: Topics, manifest: Manifest, signature: bytes) -> list[int]:
    """Publish a manifest and, before it, what belongs to it; the numbers of the messages."""
    sent = []
    if signature:
        message = Signature(digest8(manifest), signature).encode()
        sent.append(link.publish(topics.signature, message))
    if manifest.eps_1 >= MIN_PUBLISHED_EPS_1:
        sent.append(link.publish(topics.thresholds, published_thresholds(manifest).encode()))
    return [*sent, link.publish(topics.manifest, manifest.to_bytes())]


class Announcer:
    """Publishes manifests, states and, where asked for, discovery for Home Assistant."""

    def __init__(self, store: Store, namespace: str, home_assistant: str | None = None) -> None:
        self._store = store
        self._namespace = namespace
        self._home_assistant = home_assistant
        self._discoveries: set[int] = set()  # what the broker has not answered yet

    def announce(self, link: Link, campaign: Campaign) -> None:
        """Publish what devices need to know of an open campaign."""
        topics = Topics(campaign.name, self._namespace)
        publish_manifest(link, topics, campaign.manifest, self._store.signature(campaign.id))
        self.publish_state(link, campaign, Presence.ONLINE)
        self._publish_discovery(link, campaign, discovery(campaign, topics))
        log.info("collecting for %s", campaign.name)

    def withdraw(self, link: Link, campaign: Campaign) -> None:
        """A campaign was closed: say so, and take back the invitation."""
        topics = Topics(campaign.name, self._namespace)
        self.publish_state(link, campaign, Presence.CLOSED)
        link.publish(topics.manifest, b"")
        if campaign.manifest.eps_1 >= MIN_PUBLISHED_EPS_1:
            link.publish(topics.thresholds, b"")
        if campaign.manifest.operator:
            link.publish(topics.signature, b"")
        self._publish_discovery(link, campaign, b"")
        log.info("%s is closed", campaign.name)

    def connected(self) -> None:
        """A new connection: nothing that was sent on the last one is answered."""
        self._discoveries.clear()

    def answered(self, answers: Mapping[int, str | None]) -> None:
        """Say what the broker did not take: Home Assistant would wait for it in vain."""
        mine = answers.keys() & self._discoveries
        self._discoveries -= mine
        for refused in {answers[number] for number in mine} - {None}:
            log.warning(REFUSED, refused, self._home_assistant)

    def publish_state(self, link: Link, campaign: Campaign, presence: Presence) -> None:
        """Say whether the collector is there, and which round was sealed last."""
        topics = Topics(campaign.name, self._namespace)
        link.publish(topics.state, self._state(campaign, presence))

    def will(self, campaigns: Collection[Campaign]) -> Will | None:
        """A connection has one last will, so only a single campaign can have it."""
        if len(campaigns) != 1:
            return None
        (campaign,) = campaigns
        topics = Topics(campaign.name, self._namespace)
        return Will(topics.state, self._state(campaign, Presence.OFFLINE))

    def _state(self, campaign: Campaign, presence: Presence) -> bytes:
        last = self._store.last_sealed(campaign.id)
        return State(digest8(campaign.manifest), presence, last).encode()

    def _publish_discovery(self, link: Link, campaign: Campaign, message: bytes) -> None:
        if self._home_assistant is not None:
            topic = discovery_topic(self._home_assistant, campaign)
            self._discoveries.add(link.publish(topic, message))
