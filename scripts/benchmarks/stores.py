"""Ingest into PostgreSQL against ingest into SQLite, one worker each, in turns.

Each as it is run: a collector alone subscribes by MQTT, a worker pulls from NATS's own stream. The
server is a real one that syncs every commit, on the same machine: what it takes of the
processors is taken from the worker and the broker.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg
from psycopg import sql

from benchmarks.campaign import UnsyncedNats
from benchmarks.draining import Drained, drained
from benchmarks.measurements import Measurement, in_turns, median_of, ratio_of
from collector.links.stream import StreamConnector
from collector.settings import parse_streams
from collector.store_address import StoreAddress
from protocol_spec import DEFAULT_NAMESPACE
from protocol_spec.programs.settings import Credentials
from testbed.brokers import publish
from testbed.collector import HOW, PostgresProcess, find_postgres


def measure(count: int, runs: int, k: int) -> list[Measurement]:
    """Both stores, where PostgreSQL is installed."""
    if find_postgres() is None:
        print(f"not measured: {HOW}", file=sys.stderr)
        return []
    with server_for_a_while() as server:
        shared, own = in_turns(runs, partial(_shared, server, count, k), partial(_own, count, k))
    note = f"one worker, {runs} runs of {count:,} reports"
    return [
        ratio_of(
            "ingest into PostgreSQL / into SQLite",
            [run.per_second for run in shared],
            [run.per_second for run in own],
            note=note,
            at_least=0.8,
        ),
        *_rows("PostgreSQL", shared),
        *_rows("SQLite", own),
    ]


@contextmanager
def server_for_a_while() -> Iterator[PostgresProcess]:
    """A server that syncs every commit, and trusts whoever connects from this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)  # the server's user, if another, has to enter
        with PostgresProcess(Path(scratch) / "postgres", trusting=True) as server:
            yield server


def _rows(name: str, of: list[Drained]) -> list[Measurement]:
    """What one store took by itself."""
    return [
        median_of(f"{name}: reports a second", [run.per_second for run in of], "/s"),
        median_of(f"{name}: CPU time of a report", [run.cpu_microseconds for run in of], "µs"),
        median_of(f"{name}: CPU time of the broker", [run.broker_microseconds for run in of], "µs"),
        *_of_the_server(name, of),
        median_of(f"{name}: sealing the round", [run.seal_seconds for run in of], "s"),
    ]


def _of_the_server(name: str, of: list[Drained]) -> list[Measurement]:
    used = [run.server_microseconds for run in of]
    return [median_of(f"{name}: CPU time of the server", used, "µs")] if any(used) else []


def _own(count: int, k: int, _repeat: int) -> Drained:
    return Drained(**drained("our_reader", UnsyncedNats, count, k))


def _shared(server: PostgresProcess, count: int, k: int, repeat: int) -> Drained:
    url = fresh_database(server, f"run_{repeat}").url

    def told(broker: UnsyncedNats) -> tuple[str, str, str]:
        stream = f"nats://127.0.0.1:{broker.stream_port}"
        _make_consumer(broker, stream)
        return stream, url, str(server.pid)

    return Drained(**drained("shared_reader", UnsyncedNats, count, k, told))


def _make_consumer(broker: UnsyncedNats, stream: str) -> None:
    """NATS keeps what is published for the consumer that workers share."""
    publish(broker.url, ())  # it makes its stream for the first MQTT client
    StreamConnector(lambda: parse_streams(stream), Credentials(), DEFAULT_NAMESPACE)().close()


def fresh_database(server: PostgresProcess, name: str) -> StoreAddress:
    """A database of its own."""
    with closing(psycopg.connect(server.address().url, autocommit=True)) as db:
        db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return server.address(name)
