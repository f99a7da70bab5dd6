"""Stores for tests: every engine behind one interface, PostgreSQL once per worker, full disks."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg

from collector.errors import StorageFailure
from collector.records import Campaign, Candidate, Refusal, Withdrawal
from collector.settings import StoreAddress
from collector.store import Store
from collector.store.postgres import PostgresStore
from collector.store.sqlite import SqliteStore
from protocol_spec import Outcome
from testbed.collector import PostgresProcess
from tests.support.harness import QUICK_DISK, need

_numbers = count()


@cache
def server() -> PostgresProcess:
    """The server of this process: it gives up durability, and ends with the process."""
    need("postgres")
    directory = Path(tempfile.mkdtemp(prefix="postgres-", dir=QUICK_DISK))
    directory.chmod(0o755)  # the server's user, if another, has to enter
    started = PostgresProcess(directory, quick=True, trusting=True)
    # At the end of this process, also of a forked one; the higher number first.
    Finalize(None, started.stop, exitpriority=2)
    Finalize(None, shutil.rmtree, (directory,), {"ignore_errors": True}, exitpriority=1)
    started.start()
    return started


def new_schema(now: float | None = None) -> StoreAddress:
    """An empty schema for the tables of one store; with a time, its clock says what its table
    `clock` holds.

    A function of the schema takes the place of the server's own clock.
    """
    name = f"test_{next(_numbers)}"
    admin(f"CREATE SCHEMA {name}")
    path = name
    if now is not None:
        path = f"{name},pg_catalog"
        admin(f"CREATE TABLE {name}.clock AS SELECT {now}::double precision AS now")
        clock = f"SELECT to_timestamp(now) FROM {name}.clock"  # noqa: S608 - a name of ours
        declared = f"FUNCTION {name}.clock_timestamp() RETURNS timestamptz"
        admin(f"CREATE {declared} LANGUAGE sql AS '{clock}'")
    return server().address(options=f"-csearch_path%3D{path}")


def admin(statement: str, address: StoreAddress | None = None) -> list[tuple[object, ...]]:
    """Run a statement as the server's owner; its rows, if it has any."""
    where = (address or server().address()).url
    with psycopg.connect(where, autocommit=True) as db:
        done = db.execute(statement)
        return done.fetchall() if done.description else []


def wait_for_a_lock(address: StoreAddress, query: str) -> None:
    """Until a statement that holds this text waits for another session."""
    limit = time.monotonic() + 60
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "  # noqa: S608
        f"AND query LIKE '%{query}%'"
    )
    while admin(waiting, address) != [(1,)]:
        assert time.monotonic() < limit
        time.sleep(0.01)


def as_user(name: str, address: StoreAddress | None = None) -> StoreAddress:
    """The same place for another user: `locked` needs a password, `guest` may do nothing, `lonely`
    may connect once."""
    _make_users()
    return StoreAddress((address or server().address()).url.replace("allomfree@", f"{name}@"))


@cache
def _make_users() -> None:
    rules = server().data / "pg_hba.conf"
    locked = "host all locked 127.0.0.1/32 scram-sha-256\n"
    rules.write_text(locked + rules.read_text(encoding="utf-8"), encoding="utf-8")
    admin("SELECT pg_reload_conf()")
    admin("CREATE ROLE locked LOGIN PASSWORD 'of-another'")
    admin("CREATE ROLE guest LOGIN")
    admin("CREATE ROLE lonely LOGIN CONNECTION LIMIT 1")


# --- every engine ---------------------------------------------------------------------------------


class Engine(Protocol):
    """Opens stores: under one name always the same database, as another process would."""

    def __init__(self, directory: Path, *, chunk: int = 200) -> None: ...

    def open(self, name: str = "collector") -> Store: ...

    def upgrade(self) -> None:
        """As a newer version of the program would, while others have the database open."""


class SqliteEngine:
    def __init__(self, directory: Path, *, chunk: int = 200) -> None:
        self.directory = directory
        self._chunk = chunk

    def open(self, name: str = "collector") -> SqliteStore:
        return SqliteStore(self.directory / f"{name}.db", chunk=self._chunk)

    def upgrade(self) -> None:
        with closing(sqlite3.connect(self.directory / "collector.db")) as db:
            db.execute("PRAGMA user_version = 2")


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

    def upgrade(self) -> None:
        admin("UPDATE allomfree SET version = 2", self.address())


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
