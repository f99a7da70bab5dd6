"""What devices are told of a campaign: its manifest, and whether a collector is there for it."""

from __future__ import annotations

import logging
from collections.abc import Collection

from collector.mqtt import Link, Will
from collector.records import Campaign
from collector.rounds.home_assistant import discovery, discovery_topic
from collector.store import Store
from protocol_spec import Presence, State, Topics, digest8

log = logging.getLogger("allomfree.collector")


class Announcer:
    """Publishes manifests, states and, where asked for, discovery for Home Assistant."""

    def __init__(self, store: Store, namespace: str, home_assistant: str | None = None) -> None:
        self._store = store
        self._namespace = namespace
        self._home_assistant = home_assistant

    def announce(self, link: Link, campaign: Campaign) -> None:
        """Publish what devices need to know of an open campaign."""
        topics = Topics(campaign.name, self._namespace)
        link.publish(topics.manifest, campaign.manifest.to_bytes())
        self.publish_state(link, campaign, Presence.ONLINE)
        self._publish_discovery(link, campaign, discovery(campaign, topics))
        log.info("collecting for %s", campaign.name)

    def withdraw(self, link: Link, campaign: Campaign) -> None:
        """A campaign was closed: say so, and take back the invitation."""
        topics = Topics(campaign.name, self._namespace)
        self.publish_state(link, campaign, Presence.CLOSED)
        link.publish(topics.manifest, b"")
        self._publish_discovery(link, campaign, b"")
        log.info("%s is closed", campaign.name)

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
            link.publish(discovery_topic(self._home_assistant, campaign), message)
