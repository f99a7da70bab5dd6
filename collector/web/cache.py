"""Answers kept for a second: ten readers of a page cost as much as one.

An answer that was slow to make is kept ten times as long as that took, so that an address read
without end costs a tenth of a processor at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

KEPT: Final = 1.0
TIMES: Final = 10.0
MOST: Final = 128
AT_ONCE: Final = 2

T = TypeVar("T")


@dataclass(slots=True)
class _Slot(Generic[T]):
    lock: asyncio.Lock
    made: T | None = None
    began: float = 0.0
    until: float = 0.0


class Cache(Generic[T]):
    """One answer a key, made once while several wait for it, in a thread beside the loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._slots: OrderedDict[str, _Slot[T]] = OrderedDict()
        self._threads: CapacityLimiter | None = None

    async def get(self, key: str, make: Callable[[], T]) -> tuple[T, float]:
        """The answer, and when its making began: it holds all that was there at that moment."""
        slot = self._slots.setdefault(key, _Slot(asyncio.Lock()))
        self._slots.move_to_end(key)
        while len(self._slots) > MOST:
            self._slots.popitem(last=False)
        async with slot.lock:
            if slot.made is None or not slot.began <= self._clock() < slot.until:
                slot.began = self._clock()
                slot.made = await run_sync(make, limiter=self._limiter())
                now = self._clock()
                slot.until = now + max(KEPT, TIMES * (now - slot.began))
            return slot.made, slot.began

    def _limiter(self) -> CapacityLimiter:
        if self._threads is None:  # it belongs to the loop, which runs only now
            self._threads = CapacityLimiter(AT_ONCE)
        return self._threads
