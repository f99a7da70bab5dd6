"""What the leader publishes of a campaign: manifest and state, results, Home Assistant's discovery.

A result is marked as published when the broker has taken it. A pooled result has two forms, one
after the other: the contract's bytes, then JSON for dashboards. It is marked when both were
acknowledged; whatever happens before that, both are published again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from collector.links import Link, Publisher, Will
from collector.records import POOLED, Campaign, UnpublishedResult
from collector.rounds.results import result_json
from collector.store import Store, read_result
from collector.timing import Clock, Timing
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

log = logging.getLogger("allomfree.collector")

Sent = TypeVar("Sent")

REFUSED_DISCOVERY: Final = (
    "the broker refused %s, so Home Assistant cannot find the campaign. Let the collector's user "
    "write there, in the broker's access list; at a broker configured here, run: "
    "allomfree-collector enrol --reader home --home-assistant %s"
)


def publish_manifest(
    publish: Callable[[str, bytes], Sent], topics: Topics, manifest: Manifest, signature: bytes
) -> list[Sent]:
    """Publish a manifest and, before it, what belongs to it; what each `publish` returned."""
    sent = []
    if signature:
        sent.append(publish(topics.signature, Signature(digest8(manifest), signature).encode()))
    if manifest.eps_1 >= MIN_PUBLISHED_EPS_1:
        sent.append(publish(topics.thresholds, published_thresholds(manifest).encode()))
    return [*sent, publish(topics.manifest, manifest.to_bytes())]


class Announcer:
    """Publishes manifests, states and, where asked for, discovery for Home Assistant."""

    def __init__(self, store: Store, namespace: str, home_assistant: str | None = None) -> None:
        self._store = store
        self._namespace = namespace
        self._home_assistant = home_assistant

    def announce(self, link: Publisher, campaign: Campaign) -> None:
        """Publish what devices need to know of an open campaign."""
        topics = Topics(campaign.name, self._namespace)
        signature = self._store.signature(campaign.id)
        publish_manifest(link.publish, topics, campaign.manifest, signature)
        self.publish_state(link, campaign, Presence.ONLINE)
        self._publish_discovery(link, campaign, discovery(campaign, topics))
        log.info("collecting for %s", campaign.name)

    def withdraw(self, link: Publisher, campaign: Campaign) -> None:
        """A campaign was closed: publish that, and take back its manifest."""
        topics = Topics(campaign.name, self._namespace)
        self.publish_state(link, campaign, Presence.CLOSED)
        link.publish(topics.manifest, b"")
        if campaign.manifest.eps_1 >= MIN_PUBLISHED_EPS_1:
            link.publish(topics.thresholds, b"")
        if campaign.manifest.operator:
            link.publish(topics.signature, b"")
        self._publish_discovery(link, campaign, b"")
        log.info("%s is closed", campaign.name)

    def publish_state(self, link: Publisher, campaign: Campaign, presence: Presence) -> None:
        """Publish whether the collector is there, and which round was sealed last."""
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

    def _publish_discovery(self, link: Publisher, campaign: Campaign, message: bytes) -> None:
        if self._home_assistant is not None:
            topic = discovery_topic(self._home_assistant, campaign)
            link.publish(topic, message, then=self._discovery_answered)

    def _discovery_answered(self, refusal: str | None) -> None:
        if refusal is not None:
            log.warning(REFUSED_DISCOVERY, refusal, self._home_assistant)


# --- results ------------------------------------------------------------------------------------

Publication = tuple[str, bytes]  # topic and payload

REFUSED_RESULT: Final = (
    "the broker refused %s. Let the collector's user write there, in its access list; at a "
    "broker configured here, run: allomfree-collector doctor"
)


class ResultPublisher:
    """Publishes what the store holds unpublished, as far as publishes may be unanswered."""

    def __init__(self, store: Store, namespace: str, clock: Clock, timing: Timing) -> None:
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._timing = timing
        self._in_flight: set[UnpublishedResult] = set()
        self._taken: list[UnpublishedResult] = []
        self._paused_until = 0.0
        self._broker_forgot = False

    def connected(self, link: Link) -> None:
        """A new connection: nothing is in flight, and the broker may have lost everything."""
        self._in_flight.clear()
        self._taken.clear()
        self._broker_forgot = not link.session_present

    def publish(self, link: Publisher, campaigns: Mapping[int, Campaign]) -> None:
        """Record what the broker has taken, then publish what is still unpublished."""
        if self._broker_forgot:
            self._store.publish_again()
            self._broker_forgot = False
        while self._taken:
            self._store.mark_published(self._taken[0])
            self._in_flight.discard(self._taken.pop(0))
        if self._clock.monotonic() < self._paused_until:
            return
        for result in self._store.unpublished(link.free):
            if result not in self._in_flight:
                self._in_flight.add(result)
                self._send(link, result, self._publications(result, campaigns[result.campaign]))

    def _send(self, link: Publisher, result: UnpublishedResult, pending: list[Publication]) -> None:
        (topic, payload), *rest = pending

        def then(refusal: str | None) -> None:
            if refusal is not None:
                pause = self._timing.refused_pause_seconds
                self._paused_until = self._clock.monotonic() + pause
                self._in_flight.discard(result)
                log.warning(REFUSED_RESULT, refusal)
            elif rest:
                self._send(link, result, rest)
            else:
                self._taken.append(result)

        link.publish(topic, payload, then=then)

    def _publications(self, stored: UnpublishedResult, campaign: Campaign) -> list[Publication]:
        topics = Topics(campaign.name, self._namespace)
        name = campaign.manifest.attributes[stored.attribute].name
        if stored.round != POOLED:
            return [(topics.result(name, stored.round), stored.message)]
        result = read_result(stored.message)
        in_json = topics.result_json(name), result_json(campaign, result)
        return [(topics.result(name), stored.message), in_json]


# --- Home Assistant ---------------------------------------------------------------------------

ORIGIN: Final = {"name": "allomfree-collector"}
PRESENCE_AT: Final = 12

_TALLEST: Final = "(value_json.histogram | max(attribute='projected'))"
_VALUE: Final = f"{{{{ {_TALLEST}.value if value_json.histogram else none }}}}"
_SHARE: Final = (
    f"{{{{ (100 * {_TALLEST}.projected) | round(1) if value_json.histogram else none }}}}"
)
_DETAILS: Final = f"{{{{ ({_TALLEST} if value_json.histogram else {{}}) | tojson }}}}"
_PRESENT: Final = (
    f"{{{{ 'ON' if value | unpack('B', {PRESENCE_AT}) == {int(Presence.ONLINE)} else 'OFF' }}}}"
)


def discovery_topic(prefix: str, campaign: Campaign) -> str:
    """Where Home Assistant looks for the message; an empty retained one removes the campaign."""
    return f"{prefix}/device/{_identity(campaign)}/config"


def discovery(campaign: Campaign, topics: Topics) -> bytes:
    """With this one retained message Home Assistant finds a campaign by itself: a device with three
    sensors for each attribute and one for the collector.

    It names topics and templates only. The numbers come from the results in JSON, and whether the
    collector is there from the campaign's state, whose presence is always its thirteenth byte.
    """
    identity = _identity(campaign)
    components: dict[str, dict[str, Any]] = {
        "collector": {
            "platform": "binary_sensor",
            "name": "collector",
            "device_class": "connectivity",
            "entity_category": "diagnostic",
            "state_topic": topics.state,
            "encoding": "",  # bytes, not text
            "value_template": _PRESENT,
        }
    }
    for name in (attribute.name for attribute in campaign.manifest.attributes):
        topic = topics.result_json(name)
        sensor = {"platform": "sensor", "state_topic": topic}
        measured = {**sensor, "state_class": "measurement"}
        components |= {
            f"{name}_value": {**sensor, "name": name, "value_template": _VALUE},
            f"{name}_share": {
                **measured,
                "name": f"{name}, its share",
                "unit_of_measurement": "%",
                "value_template": _SHARE,
                "json_attributes_topic": topic,
                "json_attributes_template": _DETAILS,
            },
            f"{name}_reports": {
                **measured,
                "name": f"{name}, reports",
                "value_template": "{{ value_json.n }}",
            },
        }
    for name, component in components.items():
        component["unique_id"] = f"{identity}_{name}"
    facts = {
        "device": {
            "identifiers": [identity],
            "name": campaign.manifest.title,
            "manufacturer": campaign.manifest.owner,
            "model": campaign.name,
        },
        "origin": ORIGIN,
        "components": components,
    }
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()


def _identity(campaign: Campaign) -> str:
    return f"allomfree_{campaign.name}"
