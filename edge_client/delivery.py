"""Reports on their way: sent until a receipt says that the report was counted.

Claim: what is in the outbox is sent, the same bytes each time, after every reconnect and with
growing pauses, until a receipt, its deadline, or the end of the campaign. Nothing here draws.

Everything happens in the caller's thread. Time that decides *whether* comes from the wall clock;
time that only spaces retries comes from the steady one.
"""

from __future__ import annotations

import logging
import os
import time

from edge_client.campaign_queue import CampaignQueue
from edge_client.clock import Clock
from edge_client.connection import Connection
from edge_client.errors import StorageFailure
from edge_client.mqtt.connector import Connector
from edge_client.mqtt.link import Arrived
from edge_client.records import Membership, Queued
from edge_client.states import Problem
from edge_client.store import Store
from edge_client.timing import Timing
from edge_client.trace import Trace, no_trace
from protocol_spec import Entropy, State
from protocol_spec import random_below as below

log = logging.getLogger("allomfree.edge")


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
        """Notice what changed in the store, and write down what has been decided."""
        self._refresh()
        try:
            for queue in self._queues.values():
                queue.expire(self._clock.wall())
                queue.settle(self._store.outbox)
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
        """A report that was just drawn and stored: it need not wait for the next look."""
        self._queues[row.campaign].add(row)

    def look_again(self) -> None:
        """Read the store with the next `settle`, also if no other process wrote to it."""
        self._seen = None

    @property
    def queued(self) -> list[Queued]:
        """What waits for a receipt."""
        return [r.row for queue in self._queues.values() for r in queue.reports.values()]

    @property
    def trouble(self) -> str:
        """Why a broker cannot be used, or empty."""
        return "; ".join(c.trouble for c in self._connections.values() if c.trouble)

    def trouble_with(self, broker: str) -> str:
        """The same of one broker; also after the end of `deliver`."""
        connection = self._connections.get(broker)
        return connection.trouble if connection else ""

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
        """Notice what the owner changed from another process, and take the outbox into memory."""
        version = self._store.changed_elsewhere()
        if version == self._seen:
            return
        self._seen = version
        self.memberships = self._store.campaigns.all()
        joined = [m for m in self.memberships if m.status == "joined"]
        self._queues = {m.name: self._queue_of(m) for m in joined}
        for broker, connection in self._connections.items():
            if connection.is_ready:
                connection.subscribe(self._queues_of(broker))

    def _queue_of(self, membership: Membership) -> CampaignQueue:
        queue = self._queues.get(membership.name) or CampaignQueue(membership, self._trace)
        queue.membership = membership
        queue.follow(self._store.outbox.rows(membership.name, queued_only=True))
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

    def _hear(self, message: Arrived) -> None:
        for queue in list(self._queues.values()):
            if queue.hear(message.topic, message.payload):
                try:
                    self._close_campaign(queue)
                except (
                    StorageFailure
                ) as error:  # heard again at the next connection: it is retained
                    log.warning("%s", error, extra={"state": Problem.DISK_FULL})

    def _close_campaign(self, queue: CampaignQueue) -> None:
        at = int(self._clock.wall())
        queue.settle(self._store.outbox)  # what has a receipt was counted before the end
        self._store.outbox.finish(queue.name, dict.fromkeys(queue.reports, "closed"))
        self._store.campaigns.set_status(queue.name, "left", at)
        self._store.campaigns.decide(queue.name, "closed by the collector", at)
        del self._queues[queue.name]
        self.look_again()
        log.info("%s: the collector has closed the campaign", queue.name)

    def _jitter(self, pause: float) -> float:
        """Between half and all of a pause, so that a fleet does not return as one."""
        return pause * (0.5 + below(1 << 16, self._entropy) / (1 << 17))
