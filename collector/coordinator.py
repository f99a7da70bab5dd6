"""What the collector tells devices, and when rounds end: everything but reading and counting.

One worker alone does it on the link that brings its reports; of several, the one that leads does,
on a link of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from collector.health import SHOWN, Status, Waiting
from collector.ingest.receipts import ReceiptPages, ReceiptPublisher
from collector.links import Link, Will
from collector.records import Campaign
from collector.register import CampaignCache, Change
from collector.rounds.publishing import Announcer, ResultPublisher
from collector.rounds.sealing import Proof, Sealer, drop_unreleased, end_retention
from collector.store import Store
from collector.timing import Clock, ClockWatch, Timing
from protocol_spec import Presence, Result

Emit = Callable[[Campaign, Result], None]
Trace = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Context:
    """What the rooms of a coordinator have in common."""

    store: Store
    register: CampaignCache
    namespace: str
    home_assistant: str | None
    clock: Clock
    timing: Timing
    emit: Emit
    trace: Trace


class Coordinator:
    """Announces campaigns, seals rounds, and publishes receipts and results."""

    def __init__(
        self, around: Context, pages: ReceiptPages, drain: Proof, watch: ClockWatch
    ) -> None:
        store, clock, timing = around.store, around.clock, around.timing
        self._store = store
        self._clock = clock
        self._register = around.register
        self._watch = watch
        self._receipts = ReceiptPublisher(pages, store, clock, timing)
        self._announcer = Announcer(store, around.namespace, around.home_assistant)
        self._results = ResultPublisher(store, around.namespace, clock, timing)
        self._sealer = Sealer(
            store, drain, watch, self._announcer, clock, timing, around.emit, around.trace
        )

    def load(self) -> None:
        """Rebuild the pages of all open rounds from the store."""
        self._receipts.load(self._register.campaigns.values())

    def will(self) -> Will | None:
        """What the broker says when we are gone without a goodbye."""
        return self._announcer.will(self._register.open.values())

    def connected(self, link: Link) -> None:
        """A new connection: the broker may have forgotten everything."""
        self._announcer.connected()
        for campaign in self._register.campaigns.values():
            if campaign.closed is None:
                self._announcer.announce(link, campaign)
            else:  # perhaps closed while nobody could be told
                self._announcer.withdraw(link, campaign)
        self._receipts.connected()
        self._results.connected(link)

    def changed(self, link: Link, change: Change) -> None:
        """Campaigns were opened or closed."""
        for campaign in change.opened:
            self._announcer.announce(link, campaign)
        for campaign in change.closed:
            self._announcer.withdraw(link, campaign)

    def goodbye(self, link: Link) -> None:
        """Say that nobody collects."""
        for campaign in self._register.open.values():
            self._announcer.publish_state(link, campaign, Presence.OFFLINE)

    def answered(self, answers: Mapping[int, str | None]) -> None:
        """What the broker says to publishes. Those of markers are no proof of anything."""
        if answers:
            self._results.answered(answers)
            self._receipts.answered(answers)
            self._announcer.answered(answers)

    def clear(self, link: Link) -> None:
        """Clear some pages that nobody needs any more."""
        self._receipts.clear(link)

    def seal(self, link: Link | None, status: Status) -> dict[int, Waiting]:
        """Seal what is due; the campaigns of which a due round is still open."""
        waiting = self._sealer.seal_due(link, self._register.campaigns.values())
        self._register.waiting(waiting.keys())
        campaigns = self._register.campaigns
        named = ((campaigns[which].name, rest) for which, rest in waiting.items())
        status.waiting = dict(islice(named, SHOWN))
        status.clock = self._watch.hint(status)
        return waiting

    def publish(self, link: Link) -> None:
        """Publish receipts and results, as far as publishes may be unanswered."""
        self._results.publish(link, self._register.campaigns)
        self._receipts.publish(link, self._register.campaigns)
        self._receipts.forget_old(self._register.campaigns.values())

    def tidy(self, waiting: Mapping[int, Waiting]) -> None:
        """Delete what is no longer needed of campaigns that wait for nothing."""
        final = [c for c in self._register.campaigns.values() if c.id not in waiting]
        drop_unreleased(self._store, final, self._clock.now())
        end_retention(self._store, final, self._clock.now())
