"""Answers kept for a second: ten readers of a page cost as much as one.

An answer that was dear to make is kept for ten times the processor time that it took, so that an
address read without end costs a tenth of a processor at most; one that had to wait, for a database
or on a busy machine, for as long as all of that took. What is kept has a limit in bytes: the oldest
answers go first, those that are no longer of use at once, and one beyond the limit is not kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypedDict, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from collector.data_dir import read_store
from collector.errors import UnknownCampaign
from collector.health import examine
from collector.results.facts import FillingFacts, filling
from collector.store import Store
from collector.web.guard import LIMITS, Limits

TIMES: Final = 10.0
MOST: Final = 128
MOST_BYTES: Final = 64 << 20
AT_ONCE: Final = 2

T = TypeVar("T")


@dataclass(slots=True)
class _Slot(Generic[T]):
    lock: asyncio.Lock
    made: T | None = None
    size: int = 0
    began: float = 0.0
    until: float = 0.0

    def serves(self, now: float) -> bool:
        return self.made is not None and self.began <= now < self.until


class Cache(Generic[T]):
    """One answer a key, made once while several wait for it, in a thread beside the loop."""

    def __init__(
        self,
        size: Callable[[T], int],
        clock: Callable[[], float] = time.time,
        processor_clock: Callable[[], float] = time.thread_time,
        keep_seconds: float = LIMITS.cache_seconds,
    ) -> None:
        self._size = size
        self._clock = clock
        self._processor_clock = processor_clock
        self._keep_seconds = keep_seconds
        self._slots: OrderedDict[str, _Slot[T]] = OrderedDict()
        self._threads: CapacityLimiter | None = None

    async def get(self, key: str, make: Callable[[], T]) -> tuple[T, float]:
        """The answer, and when its making began: it holds all that was there at that moment."""
        self._tidy()
        slot = self._slots.setdefault(key, _Slot(asyncio.Lock()))
        self._slots.move_to_end(key)
        async with slot.lock:
            if slot.made is None or not slot.serves(self._clock()):
                slot.made, slot.size, slot.began = None, 0, self._clock()
                work = partial(self._timed, make)
                made, spent = await run_sync(work, limiter=self._limiter())
                slot.made = made
                slot.size, now = self._size(made), self._clock()
                slot.until = now + max(self._keep_seconds, TIMES * spent, now - slot.began)
                if slot.size > MOST_BYTES and self._slots.get(key) is slot:
                    del self._slots[key]  # those who wait for it still get it
                self._tidy()
                return made, slot.began
            return slot.made, slot.began

    def _timed(self, make: Callable[[], T]) -> tuple[T, float]:
        """The answer, and the processor time that this thread spent on it."""
        before = self._processor_clock()
        made = make()
        return made, self._processor_clock() - before

    def _tidy(self) -> None:
        """Drop what is out of date, and the oldest while there is too much."""
        now, held = self._clock(), sum(slot.size for slot in self._slots.values())
        for key, slot in list(self._slots.items()):
            idle = not slot.lock.locked() and not slot.serves(now)
            if idle or held > MOST_BYTES or len(self._slots) > MOST:
                held -= slot.size
                del self._slots[key]

    def _limiter(self) -> CapacityLimiter:
        if self._threads is None:  # it belongs to the loop, which runs only now
            self._threads = CapacityLimiter(AT_ONCE)
        return self._threads


# --- Server-sent events: every open page is told when its data has changed, at most once a second.


ALL: Final = ""

log = logging.getLogger("allomfree.page")
_Mailbox = asyncio.Queue[str | None]


class ServiceEvent(TypedDict):
    """Something has changed; `received` counts messages of all campaigns."""

    healthy: bool
    service: str
    received: int


class CampaignEvent(ServiceEvent):
    """Something has changed in one campaign; `received` counts its messages only."""

    last_sealed: int | None
    filling: list[FillingFacts]


@dataclass(frozen=True, slots=True)
class _Reader:
    """What is followed, and from where."""

    campaign: str
    origin: str


class Hub:
    """Tells readers of a campaign, or of `ALL`, what changed."""

    def __init__(
        self,
        directory: Path,
        limits: Limits = LIMITS,
        open_store: Callable[[Path], Store] = read_store,
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._open_store = open_store
        self._readers: dict[_Mailbox, _Reader] = {}  # oldest first
        self._told: dict[_Mailbox, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "events")  # a connection stays in its thread
        self._store: Store | None = None

    async def stream(self, campaign: str, origin: str) -> AsyncIterator[str]:
        """Events for one reader, until it leaves, gives way, or the server stops."""
        mailbox: _Mailbox = asyncio.Queue(1)
        self._make_room(origin)
        self._readers[mailbox] = _Reader(campaign, origin)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            yield "retry: 3000\n\n"
            while (event := await self._next(mailbox)) is not None:
                yield event
        finally:
            self._forget(mailbox)

    def stop(self) -> None:
        """End every stream now."""
        for mailbox in self._readers:
            _put(mailbox, None)
        self._thread.shutdown(wait=False)

    def _make_room(self, newcomer: str) -> None:
        """End the oldest stream of whoever has too many."""
        held = Counter(reader.origin for reader in self._readers.values())
        if held[newcomer] >= self._limits.readers_of_one:
            crowd = newcomer
        elif len(self._readers) >= self._limits.readers:
            crowd = max(held, key=held.__getitem__)
        else:
            return
        oldest = next(m for m, reader in self._readers.items() if reader.origin == crowd)
        self._forget(oldest)
        _put(oldest, None)

    def _forget(self, mailbox: _Mailbox) -> None:
        self._readers.pop(mailbox, None)
        self._told.pop(mailbox, None)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._readers:
            wanted = {reader.campaign for reader in self._readers.values()}
            seen = await loop.run_in_executor(self._thread, self._read, wanted)
            at = time.time()
            for mailbox, reader in self._readers.items():
                facts = seen.get(reader.campaign)
                if facts is not None and self._told.get(mailbox) != facts:
                    self._told[mailbox] = facts
                    _put(mailbox, f"event: change\nid: {at:.3f}\ndata: {facts}\n\n")
            await asyncio.sleep(self._limits.event_seconds)

    def _read(self, wanted: set[str]) -> dict[str, str]:
        """The event of each campaign, as JSON."""
        found = {name: self._event(name) for name in wanted}
        return {name: facts for name, facts in found.items() if facts is not None}

    def _event(self, name: str) -> str | None:
        """None while there is no database or no such campaign: its readers wait."""
        try:
            if self._store is None:
                self._store = self._open_store(self._directory)
            return json.dumps(self._facts(self._store, name))
        except UnknownCampaign:
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the other readers go on
            log.debug("no events just now: %s", type(error).__name__)
            self._close()
            return None

    def _close(self) -> None:
        """A connection that failed once may fail for ever; the next read opens another."""
        store, self._store = self._store, None
        with suppress(Exception):
            if store is not None:
                store.close()

    def _facts(self, store: Store, name: str) -> ServiceEvent | CampaignEvent:
        health = examine(self._directory)
        event: ServiceEvent = {
            "healthy": health.well,
            "service": health.finding,
            "received": store.received(),
        }
        if name == ALL:
            return event
        found = store.campaign(name)
        return {
            **event,
            "received": sum(store.outcomes(found.id).values()),
            "last_sealed": store.last_sealed(found.id),
            "filling": [filling(store, found, n) for n in store.open_rounds(found.id)],
        }

    async def _next(self, mailbox: _Mailbox) -> str | None:
        try:
            return await asyncio.wait_for(mailbox.get(), self._limits.alive_seconds)
        except TimeoutError:
            return ": still here\n\n"


def _put(mailbox: _Mailbox, event: str | None) -> None:
    """Leave the newest event; a slow reader misses older ones, which say nothing more."""
    if mailbox.full():
        mailbox.get_nowait()
    mailbox.put_nowait(event)
