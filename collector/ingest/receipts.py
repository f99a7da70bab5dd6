"""Receipts: which reports are durably counted, published for devices on retained pages.

Claims:
  I6  a page is published only from what the store has committed
  F5  a page never has more than `PAGE_TAGS` tags, however many devices share it. The newest stay;
      every tag is published at least once, and one that had to leave comes back when its device
      sends its report again, because it has not seen it
  A7  a page is published only if it changed, or on a new connection, because a broker may have
      forgotten it; and a large page less often than a small one

Pages live in memory, four bytes a report, and are rebuilt from the store at start.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.links import Publisher
from collector.records import Campaign
from collector.store import ReceiptBatch, ReceiptKind, Store
from collector.timing import Clock, Timing
from protocol_spec import Topics, digest8, pack_receipts
from protocol_spec.limits import PAGE_TAGS, TAG_BYTES

Round = tuple[int, int]  # campaign, number
PageKey = tuple[int, int, int]  # campaign, round, page
TagArray = npt.NDArray[np.uint32]

_PagesAndTags = tuple[npt.NDArray[np.int64], TagArray]
_ROWS: Final = np.dtype([("page", np.uint32), ("tag", np.uint32)])

log = logging.getLogger("allomfree.collector")

REFUSED: Final = (
    "the broker refused %d pages of receipts (%s). Their reports are counted, but devices do not "
    "learn of it and send them again; the pages are published again in %.0f s. Check the broker's "
    "access list and limits (allomfree-collector doctor)"
)


@dataclass(slots=True)
class _Page:
    """Tags in the order in which they came, joined."""

    shown: bytearray = field(default_factory=bytearray)  # on the page that the broker has
    fresh: bytearray = field(default_factory=bytearray)  # not published yet
    repeated: set[int] = field(default_factory=set)  # of reports that came again
    next_at: float = 0.0

    def add_repeated(self) -> bool:
        """Publish again the tags of reports that came again, unless they are on the page; whether
        there were any."""
        known = np.concatenate([_read(self.shown), _read(self.fresh)])
        missing = np.setdiff1d(np.array(list(self.repeated), dtype=">u4"), known)
        self.repeated.clear()
        self.fresh += missing.astype(">u4").tobytes()
        return bool(missing.size)

    def remove(self, tag: int) -> bool:
        """Whether it was there."""
        self.repeated.discard(tag)
        before = len(self.shown) + len(self.fresh)
        for part in (self.shown, self.fresh):
            tags = _read(part)
            part[:] = tags[tags != tag].tobytes()
        return len(self.shown) + len(self.fresh) < before

    def is_due(self, now: float) -> bool:
        """Sooner than its size allows only if enough is new to be worth the size."""
        return now >= self.next_at or 2 * len(self.fresh) >= PAGE_TAGS * TAG_BYTES

    def turn(self) -> bytes:
        """Show the oldest of what is new, as much as fits; all that is shown now."""
        most = PAGE_TAGS * TAG_BYTES
        new = self.fresh[:most]
        del self.fresh[:most]
        self.shown += new
        del self.shown[:-most]
        # Each once, in order. `np.unique` would load masked arrays in the middle of counting.
        tags = np.sort(_read(self.shown))
        first = np.ones(len(tags), dtype=np.bool_)
        first[1:] = tags[1:] != tags[:-1]
        return tags[first].tobytes()


def _read(joined: bytearray) -> TagArray:
    """A copy: the bytes may be changed while it is in use."""
    return np.frombuffer(bytes(joined), dtype=">u4")


class ReceiptPages:
    """Tags by (campaign, round, page), and which pages the broker has not seen yet."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._pages: defaultdict[PageKey, _Page] = defaultdict(_Page)
        self._new: dict[Round, list[_PagesAndTags]] = {}  # not on their pages yet
        self._changed: dict[PageKey, None] = {}  # those that wait longest first
        self._repeated: set[PageKey] = set()

    def apply(self, batches: Iterable[ReceiptBatch]) -> None:
        """Take what the store has counted, seen again or withdrawn, in order."""
        for batch in batches:
            if batch.kind is ReceiptKind.COUNTED:
                self.add(batch.campaign, batch.round, batch.pages, batch.tags)
                continue
            self._sort_in()
            for page, tag in zip(batch.pages.tolist(), batch.tags.tolist()):
                key = (batch.campaign, batch.round, page)
                if batch.kind is ReceiptKind.REPEATED:
                    self._pages[key].repeated.add(tag)
                    self._repeated.add(key)
                elif key in self._pages and self._pages[key].remove(tag):
                    self._changed[key] = None

    def load(self, campaign: int, number: int, rows: Iterable[tuple[int, int]]) -> None:
        """Rebuild a round's pages: (page, tag) of each report."""
        loaded = np.fromiter(rows, _ROWS)
        self.add(campaign, number, loaded["page"], loaded["tag"])

    def add(self, campaign: int, number: int, pages: npt.ArrayLike, tags: npt.ArrayLike) -> None:
        """Put tags of newly counted reports on their pages.

        They get there when the pages are looked at: all at once is faster.
        """
        new = np.asarray(pages, dtype=np.int64), np.asarray(tags, dtype=np.uint32)
        self._new.setdefault((campaign, number), []).append(new)

    def _sort_in(self) -> None:
        """Put new tags on their pages, in the order in which they came."""
        for (campaign, number), parts in self._new.items():
            pages = np.concatenate([each for each, _ in parts])
            order = np.argsort(pages, kind="stable")
            pages = pages[order]
            joined = np.concatenate([each for _, each in parts])[order]
            tags = joined.astype(">u4").tobytes()
            starts = np.flatnonzero(np.diff(pages, prepend=-1)).tolist()
            for start, end in zip(starts, [*starts[1:], len(pages)]):
                key = (campaign, number, int(pages[start]))
                self._pages[key].fresh += tags[TAG_BYTES * start : TAG_BYTES * end]
                self._changed[key] = None
        self._new.clear()

    def forget(self, campaign: int, number: int) -> None:
        """Drop a round's pages from memory."""
        self._new.pop((campaign, number), None)
        for key in [key for key in self._pages if key[:2] == (campaign, number)]:
            del self._pages[key]
            self._changed.pop(key, None)
            self._repeated.discard(key)

    def publish_again(self) -> None:
        """The broker may have lost them all."""
        self._sort_in()
        for key, page in self._pages.items():
            page.next_at = 0.0
            self._changed[key] = None

    def postpone(self, key: PageKey, until: float) -> None:
        """The broker refused a page: publish it again, but not before then."""
        page = self._pages.get(key)
        if page is not None:
            page.next_at = until
            self._changed[key] = None

    def take(
        self,
        campaigns: Mapping[int, Campaign],
        limit: int,
        now: float = math.inf,
        bytes_per_second: float = math.inf,
    ) -> Iterator[tuple[PageKey, str, bytes]]:
        """Key, topic and bytes of up to `limit` changed pages, those that are due."""
        self._sort_in()
        for key in self._repeated:
            if self._pages[key].add_repeated():
                self._changed[key] = None
        self._repeated.clear()
        due = (key for key in list(self._changed) if self._pages[key].is_due(now))
        for key in islice(due, limit):
            del self._changed[key]
            campaign, page = campaigns.get(key[0]), self._pages[key]
            if campaign is not None:
                tags = page.turn()
                if page.fresh:
                    self._changed[key] = None  # there is more than one page can hold
                message = pack_receipts(digest8(campaign.manifest), *key[1:], tags)
                page.next_at = now + len(message) / bytes_per_second
                yield key, Topics(campaign.name, self.namespace).receipt(*key[1:]), message


class ReceiptPublisher:
    """Publishes changed pages now and then, and clears those that nobody needs any more."""

    def __init__(self, pages: ReceiptPages, store: Store, clock: Clock, timing: Timing) -> None:
        self.pages = pages
        self._store = store
        self._clock = clock
        self._timing = timing
        self._clearer = ReceiptClearer(pages.namespace, store, clock, timing)
        self._refused: list[str] = []
        self._next = 0.0

    def load(self, campaigns: Iterable[Campaign]) -> None:
        """Rebuild the pages of all open rounds from the store, at start."""
        for campaign in campaigns:
            for number in self._store.open_rounds(campaign.id):
                tags = self._store.receipt_tags(campaign.id, number)
                self.pages.load(campaign.id, number, tags)

    def connected(self) -> None:
        """A new connection: the broker may have lost every page, and what the last connection left
        unanswered."""
        self._clearer = ReceiptClearer(self.pages.namespace, self._store, self._clock, self._timing)
        self.pages.publish_again()

    def publish(self, link: Publisher, campaigns: Mapping[int, Campaign]) -> None:
        """Publish what changed, if it is time, as far as publishes may be unanswered; and clear
        some pages of rounds that are over."""
        if self._refused:
            pause = self._timing.refused_pause_seconds
            log.warning(REFUSED, len(self._refused), self._refused[0], pause)
            self._refused.clear()
        self._clearer.clear(link)
        now, rate = self._clock.monotonic(), self._timing.receipt_bytes_per_second
        if now >= self._next:
            self._next = now + self._timing.receipts_every_seconds
            for key, topic, payload in self.pages.take(campaigns, link.free, now, rate):
                link.publish(topic, payload, then=partial(self._answered, key))
        for campaign, number in self._clearer.begin(campaigns.values()):
            self.pages.forget(campaign, number)

    def _answered(self, key: PageKey, refusal: str | None) -> None:
        """A page that the broker refused is published again after a while."""
        if refusal is not None:
            self._refused.append(refusal)
            until = self._clock.monotonic() + self._timing.refused_pause_seconds
            self.pages.postpone(key, until)


# --- clearing -----------------------------------------------------------------------------------

AT_ONCE: Final = 100  # rounds


@dataclass(slots=True)
class _Clearing:
    """A round whose pages are being cleared: which come next, and how many are unanswered."""

    campaign: Campaign
    number: int
    next_page: int = 0
    refused: list[int] = field(default_factory=list)
    unanswered: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the broker has taken every page."""
        left = self.campaign.manifest.receipt_pages - self.next_page
        return not (left or self.refused or self.unanswered)

    def pages(self, limit: int) -> list[int]:
        """Up to `limit` pages, those first that were refused before."""
        again, self.refused = self.refused[:limit], self.refused[limit:]
        first = self.next_page
        end = first + limit - len(again)
        self.next_page = min(end, self.campaign.manifest.receipt_pages)
        return [*again, *range(first, self.next_page)]


class ReceiptClearer:
    """Clears the pages of rounds that are over, the oldest first, a few at a time (A5).

    A round may have 65,536 pages, and a broker takes a hundred publishes at once: handed over
    together they would fill memory, and reuse packet numbers that are still unanswered. A page that
    the broker refused is tried again. A round is marked as cleared when the broker has taken all of
    it; after a lost connection or a restart before that, all of it is cleared again.
    """

    def __init__(self, namespace: str, store: Store, clock: Clock, timing: Timing) -> None:
        self._namespace = namespace
        self._store = store
        self._clock = clock
        self._timing = timing
        self._rounds: dict[Round, _Clearing] = {}
        self._paused_until = 0.0

    def begin(self, campaigns: Iterable[Campaign]) -> Iterator[Round]:
        """Record which rounds are cleared, and return those that are to be cleared from now on: a
        round's pages stay one period beyond its deadline, for devices that were asleep."""
        for key, each in list(self._rounds.items()):
            if each.is_done:
                self._store.mark_receipts_cleared(*key)
                del self._rounds[key]
        over = (
            (campaign, number)
            for campaign in campaigns
            for number in self._store.clearable_receipts(campaign.id)
            if campaign.manifest.rounds.deadline(number) + campaign.manifest.rounds.period
            <= self._clock.now()
        )
        for campaign, number in islice(over, AT_ONCE):
            if (campaign.id, number) not in self._rounds:
                self._rounds[campaign.id, number] = _Clearing(campaign, number)
                yield campaign.id, number

    def clear(self, link: Publisher) -> None:
        """Clear some pages: half as many as publishes may be unanswered, since others have to
        publish as well."""
        if self._clock.monotonic() < self._paused_until:
            return
        for each in self._rounds.values():
            topics = Topics(each.campaign.name, self._namespace)
            for page in each.pages((link.free + 1) // 2):
                each.unanswered += 1
                then = partial(self._answered, each, page)
                link.publish(topics.receipt(each.number, page), b"", then=then)

    def _answered(self, clearing: _Clearing, page: int, refusal: str | None) -> None:
        clearing.unanswered -= 1
        if refusal is not None:
            clearing.refused.append(page)
            self._paused_until = self._clock.monotonic() + self._timing.refused_pause_seconds
