"""Answers kept for a second: ten readers of a page cost as much as one.

An answer that was dear to make is kept for ten times the processor time that it took, so that an
address read without end costs a tenth of a processor at most; one that had to wait, for a database
or on a busy machine, for as long as all of that took. What is kept has a limit in bytes: the oldest
answers go first, those that are no longer of use at once, and one beyond the limit is not kept.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from collector.web.limits import LIMITS

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
