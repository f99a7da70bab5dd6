"""Stores for tests: every engine behind one face, a look at all a store holds, and full disks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

from collector.errors import StorageFailure
from collector.records import Campaign, Candidate, Refusal, Withdrawal
from collector.store import Store
from collector.store.postgres import PostgresStore
from collector.store.sqlite import SqliteStore
from collector.store_address import StoreAddress
from protocol_spec import Outcome
from tests.support.postgres import new_schema


class Engine(Protocol):
    """Opens stores: under one name always the same database, as another process would."""

    def __init__(self, directory: Path, *, chunk: int = 200) -> None: ...

    def open(self, name: str = "collector") -> Store: ...


class SqliteEngine:
    def __init__(self, directory: Path, *, chunk: int = 200) -> None:
        self.directory = directory
        self._chunk = chunk

    def open(self, name: str = "collector") -> SqliteStore:
        return SqliteStore(self.directory / f"{name}.db", chunk=self._chunk)


class PostgresEngine:
    """A schema of its own for each name, on the server of this process."""

    def __init__(self, directory: Path, *, chunk: int = 200) -> None:  # noqa: ARG002
        self._addresses: dict[str, StoreAddress] = {}

    def address(self, name: str = "collector") -> StoreAddress:
        if name not in self._addresses:
            self._addresses[name] = new_schema()
        return self._addresses[name]

    def open(self, name: str = "collector") -> PostgresStore:
        return PostgresStore(self.address(name))


ENGINES: Final[dict[str, type[Engine]]] = {"sqlite": SqliteEngine, "postgres": PostgresEngine}


def snapshot(store: Store, rounds: int = 8) -> dict[str, Any]:
    """Everything that a store says of its first rounds, to be compared with itself later."""
    told: dict[str, Any] = {
        "campaigns": store.campaigns(),
        "revoked": store.revoked(),
        "received": store.received(),
        "outcomes": store.outcomes(),
        "requests": store.requests(),
        "unpublished": store.unpublished(10_000),
    }
    for campaign in store.campaigns():
        told[campaign.name] = _of_campaign(store, campaign, rounds)
    return told


def _of_campaign(store: Store, campaign: Campaign, rounds: int) -> dict[str, Any]:
    key, attributes = campaign.id, range(len(campaign.manifest.attributes))
    return {
        "open": store.open_rounds(key),
        "sealed": store.last_sealed(key),
        "clearable": store.clearable_receipts(key),
        "results": [result.encode() for result in store.results(key)],
        "participation": [store.participation(key, a) for a in attributes],
        "rounds": [_of_round(store, key, number) for number in range(rounds)],
    }


def _of_round(store: Store, campaign: int, number: int) -> dict[str, Any]:
    tallies = store.tallies(campaign, number).items()
    return {
        "outcomes": store.outcomes(campaign, number),
        "reports": sorted(store.receipt_tags(campaign, number)),
        "tallies": {a: (tally.n, tally.counts.tolist()) for a, tally in tallies},
    }


def withdraw(store: Store, campaign: Campaign, device: int) -> int:
    """Forget one device; in how many open rounds it had a report."""
    (done,) = store.withdraw([(campaign.id, device)])
    return len(done.reports)


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table of an SQLite file, as another process sees them."""
    with closing(sqlite3.connect(path)) as db:
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {n: db.execute(f"SELECT * FROM {n}").fetchall() for n in names}  # noqa: S608


class Tap:
    """Connects as `sqlite3.connect` does, and keeps the connection for the test to disturb."""

    db: sqlite3.Connection

    def __init__(self) -> None:
        self.made: Callable[[sqlite3.Connection], None] = lambda _: None

    def __call__(self, *place: Any, **options: Any) -> sqlite3.Connection:
        self.db = sqlite3.connect(*place, **options)
        self.made(self.db)
        return self.db

    def allow_no_growth(self) -> None:
        """The database is as large as it may become."""
        (pages,) = self.db.execute("PRAGMA page_count").fetchone()
        self.db.execute(f"PRAGMA max_page_count = {pages}")

    def allow_growth(self) -> None:
        self.db.execute("PRAGMA max_page_count = 1000000")


class FullDisk(SqliteStore):
    """Refuses to write while `full` is set."""

    full = False

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        self._check()
        return super().commit(candidates, refusals)

    def withdraw(
        self, asked: Sequence[tuple[int, int]], *, repeated: int = 0, invalid: int = 0
    ) -> list[Withdrawal]:
        self._check()
        return super().withdraw(asked, repeated=repeated, invalid=invalid)

    def publish_again(self) -> None:
        self._check()
        super().publish_again()

    def _check(self) -> None:
        if self.full:
            raise StorageFailure("the disk is full")
