"""Results at the broker: retained, and marked as published when the broker has taken them.

A pooled result has two forms, one after the other: the contract's bytes, then JSON for dashboards.
It is marked when both were acknowledged; whatever happens before that, both are published again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from collector.mqtt import Link
from collector.records import POOLED, Campaign, UnpublishedResult
from collector.rounds.result_json import result_json
from collector.store import Store
from collector.timing import Clock, Timing
from protocol_spec import Result, Topics, decode_result

Form = tuple[str, bytes]  # topic and payload

REFUSED: Final = (
    "the broker refused %s. Let the collector's user write there, in its access list; at a "
    "broker configured here, run: allomfree-collector doctor"
)

log = logging.getLogger("allomfree.collector")


class ResultPublisher:
    """Publishes what the store holds unpublished, as far as publishes may be unanswered."""

    def __init__(self, store: Store, namespace: str, clock: Clock, timing: Timing) -> None:
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._timing = timing
        self._in_flight: dict[int, tuple[UnpublishedResult, list[Form]]] = {}
        self._answers: dict[int, str | None] = {}
        self._paused_until = 0.0
        self._broker_forgot = False

    def connected(self, link: Link) -> None:
        """A new connection: nothing is in flight, and the broker may have lost everything."""
        self._in_flight.clear()
        self._answers.clear()
        self._broker_forgot = not link.session_present

    def answered(self, answers: Mapping[int, str | None]) -> None:
        """Keep the broker's answers until they can be written down."""
        self._answers |= {n: answers[n] for n in answers.keys() & self._in_flight.keys()}

    def publish(self, link: Link, campaigns: Mapping[int, Campaign]) -> None:
        """Write down what the broker has taken, then send what is still unpublished."""
        if self._broker_forgot:
            self._store.publish_again()
            self._broker_forgot = False
        for number in list(self._answers):
            self._answered(link, number, self._answers[number])
            del self._answers[number]
        if self._clock.monotonic() < self._paused_until:
            return
        waiting = {result for result, _ in self._in_flight.values()}
        for result in self._store.unpublished(link.free):
            if result not in waiting:
                self._send(link, result, self._forms(result, campaigns[result.campaign]))

    def _answered(self, link: Link, number: int, refusal: str | None) -> None:
        result, rest = self._in_flight[number]
        if refusal is not None:
            pause = self._timing.refused_pause_seconds
            self._paused_until = self._clock.monotonic() + pause
            log.warning(REFUSED, refusal)
        elif rest:
            self._send(link, result, rest)
        else:
            self._store.mark_published(result)
        del self._in_flight[number]

    def _send(self, link: Link, result: UnpublishedResult, forms: list[Form]) -> None:
        (topic, payload), *rest = forms
        self._in_flight[link.publish(topic, payload)] = result, rest

    def _forms(self, stored: UnpublishedResult, campaign: Campaign) -> list[Form]:
        topics = Topics(campaign.name, self._namespace)
        name = campaign.manifest.attributes[stored.attribute].name
        if stored.round != POOLED:
            return [(topics.result(name, stored.round), stored.message)]
        result = decode_result(stored.message)
        if not isinstance(result, Result):
            raise AssertionError("a stored result does not decode")
        in_json = topics.result_json(name), result_json(campaign, result)
        return [(topics.result(name), stored.message), in_json]
