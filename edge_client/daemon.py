"""The loop: draw when due, send until a receipt says that the report was counted.

Claim: what is in the outbox is sent, the same bytes each time, after every reconnect and with
growing pauses, until a receipt, its deadline, or the end of the campaign. Nothing that arrives can
cause a draw: the network only lets rows leave the outbox.

Everything happens in the caller's thread. Time that decides *whether* comes from the agent's
clock; time that only spaces retries comes from its steady one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from edge_client.agent import Agent, Due, ReadValue, Wait, due
from edge_client.errors import BrokerUnreachable, SourceFailure, StorageFailure
from edge_client.heartbeat import Heartbeat
from edge_client.mqtt.link import Acknowledged, Arrived, Connected, Link, Lost
from edge_client.records import Fate, Membership, Queued
from protocol_spec import (
    AllomfreeError,
    Entropy,
    Presence,
    Rejected,
    UnknownValue,
    decode_receipts,
    decode_state,
    digest8,
    receipt_page,
    receipt_tag,
)
from protocol_spec import random_below as below
from protocol_spec.programs.address import Credentials, parse_broker
from protocol_spec.programs.mqtt import MQTT_5, Version

STEP: Final = 1.0
RESEND: Final = 15.0
RESEND_LONGEST: Final = 900.0
RECONNECT: Final = 2.0
RECONNECT_LONGEST: Final = 300.0
SOURCE_RETRY: Final = 30.0

log = logging.getLogger("allomfree.edge")


@dataclass(slots=True)
class Delivery:
    """A report on its way: when to try next, by the steady clock."""

    row: Queued
    topic: str
    tag: bytes
    attempts: int = 0
    next_try: float = 0.0


@dataclass(slots=True)
class Connection:
    """One broker, connected or waiting to be."""

    link: Link | None = None
    retry_at: float = 0.0
    failures: int = 0
    in_flight: dict[int, Delivery] = field(default_factory=dict)
    trouble: str = ""
    version: Version = MQTT_5


class Runner:
    """Carries an agent's reports to their brokers."""

    def __init__(
        self,
        agent: Agent,
        read: ReadValue,
        *,
        credentials: Credentials | None = None,
        keepalive: int = 60,
        allow_plaintext: bool = False,
        entropy: Entropy = os.urandom,
        trace: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.agent = agent
        self.clock = agent.clock
        self._read = read
        self._credentials = credentials or Credentials()
        self._keepalive = keepalive
        self._allow_plaintext = allow_plaintext
        self._entropy = entropy
        self._trace = trace
        self._heartbeat = Heartbeat(agent.store.directory)
        self._connections: dict[str, Connection] = {}
        self._deliveries: dict[tuple[str, int], Delivery] = {}
        self._moments: dict[str, tuple[int, float]] = {}
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._fates: dict[str, dict[int, Fate]] = {}
        self._memberships: list[Membership] = []
        self._version: int | None = None

    # --- the two ways to run -----------------------------------------------------------------

    def run(self, stop: Callable[[], bool], beat: Callable[[str], None] = lambda _: None) -> None:
        """As a daemon: report every round at a random moment of it, until told to stop."""
        try:
            while not stop():
                self.tick()
                beat(self._heartbeat.text)
        finally:
            self.close()

    def deliver(self, timeout: float) -> list[Queued]:
        """One shot: send what is queued and wait for receipts; returns what is still queued."""
        limit = time.monotonic() + timeout
        try:
            self._settle_outbox()
            while self._deliveries and time.monotonic() < limit:
                self._network(STEP / 5)
                self._settle_outbox()
            return [delivery.row for delivery in self._deliveries.values()]
        finally:
            self.close()

    def tick(self, wait: float | None = None) -> None:
        """One turn of the daemon's loop: draw what is due, settle, let the network run.

        Many agents in one process take turns with `wait=0`.
        """
        self._settle_outbox()
        states = [self._advance(membership) for membership in self._memberships]
        self._network(self._rest() if wait is None else wait)
        self._report_health(states)

    def _settle_outbox(self) -> None:
        self._refresh()
        self._expire()
        self._settle()

    def close(self) -> None:
        """Say goodbye to every broker; what is queued stays in the store."""
        for connection in self._connections.values():
            self._disconnect(connection)

    def _disconnect(self, connection: Connection) -> None:
        if connection.link:
            connection.link.close()
            connection.link = None

    @property
    def trouble(self) -> str:
        """Why a broker is not connected, or empty."""
        return "; ".join(c.trouble for c in self._connections.values() if c.trouble)

    def trouble_with(self, broker: str) -> str:
        """The same of one broker; also after the end of `deliver`."""
        connection = self._connections.get(broker)
        return connection.trouble if connection else ""

    def was_sent(self, row: Queued) -> bool:
        """Whether a report that is still queued has been handed to its broker at least once."""
        delivery = self._deliveries.get((row.campaign, row.round))
        return delivery is not None and delivery.attempts > 0

    # --- drawing -----------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Notice what the owner changed from another process, and take the outbox into memory."""
        version = self.agent.store.changed_elsewhere()
        if version == self._version:
            return
        self._version = version
        self._memberships = self.agent.store.memberships()
        sendable = {m.name for m in self._memberships if m.status == "joined"}
        self._deliveries = {k: d for k, d in self._deliveries.items() if k[0] in sendable}
        for membership in self._memberships:
            if membership.name in sendable:
                for row in self.agent.store.outbox(membership.name, queued_only=True):
                    self._enqueue(membership, row)
        for connection in self._connections.values():
            if connection.link and connection.link.ready:
                self._subscribe(connection.link)

    def _advance(self, membership: Membership) -> str:
        """Draw this campaign's report if its moment has come; say how it stands."""
        allowed = due(membership, self.clock)
        if isinstance(allowed, Wait):
            return allowed.value
        if self.clock.steady() < self._not_before.get(membership.name, 0.0):
            return self._failures[membership.name]
        if self.clock.wall() < self._moment(membership, allowed):
            return "waiting for this round's moment"
        self._version = None  # whatever happens next, look at the store again
        try:
            drawn = self.agent.draw(membership, self._read)
        except AllomfreeError as error:
            return self._put_off(membership.name, error)
        if isinstance(drawn, Queued):
            self._enqueue(membership, drawn)
            log.info("%s: report for round %d drawn and stored", membership.name, drawn.round)
        return "report drawn"

    def _put_off(self, campaign: str, error: AllomfreeError) -> str:
        """Try again later, and until then say why."""
        state = "REFUSED"
        if isinstance(error, StorageFailure):
            state = "DISK_FULL"
        elif isinstance(error, SourceFailure | UnknownValue):
            state = "NO_VALUE"
        self._not_before[campaign] = self.clock.steady() + SOURCE_RETRY
        self._failures[campaign] = f"{state}: {error}"
        log.warning("%s: %s", campaign, error, extra={"state": state})
        return self._failures[campaign]

    def _moment(self, membership: Membership, allowed: Due) -> float:
        """A uniform moment of what is left of the round; it must not depend on the value.

        The round's very end is spared: a moment that is slept through would leave a gap.
        """
        known = self._moments.get(membership.name)
        if known is None or known[0] != allowed.round:
            now, rounds = self.clock.wall(), membership.manifest.rounds
            spared = min(STEP, rounds.period / 10)
            left = max(0.0, rounds.closes(allowed.round) - spared - now)
            moment = now + left * below(1 << 32, self._entropy) / (1 << 32)
            known = self._moments[membership.name] = (allowed.round, moment)
        return known[1]

    def _rest(self) -> float:
        """How long to wait for the network: until a moment or a new round, at most a step."""
        now, steady = self.clock.wall(), self.clock.steady()
        waits = [moment - now for _, moment in self._moments.values()]
        for membership in self._memberships:
            rounds = membership.manifest.rounds
            number = rounds.round_at(now)
            waits.append((rounds.first if number is None else rounds.closes(number)) - now)
            waits.append(membership.round_opened + rounds.period - steady)
        return min([STEP, *(wait for wait in waits if wait > 0)])

    def _enqueue(self, membership: Membership, row: Queued) -> None:
        topic = membership.topics.report(membership.device)
        tag = receipt_tag(membership.manifest, row.round, membership.device)
        self._deliveries.setdefault((row.campaign, row.round), Delivery(row, topic, tag))

    # --- leaving the outbox ------------------------------------------------------------------

    def _expire(self) -> None:
        now = self.clock.wall()
        for (campaign, number), delivery in self._deliveries.items():
            if now >= delivery.row.deadline and number not in self._fates.get(campaign, {}):
                self._fates.setdefault(campaign, {})[number] = "missed"
                log.warning("%s: round %d was not counted in time", campaign, number)

    def _settle(self) -> None:
        """Write fates down; a disk that refuses is tried again, and meanwhile the row stays."""
        for campaign, fates in list(self._fates.items()):
            try:
                self.agent.store.finish(campaign, fates)
            except StorageFailure as error:
                log.warning("%s", error, extra={"state": "DISK_FULL"})
                return
            for number in fates:
                self._deliveries.pop((campaign, number), None)
            del self._fates[campaign]

    def _received(self, event: Arrived) -> None:
        for membership in self._memberships:
            if event.topic == membership.topics.state:
                self._heard_state(membership, event.payload)
            elif event.topic.startswith(membership.topics.receipt_root):
                self._heard_receipts(membership, event.payload)

    def _heard_receipts(self, membership: Membership, payload: bytes) -> None:
        page = decode_receipts(payload)
        if isinstance(page, Rejected) or page.digest8 != digest8(membership.manifest):
            return
        delivery = self._deliveries.get((membership.name, page.round))
        if delivery and delivery.tag in page.tags:
            self._trace("receipt seen")
            self._fates.setdefault(membership.name, {})[page.round] = "counted"
            log.info("%s: round %d was counted", membership.name, page.round)

    def _heard_state(self, membership: Membership, payload: bytes) -> None:
        state = decode_state(payload)
        if isinstance(state, Rejected) or state.digest8 != digest8(membership.manifest):
            return
        if state.presence is Presence.CLOSED and membership.status == "joined":
            try:
                self._close_campaign(membership)
            except StorageFailure as error:  # heard again at the next connection: it is retained
                log.warning("%s", error, extra={"state": "DISK_FULL"})

    def _close_campaign(self, membership: Membership) -> None:
        store, at = self.agent.store, int(self.clock.wall())
        rounds = [number for name, number in self._deliveries if name == membership.name]
        store.finish(membership.name, dict.fromkeys(rounds, "closed"))
        store.set_status(membership.name, "left", at)
        store.decide(membership.name, "closed by the collector", at)
        self._version = None
        log.info("%s: the collector has closed the campaign", membership.name)

    # --- the network -------------------------------------------------------------------------

    def _network(self, wait: float) -> None:
        brokers = {m.broker for m in self._memberships if m.status == "joined"}
        for broker in self._connections.keys() - brokers:
            self._disconnect(self._connections.pop(broker))
        for broker in brokers - self._connections.keys():
            self._connections[broker] = Connection()
        for broker, connection in self._connections.items():
            if connection.link is None and self.clock.steady() >= connection.retry_at:
                self._connect(broker, connection)
        linked = [c for c in self._connections.values() if c.link]
        if not linked:
            time.sleep(wait)
        for connection in linked:
            self._send(connection)
            self._listen(connection, wait / len(linked))

    def _connect(self, broker: str, connection: Connection) -> None:
        url = parse_broker(broker)
        url.check_plaintext(self._allow_plaintext)
        link = Link(
            url,
            self._credentials,
            keepalive=self._keepalive,
            version=connection.version,
        )
        try:
            link.start()
        except BrokerUnreachable as error:
            self._back_off(connection, str(error))
        else:
            connection.link = link

    def _connected(self, connection: Connection, link: Link) -> None:
        connection.version = link.version
        connection.failures, connection.trouble = 0, ""
        connection.in_flight.clear()
        for delivery in self._deliveries.values():  # a new connection: whatever has no receipt
            delivery.next_try = 0.0
        self._subscribe(link)
        log.info("connected to %s", link.broker)

    def _back_off(self, connection: Connection, reason: str) -> None:
        if connection.trouble != reason:
            log.warning("%s; reports stay queued and are sent later", reason)
        connection.link, connection.trouble = None, reason
        pause = min(RECONNECT_LONGEST, RECONNECT * 2.0**connection.failures)
        connection.failures += 1
        connection.retry_at = self.clock.steady() + self._jitter(pause)

    def _subscribe(self, link: Link) -> None:
        for membership in self._on(str(link.broker)):
            page = receipt_page(membership.manifest, membership.device)
            link.subscribe([membership.topics.state, membership.topics.receipts_for(page)])

    def _send(self, connection: Connection) -> None:
        link = connection.link
        now = self.clock.steady()
        for delivery in self._sendable(connection):
            if link is None or not link.ready or not link.free:
                return
            if delivery.next_try > now:
                continue
            left = int(delivery.row.deadline - self.clock.wall())
            self._trace("sending")
            mid = link.publish(delivery.topic, delivery.row.payload, expires_in=left)
            self._trace("sent")
            connection.in_flight[mid] = delivery
            pause = min(RESEND_LONGEST, RESEND * 2.0**delivery.attempts)
            delivery.attempts += 1
            delivery.next_try = now + self._jitter(pause)

    def _sendable(self, connection: Connection) -> Iterable[Delivery]:
        link = connection.link
        names = {m.name for m in self._on(str(link.broker))} if link else set()
        return [d for (name, _), d in self._deliveries.items() if name in names]

    def _listen(self, connection: Connection, wait: float) -> None:
        link = connection.link
        if link is None:
            return
        for event in link.step(wait):
            if isinstance(event, Connected):
                self._connected(connection, link)
            elif isinstance(event, Arrived):
                self._received(event)
            elif isinstance(event, Acknowledged):
                self._acknowledged(connection, event)
            elif isinstance(event, Lost):
                self._back_off(connection, event.reason)

    def _acknowledged(self, connection: Connection, event: Acknowledged) -> None:
        self._trace("acknowledged")
        delivery = connection.in_flight.pop(event.mid, None)
        if delivery is None:
            return
        connection.trouble = ""
        if event.refusal:
            connection.trouble = f"the broker refused a report ({event.refusal})"
            log.warning("%s; it stays queued and is tried again", connection.trouble)

    def _on(self, broker: str) -> list[Membership]:
        return [m for m in self._memberships if m.broker == broker and m.status == "joined"]

    def _jitter(self, pause: float) -> float:
        """Between half and all of a pause, so that a fleet does not return as one."""
        return pause * (0.5 + below(1 << 16, self._entropy) / (1 << 17))

    def _report_health(self, states: list[str]) -> None:
        text = "; ".join(states) or "no campaign joined"
        if self.trouble:
            away = not all(c.link and c.link.ready for c in self._connections.values())
            text = f"{'BROKER_AWAY' if away else 'REPORT_REFUSED'}: {self.trouble}; {text}"
        self._heartbeat.write(text, len(self._deliveries))
