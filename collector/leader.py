"""The worker that leads: it alone fences, seals and publishes, while its lease lasts (W5).

Several workers contend for the lease. Whoever has it publishes on a connection of its own, under a
name that all share, so that the broker ends the connection of a leader that was replaced. A worker
alone is a leader whom nobody contests, and publishes on the connection that brings its reports.

A round is sealed when every live worker has committed all that the broker took for it before the
round was due; a silent worker is fenced first, and then commits nothing more (W6).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from collector.health import SHOWN, Status, Waiting
from collector.ingest.admit import OpenCampaigns
from collector.ingest.receipts import ReceiptPublisher
from collector.links import BrokerWatch, Link, Links, Publisher, Reconnector, Will
from collector.records import Campaign
from collector.rounds.publishing import Announcer, ResultPublisher
from collector.rounds.sealing import Drain, delete_expired, due, seal
from collector.store import Store
from collector.timing import DEFAULT_TIMING, SYSTEM_CLOCK, Clock, ClockWatch, StoreTime, Timing
from protocol_spec import DEFAULT_NAMESPACE, Presence, Result

log = logging.getLogger("allomfree.collector")

FENCED: Final = (
    "worker %d (%s) was silent for more than %.0f s and is fenced: what it had not committed is "
    "delivered to others, or sent again by devices. It takes part again when it is back"
)
UNPROVEN: Final = (
    "%s: round %d sealed without proof that the broker holds no more of it: no marker came back in "
    "%d s. What was counted stands; reports that still come are late. Check whether the broker is "
    "overloaded, or refuses the collector's markers (allomfree-collector doctor)"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a service may be given besides store, key and connections."""

    name: str = ""  # of this worker's machine, for the others
    namespace: str = DEFAULT_NAMESPACE
    home_assistant: str | None = None  # prefix of its discovery topics
    clock_dir: Path | None = None  # where the farthest time of the clock is kept
    clock: Clock = SYSTEM_CLOCK
    timing: Timing = DEFAULT_TIMING
    emit: Callable[[Campaign, Result], None] = lambda _campaign, _result: None  # sealed results
    trace: Callable[[str], None] = sys.audit  # points where a hook may stop the process


# --- which campaigns there are ------------------------------------------------------------------


class CampaignCache:
    """All campaigns of a store, and those that reports are still taken for."""

    def __init__(self, store: Store, admitted: OpenCampaigns) -> None:
        self.all: dict[int, Campaign] = {}
        self.open: dict[str, Campaign] = {}
        self.admitted = admitted
        self._store = store
        self._closing: Set[int] = frozenset()
        self._version: int | None = None

    def refresh(self, now: float) -> tuple[list[Campaign], list[Campaign]] | None:
        """Campaigns that another process opened and closed; None if it changed nothing."""
        version = self._store.changed_elsewhere()
        if version == self._version:
            return None
        self._version = version
        self.all = {c.id: c for c in self._store.campaigns()}
        before = self.open
        self.open = {c.name: c for c in self.all.values() if c.closed is None}
        closed = [c for c in self.all.values() if c.closed is not None]
        closing = {c.id for c in closed if next(due(self._store, c, now), None) is not None}
        self._admit(closing, self._store.revoked())
        opened = [self.open[name] for name in self.open.keys() - before.keys()]
        return opened, [before[name] for name in before.keys() - self.open.keys()]

    def set_waiting(self, waiting: Set[int]) -> None:
        """Only these campaigns have a round that is due and not sealed."""
        if not self._closing <= waiting:
            self._admit(self._closing & waiting, self.admitted.revoked)

    def _admit(self, closing: Set[int], revoked: frozenset[str]) -> None:
        """Take reports for open campaigns, and for closed ones until their rounds are sealed: the
        broker may hold what was sent before the closing."""
        self._closing = closing
        still = {c.name: c for c in self.all.values() if c.id in closing}
        taken = self.open | still
        grouped = {c.id: c.manifest.groups for c in taken.values() if c.manifest.groups}
        labelled = {key: self._store.labelled(groups.label) for key, groups in grouped.items()}
        self.admitted = replace(self.admitted, by_name=taken, revoked=revoked, labelled=labelled)


# --- leading ------------------------------------------------------------------------------------


class Leader:
    """Leads if it can, and knows when it no longer does."""

    def __init__(
        self,
        store: Store,
        links: Links,
        campaigns: CampaignCache,
        time: StoreTime,
        watch: ClockWatch,
        status: Status,
        options: Options,
    ) -> None:
        self._store = store
        self._campaigns = campaigns
        self._watch = watch
        self._status = status
        self._options = options
        self._timing = options.timing
        self._clock = time.clock()
        self._alone = links.alone
        self.drain = Drain(
            time.moment, self._clock, self._timing, drained_is_global=links.drained_is_global
        )
        publisher = links.publisher
        self._publisher: Reconnector[Link] | None = None
        if publisher is not None:  # no last will: another worker may lead by then
            self._publisher = Reconnector(lambda: publisher(None), self._clock, self._timing)
        self._link: Publisher | None = None
        self._broker = BrokerWatch(
            options.namespace, self._clock, self._timing, links.restart_broker
        )
        self._stuck = ""
        self._epoch: int | None = None
        self._until = self._next_renewal = 0.0
        self._answers: set[int] = set()  # queued answers that were published
        self._delivered: list[int] = []
        self._forget_published()

    def _forget_published(self) -> None:
        store, options, clock = self._store, self._options, self._clock
        self._receipts = ReceiptPublisher(options.namespace, store, clock, self._timing)
        self._announcer = Announcer(store, options.namespace, options.home_assistant)
        self._results = ResultPublisher(store, options.namespace, clock, self._timing)

    @property
    def leads(self) -> bool:
        """Whether the lease is ours and lasts, by a clock that no pause can stop."""
        return self._epoch is not None and self._clock.boottime() < self._until

    @property
    def trouble(self) -> str:
        """What keeps it from publishing."""
        unconnected = "" if self._publisher is None else self._publisher.trouble
        return unconnected or self._stuck

    def turn(self) -> None:
        """Take or keep the lease if it is time, and serve the leader's own connection."""
        if self._clock.boottime() >= self._next_renewal:
            self._renew()
        if not self.leads:
            return
        self._serve()
        if self._link is not None:
            self._receipts.publish(self._link, self._campaigns.all)

    def _serve(self) -> None:
        """The leader's own connection, if it has one."""
        if self._publisher is None:
            return
        made = self._publisher.attempt()
        if made is not None:
            self.connected(made)
        link = self._publisher.current
        if link is not None:
            link.step(0.0)
            self.take_answers()
            if link.lost:
                self._publisher.ended(link.lost)
                self.disconnected()

    def _renew(self) -> None:
        before, lease = self._clock.boottime(), self._timing.lease_seconds
        epoch = self._store.lead(lease)
        self._next_renewal = before + lease / 4
        if epoch is None:
            if self._epoch is not None:
                self.step_down()
            return
        # A little less than what was given: the clocks here and there may differ in rate.
        self._until = before + 0.9 * lease
        if epoch != self._epoch:
            self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        """A new lease: nothing that was known of pages or rounds holds."""
        if not self._alone:
            log.info("this worker leads now")
            self._status.leads = True
        if self._publisher is not None:
            self._publisher.drop()
            self._link = None
        self._epoch = epoch
        self._forget_published()
        self._store.fresh_receipts()  # what is older is in the rounds themselves
        self._receipts.load(self._campaigns.all.values())
        self.drain.begin()
        if self._link is not None:
            self.connected(self._link.link)

    def step_down(self) -> None:
        """Publish no more: another worker does, or this one does again with a new lease."""
        if self._epoch is not None and not self._alone:
            log.info("another worker leads")
        self._epoch = None
        self._status.leads = False
        self._status.waiting = {}
        self._stuck = ""
        if self._publisher is not None:
            self._publisher.drop()
            self._link = None

    def close(self, *, last: bool) -> None:
        """Publish that nobody collects, if nobody else does, and disconnect."""
        if last and self.leads and self._link is not None:
            for campaign in self._campaigns.open.values():
                self._announcer.publish_state(self._link, campaign, Presence.OFFLINE)
        if self._publisher is not None:
            self._publisher.drop()
        self._link = None

    # --- its connection ------------------------------------------------------------------------

    def will(self) -> Will | None:
        """What the broker publishes if a worker alone disappears."""
        return self._announcer.will(self._campaigns.open.values())

    def connected(self, link: Link) -> None:
        """A new connection: the broker may have forgotten everything."""
        self._link = Publisher(link)
        self._answers.clear()
        self._broker.connected()
        for campaign in self._campaigns.all.values():
            if campaign.closed is None:
                self._announcer.announce(self._link, campaign)
            else:  # perhaps closed while no broker could be reached
                self._announcer.withdraw(self._link, campaign)
        self._receipts.connected()
        self._results.connected(link)
        if self._alone:
            self.drain.begin()

    def disconnected(self) -> None:
        self._link = None

    def take_answers(self) -> None:
        """Take the broker's answers to publishes."""
        if self._link is not None:
            self._link.take_answers()
        if self._delivered:
            self._store.drop_answers(self._delivered)
            self._answers.difference_update(self._delivered)
            self._delivered = []

    def changed(self, opened: Iterable[Campaign], closed: Iterable[Campaign]) -> None:
        if self.leads and self._link is not None:
            for campaign in opened:
                self._announcer.announce(self._link, campaign)
            for campaign in closed:
                self._announcer.withdraw(self._link, campaign)

    # --- what only a leader does ---------------------------------------------------------------

    def upkeep(self) -> None:
        """Fence silent workers, seal what is due, publish what is new, delete what is over."""
        if not self.leads:
            return
        for worker in self._store.fence(self._timing.fence_seconds):
            log.warning(FENCED, worker.number, worker.name, self._timing.fence_seconds)
        self.drain.update(self._store.workers())
        self._receipts.pages.apply(self._store.fresh_receipts())
        waiting = self._seal_due()
        link = self._link
        if link is not None and self.leads:
            self.answer_requests()
            self._results.publish(link, self._campaigns.all)
            self._receipts.upkeep(self._campaigns.all.values())
            self._stuck = self._broker.tick(link.link)
        final = [c for c in self._campaigns.all.values() if c.id not in waiting]
        delete_expired(self._store, final, self._clock.now())

    def answer_requests(self) -> None:
        """Answer devices that asked to be forgotten, whichever worker received the request, as far
        as publishes may be unanswered."""
        link = self._link
        if link is None or not self.leads:
            return
        for queued in self._store.queued_answers(link.free + len(self._answers)):
            if queued.number not in self._answers and link.free:
                self._answers.add(queued.number)
                then = partial(self._answer_delivered, queued.number)
                link.publish(queued.topic, queued.payload, retain=False, then=then)

    def _answer_delivered(self, number: int, _refusal: str | None) -> None:
        self._delivered.append(number)

    def _seal_due(self) -> Mapping[int, Waiting]:
        """Seal what can be sealed, in order; the campaigns with a due round that is still open.

        Without a link nothing is sealed: the broker may have reports that were sent in time.
        """
        now, end = self._clock.now(), self._clock.monotonic() + self._timing.sealing_longest_seconds
        campaigns = self._campaigns.all
        rounds = {c.id: list(due(self._store, c, now)) for c in campaigns.values()}
        self.drain.expect((c, number) for c, numbers in rounds.items() for number in numbers)
        waiting = {}
        for campaign in campaigns.values():
            for number in rounds[campaign.id]:
                late = self._clock.monotonic() > end
                if self._link is None or late or not self._may_seal(campaign, number):
                    waiting[campaign.id] = self._waiting(campaign, number)
                    break
                self._seal(self._link, campaign, number)
        self._campaigns.set_waiting(waiting.keys())
        named = ((campaigns[which].name, each) for which, each in waiting.items())
        self._status.waiting = dict(islice(named, SHOWN))
        return waiting

    def _may_seal(self, campaign: Campaign, number: int) -> bool:
        """Drained, by a clock that can be trusted; or waited for as long as the manifest says."""
        rounds = campaign.manifest.rounds
        if self.drain.seconds_left((campaign.id, number), rounds.drain) == 0.0:
            return True
        doubted = campaign.closed is None and self._watch.doubts(rounds.deadline(number))
        return self.drain.is_drained((campaign.id, number)) and not doubted

    def _waiting(self, campaign: Campaign, number: int) -> Waiting:
        this = (campaign.id, number)
        left = self.drain.seconds_left(this, campaign.manifest.rounds.drain)
        until = None if self._link is None else self._clock.now() + left
        why = "the clock was set ahead, and nothing confirms it"
        if not self.drain.is_drained(this):
            why = self.drain.why(alone=self._alone)
        return {"round": number, "until": until, "why": why}

    def _seal(self, link: Publisher, campaign: Campaign, number: int) -> None:
        self._options.trace("sealing")
        results = seal(self._store, campaign, number, int(self._clock.now()))
        if not self.drain.is_drained((campaign.id, number)):
            log.warning(UNPROVEN, campaign.name, number, campaign.manifest.rounds.drain)
            last = {**self._status.unproven, campaign.name: number}
            self._status.unproven = dict(list(last.items())[-SHOWN:])
        self._options.trace("sealed")
        for result in results:
            self._options.emit(campaign, result)
        reports = sum(tally.n for tally in self._store.tallies(campaign.id, number).values())
        log.info("%s: round %d sealed with %d reports", campaign.name, number, reports)
        if campaign.closed is None:
            self._announcer.publish_state(link, campaign, Presence.ONLINE)
