"""One of several workers at work: live, read, count, and lead if nobody else does.

One thread does everything in turn, as with one worker alone: a batch is committed before any of it
is acknowledged (I6), on the connection that brought it (I7). What differs is who publishes: only
the worker that leads, from what the store says that all have counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from collector.coordinator import Context, Emit, Trace
from collector.device_key import DeviceKey
from collector.errors import Fenced, NotLeading, StorageFailure
from collector.health import Status
from collector.ingest.admit import OpenCampaigns
from collector.ingest.batch import Ingest
from collector.ingest.flood import FloodGuard
from collector.links import Connect, OpenSource
from collector.register import CampaignCache
from collector.store import Store
from collector.timing import SYSTEM_CLOCK, USUAL, Clock, ClockMemory, ClockWatch, StoreTime, Timing
from collector.workers.drained import SharedDrain
from collector.workers.feed import NoPages
from collector.workers.leading import Leader
from collector.workers.reading import Reader
from protocol_spec import DEFAULT_NAMESPACE

FINISH_SECONDS: Final = 3.0  # for what is on its way to a worker that is stopped

log = logging.getLogger("allomfree.collector")


@dataclass(frozen=True, slots=True)
class Connections:
    """How a worker connects: to what brings its reports, and, if it leads, to what publishes."""

    source: OpenSource
    publisher: Connect
    whole: bool  # whether a source speaks for all workers when it says that it is drained
    restart_broker: Callable[[], None] = lambda: None


class SharedService:
    """Collects its part for every open campaign of a store that it shares with others."""

    def __init__(
        self,
        store: Store,
        key: DeviceKey,
        lines: Connections,
        *,
        name: str,
        namespace: str = DEFAULT_NAMESPACE,
        home_assistant: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = USUAL,
        emit: Emit = lambda _campaign, _result: None,
        trace: Trace = lambda _: None,
        clock_memory: ClockMemory | None = None,
    ) -> None:
        self.status = Status()
        self._store = store
        self._name = name
        self._timing = timing
        self._time = StoreTime(clock)
        self._clock = self._time.clock()
        known = OpenCampaigns({}, frozenset(), key, namespace)
        self._register = CampaignCache(store, known)
        self._watch = ClockWatch(
            self._clock, timing, lambda: self._time.agrees(timing.jump_seconds), clock_memory
        )
        guard = FloodGuard(self._clock, timing)
        self._ingest = Ingest(
            store, known, NoPages(namespace), guard, self.status, self._watch.latest, trace
        )
        self._reader = Reader(store, self._ingest, lines.source, self._clock, timing)
        around = Context(
            store, self._register, namespace, home_assistant, self._clock, timing, emit, trace
        )
        self._leader = Leader(
            store,
            around,
            SharedDrain(self._clock, timing, whole=lines.whole),
            self._watch,
            lambda: lines.publisher(None),  # no last will: another worker may lead by then
            clock,
            self.status,
            lines.restart_broker,
        )
        self._number: int | None = None
        self._trouble = ""
        self._next_beat = self._next_upkeep = 0.0

    def run(self, stop: Callable[[], bool], beat: Callable[[], None] = lambda: None) -> None:
        """Until told to stop; then finish the batch at hand and leave in good order."""
        try:
            while not stop():
                self.turn(self._timing.step_seconds)
                beat()
        finally:
            self.shut_down()

    def turn(self, wait_seconds: float) -> None:
        """One turn: a sign of life, a batch, and what a leader does."""
        try:
            self._live()
            self._leader.turn()  # first: at NATS, the stream is made for the first MQTT client
            self._reader.turn(wait_seconds)
            self._upkeep()
        except Fenced as error:
            log.warning("%s", error)
            self._number = None
            self._leader.step_down()
        except NotLeading:
            self._leader.step_down()
        except StorageFailure as error:
            self._storage_failed(error)
            self._clock.sleep(self._timing.storage_retry_seconds)
        else:
            if self._trouble:
                log.info("the storage takes writes again; counting goes on")
            self._trouble = ""
        self._say_how_it_goes()

    def shut_down(self) -> None:
        """Let others take over, or, as the last one, say that nobody collects."""
        last = True
        with suppress(StorageFailure):
            workers = [w for w in self._store.workers() if not w.fenced]
            last = all(worker.number == self._number for worker in workers)
            if not last:
                self._reader.finish(self._store.now(), FINISH_SECONDS)
        self._leader.close(last=last)
        self._reader.close(stay=last)
        with suppress(StorageFailure):
            self._store.retire()

    # --- signs of life ---------------------------------------------------------------------------

    def _live(self) -> None:
        """Enlist if need be, say what is proven, and notice what other processes changed."""
        if self._number is None:
            self._number = self.status.worker = self._store.enlist(self._name)
            log.info("this is worker %d", self._number)
            self._next_beat = 0.0
        now = self._clock.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + self._timing.beat_every_seconds
        moment = self._store.beat(self._reader.drained)
        self._time.heard(moment)
        self._reader.mark(moment)
        self._look()

    def _look(self) -> None:
        change = self._register.look(self._clock.now())
        if change is not None:
            self._ingest.campaigns = self._register.admitted
            self._leader.changed(change)

    def _upkeep(self) -> None:
        now = self._clock.monotonic()
        if now < self._next_upkeep:
            return
        self._next_upkeep = now + self._timing.upkeep_every_seconds
        self._watch.tick()
        self._leader.upkeep()
        self._ingest.campaigns = self._register.admitted
        self._store.wipe_log()

    # --- how it goes -----------------------------------------------------------------------------

    def _say_how_it_goes(self) -> None:
        self.status.connected = self._reader.connected
        self.status.trouble = self._trouble or self._reader.trouble or self._leader.trouble

    def _storage_failed(self, error: StorageFailure) -> None:
        if self._trouble != str(error):
            log.error("%s", error)
        self._trouble = str(error)
        self.status.storage_failures += 1
