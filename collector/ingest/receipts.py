"""Receipts: which reports are durably counted, published for devices on retained pages.

Claims:
  I6  a page is published only from what the store has committed
  F5  a page never has more than `PAGE_TAGS` tags, however many devices share it. The newest stay;
      every tag is published at least once, and one that had to leave comes back when its device
      sends its report again, because it has not seen it
  A7  a page is published only if it changed, or on a new connection, because a broker may have
      forgotten it; and not more often than every `Timing.receipts_every_seconds`

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

PageKey = tuple[int, int, int]  # campaign, round, page
TagArray = npt.NDArray[np.uint32]

_ROWS: Final = np.dtype([("page", np.uint32), ("tag", np.uint32)])
_PAGE_BYTES: Final = PAGE_TAGS * TAG_BYTES

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
    next_at: float = 0.0

    def change(self, kind: ReceiptKind, tags: TagArray) -> bool:
        """Take the tags of reports that were counted, came again or were withdrawn; whether the
        page has to be published."""
        if kind is ReceiptKind.COUNTED:
            self.fresh += tags.tobytes()
            return True
        if kind is ReceiptKind.REPEATED:
            missing = tags[~np.isin(tags, _read(self.shown + self.fresh))]
            self.fresh += missing.tobytes()
            return bool(missing.size)
        before = len(self.shown) + len(self.fresh)
        for part in (self.shown, self.fresh):
            known = _read(part)
            part[:] = known[~np.isin(known, tags)].tobytes()
        return len(self.shown) + len(self.fresh) < before

    def turn(self) -> bytes:
        """Show the oldest of what is new, as much as fits; all that is shown now."""
        self.shown += self.fresh[:_PAGE_BYTES]
        del self.fresh[:_PAGE_BYTES]
        del self.shown[:-_PAGE_BYTES]
        # Each once, in order. `np.unique` would load masked arrays in the middle of counting.
        tags = np.sort(_read(self.shown))
        first = np.ones(len(tags), dtype=np.bool_)
        first[1:] = tags[1:] != tags[:-1]
        return tags[first].tobytes()


def _read(joined: bytearray) -> TagArray:
    """A copy: the bytes may be changed while it is in use."""
    return np.frombuffer(bytes(joined), dtype=">u4")


def _by_page(pages: npt.ArrayLike, tags: npt.ArrayLike) -> Iterator[tuple[int, TagArray]]:
    """Each page with its tags, in the order in which they came."""
    places = np.asarray(pages, dtype=np.int64)
    order = np.argsort(places, kind="stable")
    places, ordered = places[order], np.asarray(tags, dtype=">u4")[order]
    starts = np.flatnonzero(np.diff(places, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(places)]):
        yield int(places[start]), ordered[start:end]


class ReceiptPages:
    """Tags by (campaign, round, page), and which pages the broker has not seen yet."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._pages: defaultdict[PageKey, _Page] = defaultdict(_Page)
        self._changed: dict[PageKey, None] = {}  # those that wait longest first

    def apply(self, batches: Iterable[ReceiptBatch]) -> None:
        """Take what the store has counted, seen again or withdrawn, in order."""
        for batch in batches:
            for page, tags in _by_page(batch.pages, batch.tags):
                key = (batch.campaign, batch.round, page)
                if self._pages[key].change(batch.kind, tags):
                    self._changed[key] = None

    def load(self, campaign: int, number: int, rows: Iterable[tuple[int, int]]) -> None:
        """Rebuild a round's pages: (page, tag) of each report."""
        loaded = np.fromiter(rows, _ROWS)
        kind = ReceiptKind.COUNTED
        self.apply([ReceiptBatch(kind, campaign, number, loaded["page"], loaded["tag"])])

    def forget(self, campaign: int, number: int) -> None:
        """Drop a round's pages from memory."""
        for key in [key for key in self._pages if key[:2] == (campaign, number)]:
            del self._pages[key]
            self._changed.pop(key, None)

    def publish_again(self) -> None:
        """The broker may have lost them all."""
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
        self, campaigns: Mapping[int, Campaign], limit: int, now: float, next_at: float
    ) -> Iterator[tuple[PageKey, str, bytes]]:
        """Key, topic and bytes of up to `limit` changed pages that are due now; each is due again
        at `next_at`."""
        due = (key for key in list(self._changed) if self._pages[key].next_at <= now)
        for key in islice(due, limit):
            del self._changed[key]
            campaign, page = campaigns.get(key[0]), self._pages[key]
            if campaign is not None:
                tags, page.next_at = page.turn(), next_at
                if page.fresh:
                    self._changed[key] = None  # there is more than one page can hold
                message = pack_receipts(digest8(campaign.manifest), *key[1:], tags)
                yield key, Topics(campaign.name, self.namespace).receipt(*key[1:]), message


# --- publishing and clearing ----------------------------------------------------------------------


@dataclass(slots=True)
class _Clearing:
    """A round whose pages are being cleared: which are left, and how many are unanswered."""

    campaign: Campaign
    number: int
    left: list[int]
    unanswered: int = 0
    paused_until: float = -math.inf


class ReceiptPublisher:
    """Publishes pages that changed, and clears those of rounds that are over (A5).

    A round may have 65,536 pages, and a broker takes a hundred publishes at once. So rounds are
    cleared one at a time, and their pages a few at a time; a page that the broker refused is tried
    again. A round is marked as cleared when the broker has taken all of it; after a lost connection
    or a restart before that, all of it is cleared again.
    """

    def __init__(self, namespace: str, store: Store, clock: Clock, timing: Timing) -> None:
        self.pages = ReceiptPages(namespace)
        self._store = store
        self._clock = clock
        self._timing = timing
        self._refused: list[str] = []
        self._clearing: _Clearing | None = None

    def load(self, campaigns: Iterable[Campaign]) -> None:
        """Rebuild the pages of all open rounds from the store, at start."""
        for campaign in campaigns:
            for number in self._store.open_rounds(campaign.id):
                tags = self._store.receipt_tags(campaign.id, number)
                self.pages.load(campaign.id, number, tags)

    def connected(self) -> None:
        """A new connection: the broker may have lost every page, and what the last connection left
        unanswered."""
        self._clearing = None
        self.pages.publish_again()

    def publish(self, link: Publisher, campaigns: Mapping[int, Campaign]) -> None:
        """Clear and publish what is due, as far as publishes may be unanswered: half of them are
        for clearing at most."""
        now, clearing = self._clock.monotonic(), self._clearing
        if clearing is not None and now >= clearing.paused_until:
            self._clear(link, clearing)
        next_at = now + self._timing.receipts_every_seconds
        for key, topic, payload in self.pages.take(campaigns, link.free, now, next_at):
            link.publish(topic, payload, then=partial(self._answered, key))

    def _answered(self, key: PageKey, refusal: str | None) -> None:
        """A page that the broker refused is published again after a while."""
        if refusal is not None:
            self._refused.append(refusal)
            self.pages.postpone(key, self._later())

    def upkeep(self, campaigns: Iterable[Campaign]) -> None:
        """Report pages that were refused; choose the round to clear."""
        if self._refused:
            pause = self._timing.refused_pause_seconds
            log.warning(REFUSED, len(self._refused), self._refused[0], pause)
            self._refused.clear()
        done = self._clearing
        if done is not None and not (done.left or done.unanswered):
            self._store.mark_receipts_cleared(done.campaign.id, done.number)
            self._clearing = None
        if self._clearing is None and (over := next(self._over(campaigns), None)) is not None:
            self._clearing = over
            self.pages.forget(over.campaign.id, over.number)

    def _over(self, campaigns: Iterable[Campaign]) -> Iterator[_Clearing]:
        """A round's pages stay one period beyond its deadline, for devices that were asleep."""
        now = self._clock.now()
        for campaign in campaigns:
            rounds, pages = campaign.manifest.rounds, range(campaign.manifest.receipt_pages)
            for number in self._store.clearable_receipts(campaign.id):
                if rounds.deadline(number) + rounds.period <= now:
                    yield _Clearing(campaign, number, list(pages))

    def _clear(self, link: Publisher, clearing: _Clearing) -> None:
        topics = Topics(clearing.campaign.name, self.pages.namespace)
        for _ in range(min(len(clearing.left), (link.free + 1) // 2)):
            page = clearing.left.pop()
            clearing.unanswered += 1
            then = partial(self._cleared, clearing, page)
            link.publish(topics.receipt(clearing.number, page), b"", then=then)

    def _cleared(self, clearing: _Clearing, page: int, refusal: str | None) -> None:
        clearing.unanswered -= 1
        if refusal is not None:
            clearing.left.append(page)
            clearing.paused_until = self._later()

    def _later(self) -> float:
        return self._clock.monotonic() + self._timing.refused_pause_seconds
