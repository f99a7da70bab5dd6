"""PostgreSQL for tests: one server for each process that runs tests, a schema for each store."""

from __future__ import annotations

import shutil
import tempfile
import time
from functools import cache
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path

import psycopg

from collector.store_address import StoreAddress
from testbed.collector import PostgresProcess
from tests.support.needs import need
from tests.support.places import QUICK_DISK

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
