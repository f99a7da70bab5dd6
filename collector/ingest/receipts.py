"""Receipts: which reports are durably counted, told to the devices on retained pages.

A page is published only from what the store has committed (I6). Pages live in memory, four bytes a
report, and are rebuilt from the store at start; they are published again after every reconnect,
because a broker may have forgotten them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from collector.mqtt import Link
from collector.records import Campaign, Candidate
from collector.store import Store
from collector.timing import Clock, Timing
from protocol_spec import Outcome, Topics, digest8, pack_receipts

Place = tuple[int, int, int]  # campaign, round, page
GIVEN: Final = (Outcome.ACCEPTED, Outcome.DUPLICATE)


@dataclass(slots=True)
class ReceiptPages:
    """Tags by (campaign, round, page), and which pages the broker has not seen yet."""

    namespace: str
    _tags: dict[Place, bytearray] = field(default_factory=dict)
    _dirty: set[Place] = field(default_factory=set)

    def note(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """A batch was committed. A report seen again gets its receipt again, too: its device is
        still waiting for it."""
        for c, outcome in zip(candidates, outcomes):
            if outcome in GIVEN:
                self.add(c.campaign, c.round, c.page, c.tag)

    def add(self, campaign: int, number: int, page: int, tag: int) -> None:
        """Put a tag on its page."""
        place = (campaign, number, page)
        if place not in self._tags:
            self._tags[place] = bytearray()
        self._tags[place] += tag.to_bytes(4)
        self._dirty.add(place)

    def load(self, campaign: int, number: int, rows: Iterable[tuple[int, int]]) -> None:
        """Rebuild a round's pages from the store."""
        for page, tag in rows:
            self.add(campaign, number, page, tag)

    def reload(self, campaign: int, number: int, rows: Iterable[tuple[int, int]]) -> None:
        """A report was withdrawn: build a round's pages anew, those that are now empty too."""
        for place in self._of(campaign, number):
            self._tags[place] = bytearray()
            self._dirty.add(place)
        self.load(campaign, number, rows)

    def forget(self, campaign: int, number: int) -> None:
        """Drop a round's pages from memory."""
        for place in self._of(campaign, number):
            del self._tags[place]
            self._dirty.discard(place)

    def _of(self, campaign: int, number: int) -> list[Place]:
        return [place for place in self._tags if place[:2] == (campaign, number)]

    def publish_again(self) -> None:
        """The broker may have lost them all."""
        self._dirty.update(self._tags)

    def take(self, campaigns: Mapping[int, Campaign], limit: int) -> Iterator[tuple[str, bytes]]:
        """Topic and bytes of up to `limit` changed pages."""
        for place in list(self._dirty)[:limit]:
            self._dirty.discard(place)
            if place[0] in campaigns and place in self._tags:
                yield self._encode(campaigns[place[0]], place)

    def topics(self, campaign: Campaign, number: int) -> list[str]:
        """Every page of a round, to be cleared at the broker."""
        topics = Topics(campaign.name, self.namespace)
        return [topics.receipt(number, page) for page in range(campaign.manifest.receipt_pages)]

    def _encode(self, campaign: Campaign, place: Place) -> tuple[str, bytes]:
        _, number, page = place
        tags = np.unique(np.frombuffer(bytes(self._tags[place]), dtype=">u4")).tobytes()
        self._tags[place] = bytearray(tags)
        message = pack_receipts(digest8(campaign.manifest), number, page, tags)
        return Topics(campaign.name, self.namespace).receipt(number, page), message


class ReceiptPublisher:
    """Publishes changed pages now and then, and clears those that nobody needs any more."""

    def __init__(self, pages: ReceiptPages, store: Store, clock: Clock, timing: Timing) -> None:
        self.pages = pages
        self._store = store
        self._clock = clock
        self._timing = timing
        self._next = 0.0

    def load(self, campaigns: Iterable[Campaign]) -> None:
        """Rebuild the pages of all open rounds from the store, at start."""
        for campaign in campaigns:
            for number in self._store.open_rounds(campaign.id):
                tags = self._store.receipt_tags(campaign.id, number)
                self.pages.load(campaign.id, number, tags)

    def publish(self, link: Link, campaigns: Mapping[int, Campaign]) -> None:
        """Publish what changed, if it is time, as far as publishes may be unanswered."""
        if self._clock.monotonic() < self._next:
            return
        self._next = self._clock.monotonic() + self._timing.receipts_every_seconds
        for topic, payload in self.pages.take(campaigns, link.free):
            link.publish(topic, payload)

    def clear(self, link: Link, campaigns: Iterable[Campaign]) -> None:
        """A round's pages stand one period beyond its deadline, for devices that were asleep."""
        for campaign in campaigns:
            schedule = campaign.manifest.rounds
            for number in self._store.clearable_receipts(campaign.id):
                if schedule.deadline(number) + schedule.period <= self._clock.now():
                    self.pages.forget(campaign.id, number)
                    for topic in self.pages.topics(campaign, number):
                        link.publish(topic, b"")
                    self._store.mark_receipts_cleared(campaign.id, number)
