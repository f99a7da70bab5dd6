"""Durable exactly-once counting by `allomfree-collector run`: against bare paho, over TLS, into
PostgreSQL, and by several workers.

Reports are published to a session, or a stream, while nobody reads; then the time to drain it is
taken. So both sides read the same messages from the same broker, and nothing else runs. The rate is
that between the first batch seen in the database and the last.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from benchmarks.children import SESSION, child
from benchmarks.report import Measurement, in_turns, median_of, medians, progress, ratio_of
from benchmarks.workload import (
    RoomyMosquitto,
    UnsyncedNats,
    manifest,
    reports,
    trusting,
)
from collector.data_dir import DeviceKey, open_shared, open_store
from collector.links.stream import StreamConnector
from collector.rounds import sealing
from collector.settings import StoreAddress, parse_streams
from collector.store import Store
from protocol_spec import DEFAULT_NAMESPACE
from protocol_spec.programs.settings import Credentials
from protocol_spec.topics import from_all_devices
from testbed.brokers import Broker, make_session, publish, with_tls
from testbed.collector import HOW, CollectorProcess, PostgresProcess, find_postgres, store_flags
from testbed.processes import (
    TestbedError,
    child_pids,
    cpu_seconds,
    find_program,
    resident_bytes,
)

MEMORY_MIB: Final = 120.0  # with a million reports in the round
WORKERS: Final = {1: None, 2: 1.7, 4: 3.0}  # at least so many times the rate of one worker
MEASURED: Final = (0.1, 0.8)  # of the reports: before, workers start; after, some are idle
LONGEST_SECONDS: Final = 900.0
TICK_SECONDS: Final = 0.005
ROWS: Final = {
    "per_second": ("reports a second", "/s"),
    "cpu": ("CPU time of a report", "µs"),
    "broker": ("CPU time of the broker", "µs"),
    "server": ("CPU time of the server", "µs"),
    "seal": ("sealing the round", "s"),
}
SHORT: Final = {field: ROWS[field] for field in ("per_second", "cpu")}

Run = dict[str, float]


def drained(
    kind: type[Broker],
    count: int,
    k: int = 100,
    *,
    database: StoreAddress | None = None,
    server: int = 0,
    workers: int = 1,
    share: float = 0.0,
) -> Run:
    """Collectors on reports that waited for them, in a session or, with a database, in NATS's own
    stream. `server` is the process of the database; each worker gets a share of a core, if any."""
    asked = manifest(k)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker: Any = stack.enter_context(kind(place / "broker"))
        opened = open_shared(database) if database else open_store(place / "worker-0")
        store = stack.enter_context(closing(opened))
        campaign = store.open_campaign(asked, int(time.time()))
        flags = ("--listen", "off", *trusting(broker), *store_flags(database))
        if database:
            stream = f"nats://127.0.0.1:{broker.stream_port}"
            publish(broker.url, ())  # NATS makes its stream for the first MQTT client
            StreamConnector(
                lambda: parse_streams(stream), Credentials(), DEFAULT_NAMESPACE
            )().close()
            flags += ("--stream", stream)
        else:
            make_session(broker.url, SESSION, from_all_devices(), ca_file=broker.ca_file)
            flags += ("--client-id", SESSION)
        publish(broker.url, reports(asked, count), ca_file=broker.ca_file)
        progress(f"{workers} collectors read {count:,} reports from {broker.url}")
        running = [_worker(stack, place, i, flags, broker.url) for i in range(workers)]
        spent = _watch(store, running, broker, server, count, share)
        memory = max(resident_bytes(worker.pid) for worker in running) / (1 << 20)
        for worker in running:
            worker.stop()
        disk = sum(file.stat().st_size for file in running[0].data.glob("*.db*"))
        before = time.perf_counter()
        sealing.seal(store, campaign, 0, int(time.time()))
        seal = time.perf_counter() - before
        return {**spent, "seal": seal, "memory": memory, "disk": disk / count}


def _worker(
    stack: ExitStack, place: Path, number: int, flags: Sequence[str], url: str
) -> CollectorProcess:
    data = place / f"worker-{number}"
    data.mkdir(mode=0o700, exist_ok=True)
    if number == 0:
        DeviceKey(data / "device.key")
    else:
        shutil.copy(place / "worker-0" / "device.key", data / "device.key")
    return stack.enter_context(CollectorProcess(data, *flags, broker=url))


def _watch(
    store: Store,
    running: Sequence[CollectorProcess],
    broker: Broker,
    server: int,
    count: int,
    share: float,
) -> Run:
    """What happened from the first batch to the last; with shares, from a tenth to the eighth."""
    least = [count * part for part in MEASURED] if share else [1, count]
    pids = [worker.pid for worker in running]
    groups = {"cpu": pids, "broker": [broker.pid]} | ({"server": [server]} if server else {})
    if share:
        for worker in running:
            worker.wait_until_connected()
    with _limited(pids, share) if share else ExitStack():
        points = [_when_counted(store, running, n, groups) for n in least]
    (first, began, before), (last, ended, after) = points
    if last == first:
        raise TestbedError(f"{count:,} reports are one batch, too few to measure a rate")
    spent = {name: (after[name] - before[name]) / (last - first) * 1e6 for name in groups}
    return {"per_second": (last - first) / (ended - began), **spent}


def _when_counted(
    store: Store, running: Sequence[CollectorProcess], least: float, groups: dict[str, list[int]]
) -> tuple[int, float, Run]:
    """The number counted once it is at least `least`, when that was, and processor seconds."""
    limit = time.monotonic() + LONGEST_SECONDS
    while (counted := store.received()) < least:
        for worker in running:
            worker.check_running()
        if time.monotonic() > limit:
            raise TestbedError(f"{least:,.0f} reports were not counted in {LONGEST_SECONDS:.0f} s")
        time.sleep(TICK_SECONDS)
    spent = {name: sum(map(_cpu_of_all, pids)) for name, pids in groups.items()}
    return counted, time.monotonic(), spent


def _cpu_of_all(pid: int) -> float:
    """Of a process and its children, such as the connections of a database server."""
    return cpu_seconds(pid) + sum(map(cpu_seconds, child_pids(pid)))


@contextmanager
def _limited(pids: Sequence[int], share: float) -> Iterator[None]:
    """Give each process at most a share of a core, so that two cores can show what many would do.
    A process gets SIGSTOP when it has used its share of the elapsed time, and SIGCONT later."""
    done = threading.Event()

    def limit() -> None:
        begun = time.monotonic()
        before = [cpu_seconds(pid) for pid in pids]
        while not done.wait(TICK_SECONDS):
            allowed = share * (time.monotonic() - begun)
            for pid, early in zip(pids, before):
                over = cpu_seconds(pid) - early > allowed
                os.kill(pid, signal.SIGSTOP if over else signal.SIGCONT)

    thread = threading.Thread(target=limit)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def bare(count: int, k: int) -> Run:
    """The same reports, read by a paho subscriber that only counts."""
    asked = manifest(k)
    with tempfile.TemporaryDirectory() as scratch, UnsyncedNats(Path(scratch)) as broker:
        make_session(broker.url, SESSION, from_all_devices())
        publish(broker.url, reports(asked, count))
        progress(f"paho reads {count:,} reports")
        with child("bare", broker.url, count) as line:
            line()
            found: Run = line()
    return found


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run["per_second"] for run in runs]


# --- what is measured ----------------------------------------------------------------------------


def measure(count: int, runs: int, large: int, k: int) -> list[Measurement]:
    """Several runs of `count` reports of one round, and one of `large`."""
    ours, theirs = in_turns(
        runs, lambda _: drained(UnsyncedNats, count, k), lambda _: bare(count, k)
    )
    what, note = "durable ingest / bare paho subscriber", f"{runs} runs of {count:,} reports"
    rows = [
        ratio_of(what, _rates(ours), _rates(theirs), note=note, at_least=2.8),
        *_details(ours, f"{count:,} reports"),
    ]
    if large:
        one, other = drained(UnsyncedNats, large, k), bare(large, k)
        note = f"{large:,} reports"
        what = "the same ratio with a larger round"
        rows += [
            ratio_of(what, _rates([one]), _rates([other]), note=note, at_least=2.4),
            *_details([one], note, MEMORY_MIB),
        ]
    kinds: dict[str, type[Broker]] = {"NATS": UnsyncedNats}
    if find_program("mosquitto") is None:
        progress("mosquitto is not installed: not measured")
    else:
        kinds["mosquitto"] = RoomyMosquitto
    for name, kind in kinds.items():
        rows += _compare_tls(name, kind, count, runs, k)
    return rows + _stores(count, runs, k)


def _details(runs: Sequence[Run], of: str, memory: float | None = None) -> list[Measurement]:
    last = runs[-1]
    return [
        median_of("reports committed and acknowledged", _rates(runs), "/s", of=of),
        median_of("CPU time of a report", [run["cpu"] for run in runs], "µs", of=of, limit=15.0),
        Measurement("memory of the collector", last["memory"], "MiB", of=of, limit=memory),
        Measurement("sealing the round", last["seal"], "s", of=of),
        Measurement("on disk before sealing, a report", last["disk"], "bytes", of=of),
    ]


def _compare_tls(name: str, kind: type[Broker], count: int, runs: int, k: int) -> list[Measurement]:
    """A broker sends nearly every message as a TLS record of its own: a reader that takes one
    record a turn would commit one message at a time."""
    tls, plain = in_turns(
        runs,
        lambda _: drained(with_tls(kind), count, k),
        lambda _: drained(kind, count, k),
    )
    what = f"{name}: ingest over TLS / in plain text"
    return [
        ratio_of(what, _rates(tls), _rates(plain), note=f"{runs} runs", at_least=0.8),
        *medians(SHORT, tls, of=f"{name}, TLS"),
        *medians(SHORT, plain, of=f"{name}, plain text"),
    ]


def _stores(count: int, runs: int, k: int) -> list[Measurement]:
    """Ingest into PostgreSQL against ingest into SQLite, one worker each, in turns, each as it is
    run: a collector alone subscribes by MQTT, a worker pulls from NATS's own stream. The server
    syncs every commit and shares the processors with worker and broker."""
    if find_postgres() is None:
        progress(f"not measured: {HOW}")
        return []
    with _postgres() as server:
        shared, own = in_turns(
            runs,
            lambda repeat: drained(
                UnsyncedNats, count, k, database=_database(server, f"run_{repeat}"),
                server=server.pid,
            ),
            lambda _: drained(UnsyncedNats, count, k),
        )  # fmt: skip
    what = "ingest into PostgreSQL / into SQLite"
    note = f"one worker, {runs} runs of {count:,} reports"
    ratio = ratio_of(what, _rates(shared), _rates(own), note=note, at_least=0.8)
    return [ratio, *medians(ROWS, shared, of="PostgreSQL"), *medians(ROWS, own, of="SQLite")]


def measure_workers(count: int, runs: int, share: float) -> list[Measurement]:
    """One, two and four workers, in turns, each limited to a share of a core that is so small that
    broker and database have time left on the machine's own cores."""
    if find_postgres() is None:
        progress(f"not measured: {HOW}")
        return []
    rates: dict[int, list[float]] = {n: [] for n in WORKERS}
    with _postgres() as server:
        for run in range(runs):
            for n, found in rates.items():
                database = _database(server, f"run_{run}_{n}")
                made = drained(UnsyncedNats, count, database=database, workers=n, share=share)
                found.append(made["per_second"])
    note = f"{runs} runs of {count:,} reports, {share:.0%} of a core each"
    ratios = [
        ratio_of(f"{n} workers / one", rates[n], rates[1], note=note, at_least=least)
        for n, least in WORKERS.items()
        if least
    ]
    return ratios + [median_of(f"reports a second, workers: {n}", rates[n], "/s") for n in WORKERS]


@contextmanager
def _postgres() -> Iterator[PostgresProcess]:
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)  # the server's user, if another, has to enter
        with PostgresProcess(Path(scratch) / "postgres", trusting=True) as server:
            yield server


def _database(server: PostgresProcess, name: str) -> StoreAddress:
    with closing(psycopg.connect(server.address().url, autocommit=True)) as db:
        db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return server.address(name)
