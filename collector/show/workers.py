"""Workers that share a store, as typed facts; none where the store is one worker's own."""

from __future__ import annotations

from typing import Final, TypedDict

from collector.store import StoreReader
from collector.store.workers import SharedStore

ROLES: Final = ("leads", "counts", "fenced")


class WorkerFacts(TypedDict):
    """A worker as the others see it; `drained` is how many seconds ago it had nothing waiting."""

    number: int
    name: str
    leads: bool
    fenced: bool
    silent: float
    drained: float | None
    received: int


def worker_facts(store: StoreReader) -> list[WorkerFacts]:
    """Those that enlisted and did not retire; times by the database's clock."""
    if not isinstance(store, SharedStore):
        return []
    now = store.now()
    return [
        {
            "number": worker.number,
            "name": worker.name,
            "leads": worker.leads,
            "fenced": worker.fenced,
            "silent": round(max(0.0, now - worker.seen), 1),
            "drained": round(max(0.0, now - worker.drained), 1) if worker.drained else None,
            "received": worker.received,
        }
        for worker in store.workers()
    ]


def role_of(worker: WorkerFacts) -> str:
    """What it does: one of `ROLES`."""
    return "fenced" if worker["fenced"] else "leads" if worker["leads"] else "counts"
