"""Delivery of stored reports: each is sent until a receipt says that it was counted.

Claims: what is in the outbox is sent, the same bytes each time, after every reconnect and with
growing pauses, until a receipt, its deadline, or the end of the campaign; at most a window of
reports is unacknowledged at once (R16). Nothing that arrives can cause a draw: a receipt, a
deadline or the campaign's end only lets a row leave the outbox; anything else that arrives changes
nothing (I5, I16). A receipt page is read only when a report may be on it, and at most twice for a
report that the collector counts at once: links may be metered (A7).

Everything happens in the caller's thread. Time that decides *whether* comes from the wall clock;
time that only spaces retries comes from the boot-time one.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from edge_client.agent import Agent
from edge_client.clock import Clock
from edge_client.errors import BrokerUnreachable, StorageFailure
from edge_client.link import Connector, Link
from edge_client.records import Fate, Membership, Queued, Timing, Trace
from edge_client.status import Problem
from edge_client.store import Store
from protocol_spec import (
    Entropy,
    Presence,
    Rejected,
    State,
    decode_receipts,
    decode_state,
    digest8,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.backoff import Backoff, backoff_pause
from protocol_spec.programs.mqtt import Version
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import parse_broker

log = logging.getLogger("allomfree.edge")

FIRST_PAGES: Final = 2  # to be read when a report was sent for the first time; later, one each time
ANSWER_SECONDS: Final = 10.0  # that an acknowledgement or a receipt page is waited for


@dataclass(slots=True)
class Outgoing:
    """A queued report, when to send it next, and when to look for its receipt, by the boot-time
    clock."""

    row: Queued
    topic: str
    receipt_topic: str
    tag: bytes
    attempts: int = 0
    next_try: float = 0.0
    look_at: float = math.inf  # soon after the broker has it
    wait_until: float = 0.0  # for the broker's answer, then for the page
    pages_left: int = 0

    def sent(self, now: float, pause: float) -> None:
        self.next_try, self.look_at, self.wait_until = now + pause, math.inf, now + ANSWER_SECONDS
        self.pages_left = 1 if self.attempts else FIRST_PAGES
        self.attempts += 1

    def acknowledged(self, look_at: float) -> None:
        """The broker has it; the collector's next page should show it."""
        self.look_at, self.wait_until = look_at, math.inf

    def reads(self, now: float) -> bool:
        """Whether its receipt page is worth reading now. It is waited for from the first time on,
        which may be long after `look_at` on a device that was asleep."""
        if self.look_at > now:
            return False
        self.wait_until = min(self.wait_until, now + ANSWER_SECONDS)
        return self.is_expected(now)

    def is_expected(self, now: float) -> bool:
        """Whether an answer or a receipt may come soon."""
        return now < self.wait_until and self.pages_left > 0

    def read(self, tags: Collection[bytes]) -> bool:
        """Whether its receipt is on a page that came."""
        self.pages_left = 0 if self.tag in tags else self.pages_left - 1
        return self.tag in tags


@dataclass(slots=True)
class CampaignQueue:
    """The queued reports of one campaign, and what became of them."""

    membership: Membership
    trace: Trace
    reports: dict[int, Outgoing] = field(default_factory=dict)
    state: State | None = None  # what the collector last said of itself: a hint, nothing more
    fates: dict[int, Fate] = field(default_factory=dict)  # known, but not stored yet

    @property
    def name(self) -> str:
        return self.membership.name

    def topics(self, now: float) -> Iterator[str]:
        """What to be subscribed to now: the campaign's state, and pages that may have receipts."""
        yield self.membership.topics.state
        for report in self.reports.values():
            if report.reads(now):
                yield report.receipt_topic

    def add(self, row: Queued) -> None:
        """A report that is in the outbox; one that is known keeps its progress."""
        if row.round not in self.reports:
            manifest, device = self.membership.manifest, self.membership.device
            topics, page = self.membership.topics, receipt_page(manifest, device)
            self.reports[row.round] = Outgoing(
                row,
                topics.report(device),
                topics.receipt(row.round, page),
                receipt_tag(manifest, row.round, device),
            )

    def follow(self, rows: list[Queued]) -> None:
        """Hold exactly what is queued in the store: the owner may have withdrawn the rest."""
        rounds = {row.round for row in rows}
        self.reports = {n: report for n, report in self.reports.items() if n in rounds}
        for row in rows:
            self.add(row)

    def expire(self, now: float) -> None:
        """Give up what can no longer be counted."""
        for number, report in self.reports.items():
            if now >= report.row.deadline and number not in self.fates:
                self.fates[number] = "missed"
                log.warning("%s: round %d was not counted in time", self.name, number)

    def settle(self, store: Store) -> None:
        """Store the fates. Raises `StorageFailure`; then the rows stay and are tried again."""
        if self.fates:
            store.finish(self.name, self.fates)
            for number in self.fates:
                self.reports.pop(number, None)
            self.fates = {}

    @property
    def is_closed(self) -> bool:
        """Whether the collector has closed the campaign."""
        return self.state is not None and self.state.presence is Presence.CLOSED

    def handle(self, topic: str, payload: bytes, now: float) -> None:
        """Note what the collector says of itself, or a receipt."""
        topics, digest = self.membership.topics, digest8(self.membership.manifest)
        if topic == topics.state:
            state = decode_state(payload)
            if isinstance(state, Rejected) or state.digest8 != digest:
                return
            self.state = state
            if self.is_closed:  # what it counted before is on a page by now
                for report in self.reports.values():
                    if report.is_expected(now):
                        report.acknowledged(now)
        elif topic.startswith(topics.receipt_root):
            page = decode_receipts(payload)
            if isinstance(page, Rejected) or page.digest8 != digest:
                return
            sent = self.reports.get(page.round)
            if sent and sent.read(page.tags) and self.fates.get(page.round) != "counted":
                self.trace("receipt seen")
                self.fates[page.round] = "counted"
                log.info("%s: round %d was counted", self.name, page.round)


@dataclass(slots=True)
class Connection:
    """One broker: its link while there is one, and the pause before the next while there is none.

    A report is sent again, the same bytes, after every reconnect and with growing pauses.
    """

    broker: str
    connector: Connector
    clock: Clock
    timing: Timing
    entropy: Entropy
    trace: Trace
    version: Version
    remember: Callable[[str, Version], None]
    link: Link | None = None
    trouble: str = ""
    _in_flight: dict[int, Outgoing] = field(default_factory=dict)
    _subscribed: set[str] = field(default_factory=set)
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(
            self.clock.boottime,
            self.timing.reconnect_seconds,
            self.timing.reconnect_longest_seconds,
            self.timing.stable_after_seconds,
            self.entropy,
        )

    @property
    def is_ready(self) -> bool:
        """Whether the broker has accepted us."""
        return self.link is not None and self.link.ready

    def open_if_due(self) -> None:
        """Reach the broker, unless it is connected or its pause is not over."""
        if self.link is not None or self._backoff.seconds_left:
            return
        link = self.connector.link(parse_broker(self.broker), self.version)
        try:
            link.start()
        except BrokerUnreachable as error:
            self._back_off(str(error))
        else:
            self.link = link

    def close(self) -> None:
        """Disconnect; what is queued stays queued."""
        if self.link:
            self.link.close()
            self.link = None

    def exchange(self, queues: Sequence[CampaignQueue], wait: float) -> list[Message]:
        """Send what is due, ask for what may come, and return what arrived."""
        link, now = self.link, self.clock.boottime()
        if link is None:
            return []
        was_ready = link.ready
        if was_ready:
            self.subscribe(queues)
            self._send_due(link, queues, now)
        arrived = link.step(wait)
        if link.ready and not was_ready:
            self._connected(link, queues)
        for number, refusal in link.answers().items():
            self._acknowledged(number, refusal)
        if link.lost is not None:
            self._back_off(link.lost)
        return arrived

    def _send_due(self, link: Link, queues: Sequence[CampaignQueue], now: float) -> None:
        """As far as the window allows, with a pause that grows each time."""
        first, longest = self.timing.resend_seconds, self.timing.resend_longest_seconds
        due = (r for queue in queues for r in queue.reports.values() if r.next_try <= now)
        for report in due:
            if not link.free:
                return
            self.trace("sending")
            self._in_flight[link.publish(report.topic, report.row.payload)] = report
            self.trace("sent")
            report.sent(now, backoff_pause(first, longest, report.attempts, self.entropy))

    def subscribe(self, queues: Sequence[CampaignQueue]) -> None:
        """To what is wanted now and to nothing else.

        A page that was missed is not published again unless it changes: it comes with QoS 0, and a
        broker may take a subscription between handing a page on and keeping it. So whoever sends
        again subscribes again, and gets what is retained.
        """
        if self.link is None or not self.link.ready:
            return
        now = self.clock.boottime()
        wanted = {topic for queue in queues for topic in queue.topics(now)}
        if gone := self._subscribed - wanted:
            self.link.unsubscribe(sorted(gone))
        if new := wanted - self._subscribed:
            self.link.subscribe(sorted(new))
        self._subscribed = wanted

    def _connected(self, link: Link, queues: Sequence[CampaignQueue]) -> None:
        """On a new connection everything without a receipt is sent again."""
        if self.version != link.version:
            self.version = link.version
            with suppress(StorageFailure):  # it is found out again
                self.remember(self.broker, link.version)
        self.trouble = ""
        self._backoff.connected()
        self._in_flight.clear()
        self._subscribed = set()
        for queue in queues:
            for report in queue.reports.values():
                report.next_try = 0.0
        log.info("connected to %s", self.broker)

    def _acknowledged(self, number: int, refusal: str | None) -> None:
        self.trace("acknowledged")
        self._backoff.carried()
        report = self._in_flight.pop(number, None)
        if report is None:
            return
        self.trouble = f"the broker refused a report ({refusal})" if refusal else ""
        if refusal:
            log.warning("%s; it stays queued and is tried again", self.trouble)
        else:
            now = self.clock.boottime()
            before_next = (report.next_try - now) / 2
            report.acknowledged(now + min(self.timing.receipt_seconds, before_next))

    def _back_off(self, reason: str) -> None:
        reason += self.connector.note(parse_broker(self.broker))
        if self.trouble != reason:
            log.warning("%s; reports stay queued and are sent later", reason)
        self._backoff.ended(was_connected=self.is_ready)
        self.link, self.trouble = None, reason


class Delivery:
    """An agent's queued reports and its connections: one queue a campaign, one link a broker."""

    def __init__(
        self,
        agent: Agent,
        connector: Connector,
        timing: Timing,
        entropy: Entropy = os.urandom,
    ) -> None:
        self.memberships: list[Membership] = []
        self.timing = timing
        self.entropy = entropy
        self._store = agent.store
        self._clock = agent.clock
        self._trace = agent.trace
        self._connector = connector
        self.queues: dict[str, CampaignQueue] = {}
        self.connections: dict[str, Connection] = {}
        self._seen: int | None = None

    def deliver(self, timeout: float, *, visit: bool = False) -> list[Queued]:
        """One shot: send what is queued and wait for receipts; returns what is still queued.

        A visit ends already when each report was sent once and its receipt looked for.
        """
        limit = time.monotonic() + timeout
        try:
            self.settle()
            while self.queued and time.monotonic() < limit and (self.is_visiting or not visit):
                self.run_network(self.timing.step_seconds / 5)
                self.settle()
            return self.queued
        finally:
            self.close()

    def settle(self) -> None:
        """Notice what changed in the store, also from another process, and store what has been
        decided."""
        version = self._store.changed_elsewhere()
        if version != self._seen:
            self._seen = version
            self._read_store()
        now = self._clock.boottime()
        try:
            for queue in list(self.queues.values()):
                queue.expire(self._clock.wall())
                queue.settle(self._store)
                if queue.is_closed and not any(r.is_expected(now) for r in queue.reports.values()):
                    self._close_campaign(queue)
        except StorageFailure as error:  # tried again, and meanwhile the rows stay
            log.warning("%s", error, extra={"state": Problem.DISK_FULL})

    def run_network(self, wait: float) -> None:
        """Connect, send and listen, for about that many seconds."""
        self._follow_brokers()
        for connection in self.connections.values():
            connection.open_if_due()
        linked = [(b, c) for b, c in self.connections.items() if c.link is not None]
        if not linked:
            time.sleep(wait)
        for broker, connection in linked:
            queues = self._queues_of(broker)
            for message in connection.exchange(queues, wait / len(linked)):
                for queue in queues:
                    queue.handle(message.topic or "", message.payload, self._clock.boottime())
            connection.subscribe(queues)  # not to what has been read

    def close(self) -> None:
        """Disconnect from every broker; what is queued stays in the store."""
        for connection in self.connections.values():
            connection.close()

    def add(self, row: Queued) -> None:
        """A report that was just drawn and stored: it need not wait for the next `settle`."""
        self.queues[row.campaign].add(row)

    def reload(self) -> None:
        """Read the store with the next `settle`, also if no other process wrote to it."""
        self._seen = None

    @property
    def is_visiting(self) -> bool:
        """Whether a report was never sent, or its receipt may come before it is sent again."""
        now = self._clock.boottime()
        reports = (r for queue in self.queues.values() for r in queue.reports.values())
        return any(not r.attempts or (r.is_expected(now) and now < r.next_try) for r in reports)

    @property
    def queued(self) -> list[Queued]:
        return [r.row for queue in self.queues.values() for r in queue.reports.values()]

    def trouble(self, broker: str | None = None) -> str:
        """Why a broker, or any of them, cannot be used; empty if it can. Also after `deliver`."""
        connections = self.connections.items()
        return "; ".join(c.trouble for b, c in connections if c.trouble and broker in (None, b))

    def _read_store(self) -> None:
        self.memberships = self._store.memberships()
        queues: dict[str, CampaignQueue] = {}
        for member in self.memberships:
            if member.status == "joined":
                queue = self.queues.get(member.name) or CampaignQueue(member, self._trace)
                queue.membership = member
                queue.follow(self._store.reports(member.name, queued_only=True))
                queues[member.name] = queue
        self.queues = queues

    def _queues_of(self, broker: str) -> list[CampaignQueue]:
        return [queue for queue in self.queues.values() if queue.membership.broker == broker]

    def _follow_brokers(self) -> None:
        """One connection for each broker that a joined campaign reports to, and no other."""
        brokers = {queue.membership.broker for queue in self.queues.values()}
        for broker in self.connections.keys() - brokers:
            self.connections.pop(broker).close()
        for broker in brokers - self.connections.keys():
            self.connections[broker] = Connection(
                broker=broker,
                connector=self._connector,
                clock=self._clock,
                timing=self.timing,
                entropy=self.entropy,
                trace=self._trace,
                version=min(Version(q.membership.mqtt) for q in self._queues_of(broker)),
                remember=self._store.set_mqtt,
            )

    def _close_campaign(self, queue: CampaignQueue) -> None:
        at, name = int(self._clock.wall()), queue.name
        self._store.finish(name, dict.fromkeys(queue.reports, "closed"))
        self._store.set_status(name, "left", at, "closed by the collector")
        self._read_store()
        log.info("%s: the collector has closed the campaign", name)
