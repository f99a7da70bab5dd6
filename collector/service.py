"""The collector at work: connect, read, count, seal and publish.

One thread does everything in turn, so the order that exactness needs is the order of the code:
a batch is committed before any of it is acknowledged (I6), on the connection that brought it (I7);
when the disk refuses, nothing more is read and the broker waits (I13, I15).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from collector.coordinator import Context, Coordinator, Emit, Trace
from collector.device_key import DeviceKey
from collector.errors import StorageFailure
from collector.health import Status
from collector.ingest.admit import OpenCampaigns
from collector.ingest.batch import Ingest
from collector.ingest.flood import FloodGuard
from collector.ingest.receipts import ReceiptPages
from collector.links import BrokerWatch, Connect, Link, Reconnector
from collector.register import CampaignCache
from collector.rounds.sealing import Drain
from collector.store import Store
from collector.timing import SYSTEM_CLOCK, USUAL, Clock, ClockMemory, ClockWatch, Timing
from protocol_spec import DEFAULT_NAMESPACE
from protocol_spec.programs.system import synchronised
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
        emit: Emit = lambda _campaign, _result: None,
        trace: Trace = lambda _: None,
        restart_broker: Callable[[], None] = lambda: None,
        clock_confirmed: Callable[[], bool | None] = synchronised,
        clock_memory: ClockMemory | None = None,
    ) -> None:
        self.status = Status()
        self._store = store
        self._clock = clock
        self._timing = timing
        self._namespace = namespace
        pages = ReceiptPages(namespace)
        known = OpenCampaigns({}, frozenset(), key, namespace)
        guard = FloodGuard(clock, timing)
        self._watch = ClockWatch(clock, timing, clock_confirmed, clock_memory)
        self._ingest = Ingest(store, known, pages, guard, self.status, self._watch.latest, trace)
        self._register = CampaignCache(store, known)
        self._drain = Drain(namespace, clock, timing)
        self._broker = BrokerWatch(namespace, clock, timing, restart_broker)
        around = Context(
            store, self._register, namespace, home_assistant, clock, timing, emit, trace
        )
        self._coordinator = Coordinator(around, pages, self._drain, self._watch)
        self._line: Reconnector[Link] = Reconnector(
            lambda: connect(self._coordinator.will()), clock, timing
        )
        self._storage_trouble = False
        self._next_upkeep = 0.0

    def run(self, stop: Callable[[], bool], beat: Callable[[], None] = lambda: None) -> None:
        """Until told to stop; then finish the batch at hand and say goodbye."""
        self._refresh()
        self._coordinator.load()
        try:
            while not stop():
                self.turn(self._timing.step_seconds)
                beat()
        finally:
            self.shut_down()

    def turn(self, wait_seconds: float) -> None:
        """One turn: connect if need be, take a batch, and once in a while the upkeep."""
        self._refresh()
        self._open_link()
        if self._line.current is not None:
            self._read(self._line.current, wait_seconds)
        else:
            self._clock.sleep(min(wait_seconds, self._line.rest_seconds))
        if self._clock.monotonic() >= self._next_upkeep:
            self._next_upkeep = self._clock.monotonic() + self._timing.upkeep_every_seconds
            self._upkeep()

    def shut_down(self) -> None:
        """Say offline and close; the session stays at the broker and keeps what comes."""
        if self._line.current is not None:
            self._coordinator.goodbye(self._line.current)
            self._line.drop()

    def _refresh(self) -> None:
        """Notice campaigns opened or closed and devices revoked by other processes."""
        change = self._register.look(self._clock.now())
        if change is None:
            return
        self._ingest.campaigns = self._register.admitted
        if self._line.current is not None:
            self._coordinator.changed(self._line.current, change)

    # --- connection --------------------------------------------------------------------------

    def _open_link(self) -> None:
        link = self._line.attempt()
        if link is not None:
            self._drain.connected(link)
            self._broker.connected()
            link.subscribe(from_all_devices(self._namespace))
            self._coordinator.connected(link)
            self.status.connected, self.status.trouble = True, ""
        elif self._line.current is None:
            self.status.connected = False
            self.status.trouble = self._line.trouble or self.status.trouble

    def _disconnected(self, reason: str) -> None:
        self._line.ended(reason)
        self._ingest.release()
        self.status.connected, self.status.trouble = False, reason

    # --- messages and upkeep -----------------------------------------------------------------

    def _read(self, link: Link, wait_seconds: float) -> None:
        """Take the batch that the storage refused before, or else the next one."""
        self._ingest.watch()
        self._ingest.answer(link)
        self._coordinator.clear(link)
        messages = self._ingest.held
        if not messages:
            messages = link.step(wait_seconds)
            self._drain.read(messages)
            self._coordinator.answered(link.answers())
        if messages:
            self._line.was_useful()
            try:
                self._ingest.take(link, messages)
                self._drain.committed(messages)
            except StorageFailure as error:
                self._storage_failed(error)
                self._clock.sleep(self._timing.storage_retry_seconds)
        if link.lost:
            self._disconnected(link.lost)

    def _upkeep(self) -> None:
        """Seal what is due, publish receipts and results, clear what is no longer needed."""
        reading = None if self._ingest.held else self._line.current
        self._watch.tick()
        self._drain.tick(reading=reading is not None)
        try:
            self._seal_and_publish(reading)
            self._store.wipe_log()
        except StorageFailure as error:
            self._storage_failed(error)
        else:
            self._is_well(reading)

    def _seal_and_publish(self, reading: Link | None) -> None:
        waiting = self._coordinator.seal(reading, self.status)
        self._ingest.campaigns = self._register.admitted
        if reading is not None:
            self._drain.send(reading)
        if self._line.current is not None:
            self._coordinator.publish(self._line.current)
        self._coordinator.tidy(waiting)

    def _is_well(self, reading: Link | None) -> None:
        """The storage works; while messages are read, the broker should, too."""
        if reading is None:
            return
        if self._storage_trouble:
            log.info("the storage takes writes again; counting goes on")
        self._storage_trouble = False
        self.status.trouble = self._broker.tick(reading)

    def _storage_failed(self, error: StorageFailure) -> None:
        if self.status.trouble != str(error):
            log.error("%s", error)
        self.status.trouble = str(error)
        self.status.storage_failures += 1
        self._storage_trouble = True
