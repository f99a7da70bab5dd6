"""Server-sent events: every open page is told when its data has changed, at most once a second.

One read of the database serves all readers. The message is small and holds no histogram; the page
then asks for what it shows, which the cache answers for all of them at once.

A reader beyond the limit takes the place of the oldest one, of its own address or of the address
that has most (A9). A page whose stream ends asks for a new one after three seconds by itself; one
that is refused never asks again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

from collector.data_dir import read_store
from collector.errors import UnknownCampaign
from collector.health import examine
from collector.show.facts import FillingFacts, filling
from collector.store import Store
from collector.web.limits import LIMITS, Limits

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
