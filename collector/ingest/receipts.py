"""Receipts: which reports are durably counted, told to the devices on retained pages.

A page is published only from what the store has committed (I6). Pages live in memory, four bytes a
report, and are rebuilt from the store at start; they are published again after every reconnect,
because a broker may have forgotten them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from collector.records import Campaign
from protocol_spec import Topics, digest8, pack_receipts

Place = tuple[int, int, int]


@dataclass(slots=True)
class ReceiptBook:
    """Tags by (campaign, round, page), and which pages the broker has not seen yet."""

    namespace: str
    _tags: dict[Place, bytearray] = field(default_factory=dict)
    _dirty: set[Place] = field(default_factory=set)

    def add(self, campaign: int, number: int, page: int, tag: int) -> None:
        """A report was committed, or seen again: its device is still waiting for the receipt."""
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
