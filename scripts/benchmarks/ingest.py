"""Durable exactly-once ingest: against bare paho, over TLS, into PostgreSQL, while the page is
read, and by several workers.

Reports are published to a session, or a stream, while nobody reads; then the time to drain it is
taken, from the first message read to the last one counted (bare) or committed and acknowledged
(ours). So both sides read the same messages from the same broker, and nothing else runs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from benchmarks.children import SESSION
from benchmarks.report import Measurement, in_turns, median_of, medians, progress, ratio_of
from benchmarks.workload import (
    RoomyMosquitto,
    UnsyncedNats,
    get,
    limited,
    manifest,
    page_readers,
    pid_of,
    prepared,
    reports,
)
from collector.data_dir import DeviceKey, open_shared, open_store
from collector.links.stream import StreamConnector
from collector.records import Candidate
from collector.rounds import sealing
from collector.settings import StoreAddress, parse_streams
from collector.store import Store
from protocol_spec import DEFAULT_NAMESPACE, Manifest
from protocol_spec.programs.settings import Credentials
from protocol_spec.topics import from_all_devices
from testbed.brokers import Broker, make_session, publish, with_tls
from testbed.collector import HOW, CollectorProcess, PostgresProcess, find_postgres
from testbed.processes import (
    TestbedError,
    child_pids,
    cpu_seconds,
    environment,
    find_program,
    free_port,
)

MEMORY_MIB: Final = 120.0  # with a million reports in the round
WORKERS: Final = (1, 2, 4)
AT_LEAST: Final = {2: 1.7, 4: 3.0}  # times the rate of one worker
MEASURED: Final = (0.1, 0.8)  # of the reports: before, workers start; after, some are idle
LONGEST_SECONDS: Final = 900.0
DAY_SECONDS: Final = 86_400
SEALED: Final = 500  # reports of the round before, so that the page has a histogram to draw
ROWS: Final = {
    "per_second": ("reports a second", "/s"),
    "cpu": ("CPU time of a report", "µs"),
    "broker": ("CPU time of the broker", "µs"),
    "server": ("CPU time of the server", "µs"),
    "seal": ("sealing the round", "s"),
}

Run = dict[str, float]


def drained(
    role: str,
    kind: type[Broker],
    count: int,
    k: int,
    prepare: Callable[[Any], Sequence[str]] | None = None,
) -> Run:
    """Run a child on reports that waited for it: in a session of its own, or wherever `prepare` has
    the broker keep them, which returns further arguments of the child."""
    campaign = manifest(k)
    with prepared(kind, campaign) as (broker, scratch):
        ca_file, more = broker.ca_file, list[str]()
        if prepare is None:
            make_session(broker.url, SESSION, from_all_devices()[0], ca_file=ca_file)
        else:
            more += prepare(broker)
        publish(broker.url, reports(campaign, count), ca_file=ca_file)
        progress(f"{role}: read {count:,} reports from {broker.url}")
        command = ["-m", "benchmarks.children", role, broker.url, str(count), str(scratch), *more]
        before = cpu_seconds(pid_of(broker))
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=True,
            env=environment(),
        )  # fmt: skip
        seconds = cpu_seconds(pid_of(broker)) - before
    return {**json.loads(done.stdout.splitlines()[-1]), "broker": seconds / count * 1e6}


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run["per_second"] for run in runs]


def measure(count: int, runs: int, large: int, k: int) -> list[Measurement]:
    """Several runs of `count` reports of one round, and one of `large`."""

    def pair(size: int) -> tuple[Run, Run]:
        bare = drained("bare", UnsyncedNats, size, k)
        return drained("own", UnsyncedNats, size, k), bare

    ours, bare = zip(*(pair(count) for _ in range(runs)))
    rate = statistics.median(_rates(ours))
    what, note = "durable ingest / bare paho subscriber", f"{runs} runs of {count:,} reports"
    rows = [
        ratio_of(what, _rates(ours), _rates(bare), note=note, at_least=2.8),
        *_details(ours[-1], count, rate),
    ]
    if large:
        one, other = pair(large)
        ratio, kept = one["per_second"] / other["per_second"], one["per_second"] / rate
        note = f"{large:,} reports"
        rows += [
            Measurement("the same ratio with a larger round", ratio, "x", note=note, at_least=2.4),
            Measurement("rate kept as the round fills", kept, "x", note=note),
            *_details(one, large, one["per_second"], MEMORY_MIB),
        ]
    brokers: dict[str, type[Broker]] = {"NATS": UnsyncedNats, "mosquitto": RoomyMosquitto}
    for name, kind in brokers.items():
        if find_program("mosquitto") is None and name == "mosquitto":
            progress("mosquitto is not installed: not measured")
        else:
            rows += _compare_tls(name, kind, count, runs, k)
    return rows + measure_stores(count, runs, k)


def _details(run: Run, count: int, rate: float, memory: float | None = None) -> list[Measurement]:
    of = f"{count:,} reports"
    return [
        Measurement("reports committed and acknowledged", rate, "/s", of=of),
        Measurement("CPU time of a report", run["cpu"], "µs", of=of, limit=15.0),
        Measurement("largest batch", run["batch"], "messages", of=of, limit=4_000),
        Measurement("memory of the collector", run["memory"], "MiB", of=of, limit=memory),
        Measurement("sealing the round", run["seal"], "s", of=of),
    ]


def _compare_tls(name: str, kind: type[Broker], count: int, runs: int, k: int) -> list[Measurement]:
    """A broker sends nearly every message as a TLS record of its own: a reader that takes one
    record a turn would commit one message at a time."""
    tls, plain = in_turns(
        runs,
        lambda _: drained("own", with_tls(kind), count, k),
        lambda _: drained("own", kind, count, k),
    )
    note = f"{runs} runs of {count:,} reports"
    what = f"{name}: ingest over TLS / in plain text"
    shown = {field: ROWS[field] for field in ("per_second", "cpu")}
    return [
        ratio_of(what, _rates(tls), _rates(plain), note=note, at_least=0.8),
        *medians(shown, tls, of=f"{name}, TLS"),
        *medians(shown, plain, of=f"{name}, plain text"),
    ]


# --- PostgreSQL ----------------------------------------------------------------------------------


def measure_stores(count: int, runs: int, k: int) -> list[Measurement]:
    """Ingest into PostgreSQL against ingest into SQLite, one worker each, in turns, each as it is
    run: a collector alone subscribes by MQTT, a worker pulls from NATS's own stream. The server
    syncs every commit and shares the processors with worker and broker."""
    if find_postgres() is None:
        progress(f"not measured: {HOW}")
        return []

    def into_postgres(repeat: int) -> Run:
        url = _new_database(server, f"run_{repeat}").url

        def prepare(broker: UnsyncedNats) -> tuple[str, str, str]:
            """NATS keeps what is published for the consumer that workers share."""
            stream = f"nats://127.0.0.1:{broker.stream_port}"
            publish(broker.url, ())  # NATS makes its stream for the first MQTT client
            streams = parse_streams(stream)
            StreamConnector(lambda: streams, Credentials(), DEFAULT_NAMESPACE)().close()
            return stream, url, str(server.pid)

        return drained("shared", UnsyncedNats, count, k, prepare)

    with _postgres() as server:
        shared, own = in_turns(
            runs, into_postgres, lambda _: drained("own", UnsyncedNats, count, k)
        )
    note = f"one worker, {runs} runs of {count:,} reports"
    what = "ingest into PostgreSQL / into SQLite"
    ratio = ratio_of(what, _rates(shared), _rates(own), note=note, at_least=0.8)
    return [ratio, *medians(ROWS, shared, of="PostgreSQL"), *medians(ROWS, own, of="SQLite")]


@contextmanager
def _postgres() -> Iterator[PostgresProcess]:
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)  # the server's user, if another, has to enter
        with PostgresProcess(Path(scratch) / "postgres", trusting=True) as server:
            yield server


def _new_database(server: PostgresProcess, name: str) -> StoreAddress:
    with closing(psycopg.connect(server.address().url, autocommit=True)) as db:
        db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return server.address(name)


# --- several workers -----------------------------------------------------------------------------


def measure_workers(count: int, runs: int, share: float) -> list[Measurement]:
    """One, two and four workers, in turns, each limited to a share of a core that is so small that
    broker and database have time left on the machine's own cores."""
    if find_postgres() is None:
        progress(f"not measured: {HOW}")
        return []
    rates: dict[int, list[float]] = {n: [] for n in WORKERS}
    with _postgres() as server:
        for run in range(runs):
            for n in WORKERS:
                progress(f"{n} workers, {count:,} reports")
                rates[n].append(_workers_rate(server, f"run_{run}_{n}", n, count, share))
    note = f"{runs} runs of {count:,} reports, {share:.0%} of a core each"
    ratios = [
        ratio_of(f"{n} workers / one", rates[n], rates[1], note=note, at_least=AT_LEAST[n])
        for n in WORKERS[1:]
    ]
    return ratios + [median_of(f"reports a second, workers: {n}", rates[n], "/s") for n in WORKERS]


def _workers_rate(
    server: PostgresProcess, database: str, workers: int, count: int, share: float
) -> float:
    address, asked = _new_database(server, database), manifest(100)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(UnsyncedNats(place / "nats"))
        DeviceKey(place / "device.key")
        stream = f"nats://127.0.0.1:{broker.stream_port}"
        flags = ("--listen", "off", "--store", address.url, "--stream", stream)
        store = stack.enter_context(closing(open_shared(address)))
        store.open_campaign(asked, int(time.time()))
        pids = []
        for number in range(workers):
            data = place / f"worker-{number}"
            data.mkdir(mode=0o700)
            shutil.copy(place / "device.key", data / "device.key")
            worker = stack.enter_context(CollectorProcess(data, *flags, broker=broker.url))
            worker.wait_until_connected()
            pids.append(worker.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        publish(broker.url, reports(asked, count))
        with limited(pids, share):
            (first, begun), (last, ended) = (_counted(store, count * part) for part in MEASURED)
        if last == first:
            raise TestbedError(f"{count:,} reports are one batch, too few to measure a rate")
        return (last - first) / (ended - begun)


def _counted(store: Store, least: float) -> tuple[int, float]:
    """The number counted once it is at least `least`, and when: just after a batch."""
    limit = time.monotonic() + LONGEST_SECONDS
    while True:
        counted = sum(tally.n for tally in store.tallies(1, 0).values())
        now = time.monotonic()
        if counted >= least:
            return counted, now
        if now > limit:
            raise TimeoutError(f"{least:,.0f} reports were not counted in {LONGEST_SECONDS:.0f} s")
        time.sleep(0.02)


# --- with the page open --------------------------------------------------------------------------


def measure_with_readers(count: int, runs: int, k: int, readers: int) -> list[Measurement]:
    """Ingest while people read the page, and while nobody does, in turns. The rate is by the clock,
    so whatever else the machine does disturbs it; CPU time is disturbed less."""
    read, alone = in_turns(
        runs, lambda _: _with_readers(count, k, readers), lambda _: _with_readers(count, k, 0)
    )
    note = f"{readers} readers, a refresh a second each, {count:,} reports, {runs} runs"
    cpu = [[run["cpu"] for run in side] for side in (read, alone)]
    what = "ingest with readers / without"
    pages, failures = (sum(run[field] for run in read) for field in ("pages", "failures"))
    return [
        ratio_of(what, _rates(read), _rates(alone), at_least=0.9, note=note),
        ratio_of("CPU time of ingest with readers / without", *cpu),
        median_of("CPU time of the page, read", [run["page_cpu"] for run in read], "s"),
        median_of("ingest without readers", _rates(alone), "/s", note="wall time"),
        Measurement("pages that readers got", pages, note="in all runs"),
        Measurement("pages that failed", failures, limit=0),
        median_of("slowest page of a run", [run["slowest"] for run in read], "s"),
    ]


def _with_readers(count: int, k: int, readers: int) -> Run:
    """The reports wait in a broker that is stopped. The collector starts and serves its page, and
    readers begin to refresh; then the broker starts, and the drain is timed."""
    asked = manifest(k, begun_seconds=DAY_SECONDS + 60)
    with tempfile.TemporaryDirectory(prefix="allomfree-readers-") as scratch, ExitStack() as stack:
        data, port = Path(scratch) / "data", free_port()
        _seal_past_round(data, asked)
        broker = stack.enter_context(UnsyncedNats(Path(scratch) / "broker"))
        make_session(broker.url, SESSION, from_all_devices()[0])
        publish(broker.url, reports(asked, count, number=1))
        broker.stop()
        flags = ("--listen", f"127.0.0.1:{port}", "--client-id", SESSION, "--log-level", "error")
        process = CollectorProcess(data, *flags, broker=broker.url)
        process.poll_seconds, process.ready_seconds, process.stop_seconds = 0.02, 300.0, 30.0
        collector = stack.enter_context(process)
        # Without its broker the collector is not healthy yet: its page has to do.
        collector.wait_for("the collector's page", lambda: get(port, "/") is not None)
        taken = stack.enter_context(page_readers(port, asked, readers))
        before = _ingest_and_page_cpu(collector.pid)
        broker.start()
        rate = _drain_rate(collector, count)
        ingest, page = (a - b for a, b in zip(_ingest_and_page_cpu(collector.pid), before))
        progress(f"{rate:,.0f} reports a second with {readers} readers")
    seconds = [second for second in taken if second is not None]
    return {
        "per_second": rate,
        "cpu": ingest,
        "page_cpu": page,
        "pages": len(seconds),
        "failures": len(taken) - len(seconds),
        "slowest": max(seconds, default=0.0),
    }


def _seal_past_round(data: Path, asked: Manifest) -> None:
    with closing(open_store(data)) as store:
        DeviceKey(data / "device.key")  # the service makes none where reports were counted before
        campaign = store.open_campaign(asked, int(time.time()))
        body = bytes(asked.body_formats[0].length)
        past = [Candidate(campaign.id, 0, device, 0, 0, device, body) for device in range(SEALED)]
        store.commit(past, [])
        sealing.seal(store, campaign, 0, int(time.time()))


def _drain_rate(collector: CollectorProcess, count: int) -> float:
    """Reports a second, from the first seen in the database to the last. If all came between two
    polls, the time since polling began is the best that is known."""
    first, began = 0, 0.0
    polling_since = time.perf_counter()

    def all_received() -> bool:
        nonlocal first, began
        received = store.received() - SEALED
        if received > 0 and not first:
            first, began = received, time.perf_counter()
        return received >= count

    with collector.store() as store:
        collector.wait_for(f"{count:,} reports", all_received)
    if first >= count:
        first, began = 0, polling_since
    return (count - first) / (time.perf_counter() - began)


def _ingest_and_page_cpu(pid: int) -> tuple[float, float]:
    return cpu_seconds(pid), sum(map(cpu_seconds, child_pids(pid)))
