"""Server-sent events: every open page is told when its data has changed, at most once a second.

One read of the database serves all readers. The message is small and holds no histogram; the page
then asks for what it shows, which the cache answers for all of them at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
        self._readers: dict[_Mailbox, str] = {}
        self._told: dict[_Mailbox, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "events")  # a connection stays in its thread
        self._store: Store | None = None

    @property
    def full(self) -> bool:
        """Whether there are as many readers as can be served."""
        return len(self._readers) >= self._limits.readers

    async def stream(self, campaign: str) -> AsyncIterator[str]:
        """Events for one reader, until it leaves or the server stops."""
        mailbox: _Mailbox = asyncio.Queue(1)
        self._readers[mailbox] = campaign
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            yield "retry: 3000\n\n"
            while (event := await self._next(mailbox)) is not None:
                yield event
        finally:
            self._readers.pop(mailbox, None)
            self._told.pop(mailbox, None)

    def stop(self) -> None:
        """End every stream now."""
        for mailbox in self._readers:
            _put(mailbox, None)
        self._thread.shutdown(wait=False)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._readers:
            wanted = set(self._readers.values())
            seen = await loop.run_in_executor(self._thread, self._read, wanted)
            at = time.time()
            for mailbox, campaign in self._readers.items():
                facts = seen.get(campaign)
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
