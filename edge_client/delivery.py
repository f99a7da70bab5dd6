"""Reports on their way: sent until a receipt says that the report was counted.

Claims: what is in the outbox is sent, the same bytes each time, after every reconnect and with
growing pauses, until a receipt, its deadline, or the end of the campaign; at most a window of
reports is unacknowledged at once (R16). Nothing that arrives can cause a draw: a receipt, a
deadline or the campaign's end only lets a row leave the outbox; anything else that arrives changes
nothing (I5, I16).

Everything happens in the caller's thread. Time that decides *whether* comes from the wall clock;
time that only spaces retries comes from the steady one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from edge_client.clock import Clock
from edge_client.errors import BrokerUnreachable, StorageFailure
from edge_client.link import Connector, Link
from edge_client.records import Fate, Membership, Queued, Timing, Trace, no_trace
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
from protocol_spec import random_below as below
from protocol_spec.programs.mqtt import MQTT_5
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import parse_broker

log = logging.getLogger("allomfree.edge")


@dataclass(slots=True)
class Outgoing:
    """A report on its way: when to try next, by the steady clock."""

    row: Queued
    topic: str
    tag: bytes
    attempts: int = 0
    next_try: float = 0.0
    is_awaited: bool = False  # sent on this connection: a receipt may come


class CampaignQueue:
    """The queued reports of one campaign, and what became of them."""

    def __init__(self, membership: Membership, trace: Trace) -> None:
        self.membership = membership
        self.reports: dict[int, Outgoing] = {}
        self.state: State | None = None  # the collector's last word: a hint, nothing more
        self._fates: dict[int, Fate] = {}
        self._trace = trace

    @property
    def name(self) -> str:
        return self.membership.name

    @property
    def topics(self) -> list[str]:
        """What to subscribe to: the campaign's state, and the receipts that may be ours."""
        membership = self.membership
        page = receipt_page(membership.manifest, membership.device)
        return [membership.topics.state, membership.topics.receipts_for(page)]

    def add(self, row: Queued) -> None:
        """A report that is in the outbox; one that is known keeps its progress."""
        if row.round not in self.reports:
            membership, device = self.membership, self.membership.device
            tag = receipt_tag(membership.manifest, row.round, device)
            self.reports[row.round] = Outgoing(row, membership.topics.report(device), tag)

    def follow(self, rows: list[Queued]) -> None:
        """Hold exactly what is queued in the store: the owner may have withdrawn the rest."""
        rounds = {row.round for row in rows}
        self.reports = {n: report for n, report in self.reports.items() if n in rounds}
        for row in rows:
            self.add(row)

    def send_all_again(self) -> None:
        """On a new connection: whatever has no receipt."""
        for report in self.reports.values():
            report.next_try, report.is_awaited = 0.0, False

    def expire(self, now: float) -> None:
        """Give up what can no longer be counted."""
        for number, report in self.reports.items():
            if now >= report.row.deadline and number not in self._fates:
                self._fates[number] = "missed"
                log.warning("%s: round %d was not counted in time", self.name, number)

    def settle(self, store: Store) -> None:
        """Store the fates. Raises `StorageFailure`; then the rows stay and are tried again."""
        if self._fates:
            store.finish(self.name, self._fates)
            for number in self._fates:
                self.reports.pop(number, None)
            self._fates = {}

    def hear(self, topic: str, payload: bytes) -> bool:
        """Note a receipt; returns whether the message says that the campaign is closed."""
        topics, digest = self.membership.topics, digest8(self.membership.manifest)
        if topic == topics.state:
            state = decode_state(payload)
            if isinstance(state, Rejected) or state.digest8 != digest:
                return False
            self.state = state
            return state.presence is Presence.CLOSED
        if topic.startswith(topics.receipt_root):
            page = decode_receipts(payload)
            if not isinstance(page, Rejected) and page.digest8 == digest:
                self._note_receipt(page.round, page.tags)
        return False

    def _note_receipt(self, number: int, tags: Collection[bytes]) -> None:
        report = self.reports.get(number)
        if report and report.tag in tags and self._fates.get(number) != "counted":
            self._trace("receipt seen")
            self._fates[number] = "counted"
            log.info("%s: round %d was counted", self.name, number)


class Connection:
    """One broker: its link while there is one, and the pause before the next while there is none.

    A report that was sent is sent again, the same bytes, after every reconnect and with growing
    pauses.
    """

    def __init__(
        self,
        broker: str,
        connector: Connector,
        clock: Clock,
        *,
        timing: Timing,
        jitter: Callable[[float], float],
        trace: Trace,
    ) -> None:
        self.trouble = ""
        self._broker = broker
        self._connector = connector
        self._clock = clock
        self._timing = timing
        self._jitter = jitter
        self._trace = trace
        self._link: Link | None = None
        self._version = MQTT_5
        self._failures = 0
        self._hasty = 0  # connections in a row that ended soon and carried nothing
        self._connected_at = 0.0
        self._retry_at = 0.0
        self._in_flight: set[int] = set()

    @property
    def has_link(self) -> bool:
        """Whether there is anything to wait for: a broker that was reached."""
        return self._link is not None

    @property
    def is_ready(self) -> bool:
        """Whether the broker has accepted us."""
        return self._link is not None and self._link.ready

    def open_if_due(self) -> None:
        """Reach the broker, unless it is connected or its pause is not over."""
        if self._link is not None or self._clock.steady() < self._retry_at:
            return
        link = self._connector.link(parse_broker(self._broker), self._version)
        try:
            link.start()
        except BrokerUnreachable as error:
            self._back_off(str(error))
        else:
            self._link = link

    def close(self) -> None:
        """Disconnect; what is queued stays queued."""
        if self._link:
            self._link.close()
            self._link = None

    def subscribe(self, queues: Sequence[CampaignQueue]) -> None:
        """Ask for all that concerns these campaigns."""
        if self._link:
            for queue in queues:
                self._link.subscribe(queue.topics)

    def send(self, queues: Sequence[CampaignQueue]) -> None:
        """Send what is due, as far as the window allows.

        A receipt may have passed us by: a page reaches us with QoS 0, and a broker may take a
        subscription between handing a page on and keeping it. It is not published again unless it
        changes, so whoever sends again also asks for what is retained again.
        """
        now = self._clock.steady()
        for queue in queues:
            again = False
            for report in queue.reports.values():
                if self._link is None or not self._link.ready or not self._link.free:
                    break
                if report.next_try <= now:
                    again = again or report.is_awaited
                    self._send(self._link, report, now)
            if again:
                self.subscribe([queue])

    def _send(self, link: Link, report: Outgoing, now: float) -> None:
        self._trace("sending")
        self._in_flight.add(link.publish(report.topic, report.row.payload))
        self._trace("sent")
        pause = self._timing.resend * 2.0**report.attempts
        report.attempts += 1
        report.is_awaited = True
        report.next_try = now + self._jitter(min(self._timing.resend_longest, pause))

    def listen(self, queues: Sequence[CampaignQueue], wait: float) -> list[Message]:
        """Let the network run, and return the messages that arrived."""
        link = self._link
        if link is None:
            return []
        was_ready = link.ready
        arrived = link.step(wait)
        if link.ready and not was_ready:
            self._connected(link, queues)
        for number, refusal in link.answers().items():
            self._acknowledged(number, refusal)
        if link.lost is not None:
            self._back_off(link.lost)
        return arrived

    def _connected(self, link: Link, queues: Sequence[CampaignQueue]) -> None:
        self._version = link.version
        self._failures, self.trouble = 0, ""
        self._connected_at = self._clock.steady()
        self._in_flight.clear()
        for queue in queues:
            queue.send_all_again()
        self.subscribe(queues)
        log.info("connected to %s", self._broker)

    def _acknowledged(self, number: int, refusal: str | None) -> None:
        self._trace("acknowledged")
        self._hasty = 0
        if number not in self._in_flight:
            return
        self._in_flight.remove(number)
        self.trouble = ""
        if refusal:
            self.trouble = f"the broker refused a report ({refusal})"
            log.warning("%s; it stays queued and is tried again", self.trouble)

    def _back_off(self, reason: str) -> None:
        reason += self._connector.note(parse_broker(self._broker))
        if self.trouble != reason:
            log.warning("%s; reports stay queued and are sent later", reason)
        if self.is_ready:
            # A broker that accepts and breaks every connection is asked less and less often.
            self._failures = self._hasty
            lasted = self._clock.steady() - self._connected_at
            self._hasty = 0 if lasted >= self._timing.steady else self._hasty + 1
        self._link, self.trouble = None, reason
        pause = min(self._timing.reconnect_longest, self._timing.reconnect * 2.0**self._failures)
        self._failures += 1
        self._retry_at = self._clock.steady() + self._jitter(pause)


class Delivery:
    """An agent's queued reports and its connections: one queue a campaign, one link a broker."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        connector: Connector,
        *,
        timing: Timing | None = None,
        entropy: Entropy = os.urandom,
        trace: Trace = no_trace,
    ) -> None:
        self.memberships: list[Membership] = []
        self._store = store
        self._clock = clock
        self._connector = connector
        self._timing = timing or Timing()
        self._entropy = entropy
        self._trace = trace
        self._queues: dict[str, CampaignQueue] = {}
        self._connections: dict[str, Connection] = {}
        self._seen: int | None = None

    def deliver(self, timeout: float) -> list[Queued]:
        """One shot: send what is queued and wait for receipts; returns what is still queued."""
        limit = time.monotonic() + timeout
        try:
            self.settle()
            while self.queued and time.monotonic() < limit:
                self.run_network(self._timing.step / 5)
                self.settle()
            return self.queued
        finally:
            self.close()

    def settle(self) -> None:
        """Notice what changed in the store, and store what has been decided."""
        self._refresh()
        try:
            for queue in self._queues.values():
                queue.expire(self._clock.wall())
                queue.settle(self._store)
        except StorageFailure as error:  # tried again, and meanwhile the rows stay
            log.warning("%s", error, extra={"state": Problem.DISK_FULL})

    def run_network(self, wait: float) -> None:
        """Connect, send and listen, for about that many seconds."""
        self._follow_brokers()
        for connection in self._connections.values():
            connection.open_if_due()
        linked = [(b, c) for b, c in self._connections.items() if c.has_link]
        if not linked:
            time.sleep(wait)
        for broker, connection in linked:
            queues = self._queues_of(broker)
            connection.send(queues)
            for message in connection.listen(queues, wait / len(linked)):
                self._hear(message)

    def close(self) -> None:
        """Disconnect from every broker; what is queued stays in the store."""
        for connection in self._connections.values():
            connection.close()

    def add(self, row: Queued) -> None:
        """A report that was just drawn and stored: it need not wait for the next `settle`."""
        self._queues[row.campaign].add(row)

    def look_again(self) -> None:
        """Read the store with the next `settle`, also if no other process wrote to it."""
        self._seen = None

    @property
    def queued(self) -> list[Queued]:
        """What waits for a receipt."""
        return [r.row for queue in self._queues.values() for r in queue.reports.values()]

    def trouble(self, broker: str | None = None) -> str:
        """Why a broker, or any of them, cannot be used; empty if it can. Also after `deliver`."""
        connections = self._connections.items()
        return "; ".join(c.trouble for b, c in connections if c.trouble and broker in (None, b))

    @property
    def is_connected(self) -> bool:
        """Whether every broker has accepted us."""
        return all(connection.is_ready for connection in self._connections.values())

    def collector_state(self, campaign: str) -> State | None:
        """What a campaign's collector last said of itself, if it was heard."""
        queue = self._queues.get(campaign)
        return queue.state if queue else None

    def was_sent(self, row: Queued) -> bool:
        """Whether a report that is still queued has been handed to its broker at least once."""
        queue = self._queues.get(row.campaign)
        report = queue.reports.get(row.round) if queue else None
        return report is not None and report.attempts > 0

    def _refresh(self) -> None:
        """Notice what the owner changed from another process, and read the outbox."""
        version = self._store.changed_elsewhere()
        if version == self._seen:
            return
        self._seen = version
        self.memberships = self._store.memberships()
        joined = [m for m in self.memberships if m.status == "joined"]
        self._queues = {m.name: self._queue_of(m) for m in joined}
        for broker, connection in self._connections.items():
            if connection.is_ready:
                connection.subscribe(self._queues_of(broker))

    def _queue_of(self, membership: Membership) -> CampaignQueue:
        queue = self._queues.get(membership.name) or CampaignQueue(membership, self._trace)
        queue.membership = membership
        queue.follow(self._store.reports(membership.name, queued_only=True))
        return queue

    def _queues_of(self, broker: str) -> list[CampaignQueue]:
        return [queue for queue in self._queues.values() if queue.membership.broker == broker]

    def _follow_brokers(self) -> None:
        """One connection for each broker that a joined campaign reports to, and no other."""
        brokers = {queue.membership.broker for queue in self._queues.values()}
        for broker in self._connections.keys() - brokers:
            self._connections.pop(broker).close()
        for broker in brokers - self._connections.keys():
            self._connections[broker] = Connection(
                broker,
                self._connector,
                self._clock,
                timing=self._timing,
                jitter=self._jitter,
                trace=self._trace,
            )

    def _hear(self, message: Message) -> None:
        for queue in list(self._queues.values()):
            if queue.hear(message.topic or "", message.payload):
                try:
                    self._close_campaign(queue)
                except StorageFailure as error:  # it is retained: heard again when reconnected
                    log.warning("%s", error, extra={"state": Problem.DISK_FULL})

    def _close_campaign(self, queue: CampaignQueue) -> None:
        at, name = int(self._clock.wall()), queue.name
        queue.settle(self._store)  # what has a receipt was counted before the end
        self._store.finish(name, dict.fromkeys(queue.reports, "closed"))
        self._store.set_status(name, "left", at)
        self._store.decide(name, "closed by the collector", at)
        del self._queues[name]
        self.look_again()
        log.info("%s: the collector has closed the campaign", name)

    def _jitter(self, pause: float) -> float:
        """Between half and all of a pause, so that a fleet does not return as one."""
        return pause * (0.5 + below(1 << 16, self._entropy) / (1 << 17))
