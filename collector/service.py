"""The collector at work: connect, read, count, seal and publish.

One thread does everything in turn, so the order that exactness needs is the order of the code:
a batch is committed before any of it is acknowledged (I6), on the connection that brought it (I7);
when the disk refuses, nothing more is read and the broker waits (I13, I15).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from collector.device_key import DeviceKey
from collector.errors import StorageFailure
from collector.health import Status
from collector.ingest.admit import OpenCampaigns
from collector.ingest.batch import Ingest
from collector.ingest.receipts import ReceiptPages, ReceiptPublisher
from collector.mqtt import Connect, Link
from collector.records import Campaign
from collector.rounds.announce import Announcer
from collector.rounds.publishing import ResultPublisher
from collector.rounds.retention import drop_unreleased, end_retention
from collector.rounds.sealing import Delivery, Sealer
from collector.store import Store
from collector.timing import SYSTEM_CLOCK, USUAL, Clock, Timing
from protocol_spec import (
    DEFAULT_NAMESPACE,
    Presence,
    Result,
)
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.topics import from_all_devices

log = logging.getLogger("allomfree.collector")


class Service:
    """Collects for every open campaign of its store."""

    def __init__(
        self,
        store: Store,
        key: DeviceKey,
        connect: Connect,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        home_assistant: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = USUAL,
        emit: Callable[[Campaign, Result], None] = lambda _campaign, _result: None,
        trace: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.status = Status()
        self._store = store
        self._connect = connect
        self._clock = clock
        self._timing = timing
        pages = ReceiptPages(namespace)
        known = OpenCampaigns({}, frozenset(), key, namespace)
        self._ingest = Ingest(store, known, pages, self.status, clock, trace)
        self._receipts = ReceiptPublisher(pages, store, clock, timing)
        self._announcer = Announcer(store, namespace, home_assistant)
        self._results = ResultPublisher(store, namespace, clock, timing)
        self._delivery = Delivery(clock, timing)
        self._sealer = Sealer(store, self._delivery, self._announcer, clock, timing, emit, trace)
        self._campaigns: dict[int, Campaign] = {}
        self._version: int | None = None
        self._link: Link | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._next_upkeep = 0.0

    def run(self, stop: Callable[[], bool], beat: Callable[[], None] = lambda: None) -> None:
        """Until told to stop; then finish the batch at hand and say goodbye."""
        self._refresh()
        self._receipts.load(self._campaigns.values())
        try:
            while not stop():
                self.turn(self._timing.step_seconds)
                beat()
        finally:
            self.shut_down()

    def turn(self, wait_seconds: float) -> None:
        """One turn: connect if need be, take a batch, and once in a while the upkeep."""
        self._refresh()
        if self._link is None and self._clock.monotonic() >= self._retry_at:
            self._open_link()
        if self._link is not None:
            self._read(self._link, wait_seconds)
        else:
            until_retry = max(0.0, self._retry_at - self._clock.monotonic())
            self._clock.sleep(min(wait_seconds, until_retry))
        if self._clock.monotonic() >= self._next_upkeep:
            self._next_upkeep = self._clock.monotonic() + self._timing.upkeep_every_seconds
            self._upkeep()

    def shut_down(self) -> None:
        """Say offline and close; the session stays at the broker and keeps what comes."""
        if self._link is not None:
            for campaign in self._ingest.campaigns.by_name.values():
                self._announcer.publish_state(self._link, campaign, Presence.OFFLINE)
            self._link.close()
            self._link = None

    def _refresh(self) -> None:
        """Notice campaigns opened or closed and devices revoked by other processes."""
        version = self._store.changed_elsewhere()
        if version == self._version:
            return
        self._version = version
        self._campaigns = {c.id: c for c in self._store.campaigns()}
        before = self._ingest.campaigns
        opened = {c.name: c for c in self._campaigns.values() if c.closed is None}
        revoked = self._store.revoked()
        self._ingest.campaigns = replace(before, by_name=opened, revoked=revoked)
        if self._link is not None:
            for name in opened.keys() - before.by_name.keys():
                self._announcer.announce(self._link, opened[name])
            for name in before.by_name.keys() - opened.keys():
                self._announcer.withdraw(self._link, before.by_name[name])

    # --- connection --------------------------------------------------------------------------

    def _open_link(self) -> None:
        campaigns = self._ingest.campaigns
        try:
            link = self._connect(self._announcer.will(campaigns.by_name.values()))
        except BrokerUnreachable as error:
            self._disconnected(str(error))
            return
        log.info("connected to %s", link.name)
        self._link, self._failures = link, 0
        self.status.connected, self.status.trouble = True, ""
        self._delivery.connected(link)
        link.subscribe(from_all_devices(campaigns.namespace))
        for campaign in self._campaigns.values():
            if campaign.closed is None:
                self._announcer.announce(link, campaign)
            else:  # perhaps closed while nobody could be told
                self._announcer.withdraw(link, campaign)
        self._receipts.pages.publish_again()
        self._results.connected(link)

    def _disconnected(self, reason: str) -> None:
        if self.status.trouble != reason:
            log.warning("%s; reports wait at the broker and on the devices", reason)
        if self._link is not None:
            self._link.close()
        self._link = None
        self._ingest.release()
        self.status.connected, self.status.trouble = False, reason
        self._retry_at = self._clock.monotonic() + self._timing.reconnect_pause(self._failures)
        self._failures += 1

    # --- messages and upkeep -----------------------------------------------------------------

    def _read(self, link: Link, wait_seconds: float) -> None:
        """Take the batch that the storage refused before, or else the next one."""
        messages = self._ingest.held
        if not messages:
            messages = link.step(wait_seconds)
            self._delivery.read(len(messages))
        if messages:
            try:
                self._delivery.counted(self._ingest.take(link, messages))
                self.status.trouble = ""
            except StorageFailure as error:
                self._storage_failed(error)
                self._clock.sleep(self._timing.storage_retry_seconds)
        if link.lost:
            self._disconnected(link.lost)

    def _upkeep(self) -> None:
        """Seal what is due, publish receipts and results, clear what is no longer needed."""
        try:
            self._seal_and_publish()
            self._store.wipe_log()
        except StorageFailure as error:
            self._storage_failed(error)
        else:
            if self._link is not None and not self._ingest.held:
                self.status.trouble = ""

    def _seal_and_publish(self) -> None:
        campaigns = self._campaigns.values()
        reading = None if self._ingest.held else self._link
        waiting = self._sealer.seal_due(reading, campaigns)
        if self._link is not None:
            self._results.publish(self._link, self._campaigns)
            self._receipts.publish(self._link, self._campaigns)
            self._receipts.clear(self._link, campaigns)
        final = [campaign for campaign in campaigns if campaign.id not in waiting]
        drop_unreleased(self._store, final, self._clock.now())
        end_retention(self._store, final, self._clock.now())

    def _storage_failed(self, error: StorageFailure) -> None:
        if self.status.trouble != str(error):
            log.error("%s", error)
        self.status.trouble = str(error)
        self.status.storage_failures += 1
