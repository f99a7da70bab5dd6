"""Fresh answers for many readers at the price of one: limits, a cache, and server-sent events."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from collector.data_dir import read_store
from collector.errors import UnknownCampaign
from collector.health import examine
from collector.results.facts import filling
from collector.results.words import Facts
from collector.store import Store

CACHE_FACTOR: Final = 10.0
MOST_ANSWERS: Final = 128
MOST_BYTES: Final = 64 << 20
THREADS: Final = 2
ALL: Final = ""

log = logging.getLogger("allomfree.page")
T = TypeVar("T")
_Mailbox = asyncio.Queue[str | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the page may spend, and how fresh its answers are; tests choose smaller limits."""

    cache_seconds: float = 1.0  # how long an answer is kept
    event_seconds: float = 1.0  # how often the data is checked for open pages
    alive_seconds: float = 15.0  # how often a silent event stream shows that it is alive
    readers: int = 64  # of events, at once
    readers_of_one: int = 32  # of these, from one address
    connections: int = 256  # at once
    connections_of_one: int = 128  # of these, from one address
    request_seconds: float = 10.0  # from the connection, or the last answer, to a whole request
    reading_seconds: float = 20.0  # how long an answer waits for a reader that does not read it
    rows: int = 50_000  # values times rounds in one answer, for its memory


LIMITS = Limits()


def origin(host: str | None) -> str:
    """What connections are counted by: an address, or with IPv6 the network of one household."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


# --- the cache ----------------------------------------------------------------------------------


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
    """One answer per key, made once while several wait for it, in a thread next to the loop.

    An expensive answer is kept for ten times the processor time that it took, so that an address
    that is requested without end costs a tenth of a processor at most; one that had to wait, for
    a database or on a busy machine, for as long as all of that took. The cache has a limit in
    bytes: outdated answers go at once, then the oldest, and one beyond the limit is not kept.
    """

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
        """The answer, and when making it began: it includes everything stored before then."""
        self._evict()
        slot = self._slots.setdefault(key, _Slot(asyncio.Lock()))
        self._slots.move_to_end(key)
        async with slot.lock:
            if slot.made is not None and slot.serves(self._clock()):
                return slot.made, slot.began
            slot.made, slot.size, slot.began = None, 0, self._clock()
            if self._threads is None:  # it belongs to the loop, which runs only now
                self._threads = CapacityLimiter(THREADS)
            made, spent = await run_sync(self._timed, make, limiter=self._threads)
            slot.made, slot.size, now = made, self._size(made), self._clock()
            slot.until = now + max(self._keep_seconds, CACHE_FACTOR * spent, now - slot.began)
            if slot.size > MOST_BYTES and self._slots.get(key) is slot:
                del self._slots[key]  # those who wait for it still get it
            self._evict()
            return made, slot.began

    def _timed(self, make: Callable[[], T]) -> tuple[T, float]:
        """The answer, and the processor time that this thread spent on it."""
        before = self._processor_clock()
        made = make()
        return made, self._processor_clock() - before

    def _evict(self) -> None:
        now, held = self._clock(), sum(slot.size for slot in self._slots.values())
        for key, slot in list(self._slots.items()):
            idle = not slot.lock.locked() and not slot.serves(now)
            if idle or held > MOST_BYTES or len(self._slots) > MOST_ANSWERS:
                held -= slot.size
                del self._slots[key]


# --- events -------------------------------------------------------------------------------------


class _Reader(NamedTuple):
    campaign: str
    origin: str


class Hub:
    """Notifies open pages of a campaign, or of `ALL`, at most once a second.

    One read of the database serves all readers. The message is small and holds no histogram; the
    page then requests what it shows, which the cache answers for all of them at once.

    A reader beyond the limit takes the place of the oldest one, of its own address or of the
    address that has most (A9). A page whose stream ends requests a new one after three seconds by
    itself; one that is refused never does.
    """

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
        self._sent: dict[_Mailbox, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "events")  # a connection stays in its thread
        self._store: Store | None = None

    async def stream(self, campaign: str, reader: str) -> AsyncIterator[str]:
        """Events for one reader, until it leaves, gives way, or the server stops."""
        mailbox: _Mailbox = asyncio.Queue(1)
        self._make_room(reader)
        self._readers[mailbox] = _Reader(campaign, reader)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            yield "retry: 3000\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(mailbox.get(), self._limits.alive_seconds)
                except TimeoutError:
                    event = ": still here\n\n"
                if event is None:
                    return
                yield event
        finally:
            self._forget(mailbox)

    def stop(self) -> None:
        """End every stream now."""
        for mailbox in self._readers:
            _put(mailbox, None)
        self._thread.shutdown(wait=False)

    def _make_room(self, newcomer: str) -> None:
        """End the oldest stream of the address that has too many."""
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
        self._sent.pop(mailbox, None)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._readers:
            wanted = {reader.campaign for reader in self._readers.values()}
            seen = await loop.run_in_executor(self._thread, self._read, wanted)
            at = time.time()
            for mailbox, reader in self._readers.items():
                facts = seen.get(reader.campaign)
                if facts is not None and self._sent.get(mailbox) != facts:
                    self._sent[mailbox] = facts
                    _put(mailbox, f"event: change\nid: {at:.3f}\ndata: {facts}\n\n")
            await asyncio.sleep(self._limits.event_seconds)

    def _read(self, wanted: set[str]) -> dict[str, str]:
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
        except Exception as error:  # noqa: BLE001 - whatever it is, the other readers continue
            log.debug("no events just now: %s", type(error).__name__)
            # A connection that failed once may fail for ever; the next read opens another.
            store, self._store = self._store, None
            with suppress(Exception):
                if store is not None:
                    store.close()
            return None

    def _facts(self, store: Store, name: str) -> Facts:
        """`received` counts messages of all campaigns, or of the one that is named."""
        health = examine(self._directory)
        event: Facts = {"healthy": health.well, "service": health.finding}
        if name == ALL:
            return event | {"received": store.received()}
        found = store.campaign(name)
        return event | {
            "received": sum(store.outcomes(found.id).values()),
            "last_sealed": store.last_sealed(found.id),
            "filling": [filling(store, found, n) for n in store.open_rounds(found.id)],
        }


def _put(mailbox: _Mailbox, event: str | None) -> None:
    """Leave the newest event; a slow reader misses older ones, which say nothing more."""
    if mailbox.full():
        mailbox.get_nowait()
    mailbox.put_nowait(event)
