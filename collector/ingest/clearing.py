"""Receipt pages that nobody needs any more are taken off the broker, a few at a time.

A round may have 65,536 pages, and a broker takes a hundred publishes at once: handed over together
they would fill memory, and repeat packet numbers whose answers are still owed. So pages are cleared
as far as publishes may be unanswered, and one that the broker refused is tried again. A round is
marked as cleared when the broker has taken all of it; whatever happens before that, a lost
connection or a restart, all of it is cleared again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from collector.mqtt import Link
from collector.records import Campaign
from collector.store import Store
from collector.timing import Clock, Timing
from protocol_spec import Topics

AT_ONCE: Final = 100  # rounds


@dataclass(slots=True)
class _Round:
    """A round whose pages are being cleared: which come next, and which are unanswered."""

    campaign: Campaign
    number: int
    next_page: int = 0
    refused: list[int] = field(default_factory=list)
    unanswered: dict[int, int] = field(default_factory=dict)  # publish: page

    @property
    def is_done(self) -> bool:
        """Whether the broker has taken every page."""
        return not (self._left or self.refused or self.unanswered)

    @property
    def _left(self) -> int:
        return self.campaign.manifest.receipt_pages - self.next_page

    def pages(self, limit: int) -> list[int]:
        """Up to so many pages, those first that were refused before."""
        again, self.refused = self.refused[:limit], self.refused[limit:]
        first = self.next_page
        self.next_page += min(self._left, limit - len(again))
        return [*again, *range(first, self.next_page)]

    def take(self, answers: Mapping[int, str | None]) -> bool:
        """Note the broker's answers; whether it refused a page."""
        of_ours = self.unanswered.keys() & answers.keys()
        pages = {sent: self.unanswered.pop(sent) for sent in of_ours}
        refused = [page for sent, page in pages.items() if answers[sent] is not None]
        self.refused += refused
        return bool(refused)


class ReceiptClearer:
    """Clears the pages of rounds that are over, the oldest first."""

    def __init__(self, namespace: str, store: Store, clock: Clock, timing: Timing) -> None:
        self._namespace = namespace
        self._store = store
        self._clock = clock
        self._timing = timing
        self._rounds: dict[tuple[int, int], _Round] = {}
        self._paused_until = 0.0

    def connected(self) -> None:
        """A new connection: what the last one left unanswered may not have arrived."""
        self._rounds.clear()
        self._paused_until = 0.0

    def begin(self, campaigns: Iterable[Campaign]) -> Iterator[tuple[int, int]]:
        """Campaign and number of each round that is to be cleared from now on: a round's pages
        stand one period beyond its deadline, for devices that were asleep."""
        for campaign, number in islice(self._over(campaigns), AT_ONCE):
            if (campaign.id, number) not in self._rounds:
                self._rounds[campaign.id, number] = _Round(campaign, number)
                yield campaign.id, number

    def clear(self, link: Link) -> None:
        """Clear some pages: as far as publishes may be unanswered, and half of that, since others
        have to publish as well."""
        if self._clock.monotonic() < self._paused_until:
            return
        for each in self._rounds.values():
            topics = Topics(each.campaign.name, self._namespace)
            for page in each.pages((link.free + 1) // 2):
                sent = link.publish(topics.receipt(each.number, page), b"")
                each.unanswered[sent] = page

    def answered(self, answers: Mapping[int, str | None]) -> None:
        """Take the broker's answers, of which some may be to other publishes."""
        for each in self._rounds.values():
            if each.take(answers):
                pause = self._timing.refused_pause_seconds
                self._paused_until = self._clock.monotonic() + pause

    def finish(self) -> None:
        """Write down which rounds are cleared."""
        for place, each in list(self._rounds.items()):
            if each.is_done:
                self._store.mark_receipts_cleared(*place)
                del self._rounds[place]

    def _over(self, campaigns: Iterable[Campaign]) -> Iterator[tuple[Campaign, int]]:
        for campaign in campaigns:
            schedule = campaign.manifest.rounds
            for number in self._store.clearable_receipts(campaign.id):
                if schedule.deadline(number) + schedule.period <= self._clock.now():
                    yield campaign, number
