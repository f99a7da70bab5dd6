"""How much ingest slows down while people look at the analyst's page.

The reports wait in a broker that is not running yet. `allomfree-collector run` starts, serves its
page, and readers begin to refresh; then the broker starts, and the time from the first report
committed to the last is taken. The same without readers is the other arm, run in turns.

The rate is by the clock, so whatever else the machine does disturbs it; the CPU time that ingest
takes for a report stands beside it and is disturbed less.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.ingest import UnsyncedNats, manifest
from benchmarks.measurements import Measurement, in_turns, median_of, ratio_of
from benchmarks.publisher import make_session, publish
from collector.data_dir import open_store, read_store
from collector.device_key import DeviceKey
from collector.records import Candidate
from collector.rounds import sealing as rounds
from protocol_spec import Manifest, Topics
from simulation.children import command_of, environment
from tests.support.brokers import free_port

DAY: Final = 86_400
EVERY: Final = 1.0  # seconds from one refresh of a reader to its next
SEALED: Final = 500  # reports of the round before, so that the page has a histogram to draw
DEADLINE: Final = 300.0


class Arm(NamedTuple):
    """One run: reports a second, CPU seconds of ingest and of the page, what the readers got."""

    rate: float
    ingest_cpu: float
    page_cpu: float
    refreshes: int
    failures: int
    slowest: float


def one_run(count: int, k: int, readers: int) -> Arm:
    """Ingest `count` reports while `readers` refresh the page."""
    asked = manifest(k, begun=DAY + 60)
    with tempfile.TemporaryDirectory(prefix="allomfree-readers-") as scratch:
        data = Path(scratch) / "data"
        _past_round(data, asked)
        broker = UnsyncedNats(Path(scratch) / "broker")
        with broker:
            make_session(broker.port, "reader", Topics(asked.campaign).all_reports)
            publish(broker.port, asked, count, number=1)
            broker.stop()
            with (
                _collector(data, broker.url) as (pid, port),
                _refreshing(port, asked, readers) as seen,
            ):
                before = _cpu(pid)
                broker.start()
                rate = _drain(data, count)
                ingest, page = (now - then for now, then in zip(_cpu(pid), before))
    print(f"{rate:,.0f} reports a second with {readers} readers", file=sys.stderr)
    return Arm(rate, ingest, page, len(seen.times), seen.failures, max(seen.times, default=0.0))


def measure(count: int, runs: int, k: int, readers: int) -> list[Measurement]:
    """Both arms in turns."""
    read, alone = in_turns(
        runs, lambda _: one_run(count, k, readers), lambda _: one_run(count, k, 0)
    )
    refreshes = sum(arm.refreshes for arm in read)
    note = f"{readers} readers, a refresh a second each, {count:,} reports, {runs} runs"
    kept = ratio_of(
        "ingest with readers / without",
        [arm.rate for arm in read],
        [arm.rate for arm in alone],
        at_least=0.9,
        note=note,
    )
    return [
        kept,
        ratio_of(
            "CPU time of ingest with readers / without",
            [arm.ingest_cpu for arm in read],
            [arm.ingest_cpu for arm in alone],
        ),
        median_of("CPU time of the page, read", [arm.page_cpu for arm in read], "s"),
        median_of("ingest without readers", [arm.rate for arm in alone], "/s", note="wall time"),
        Measurement("pages that readers got", refreshes, note="in all runs"),
        Measurement("pages that failed", sum(arm.failures for arm in read), limit=0),
        median_of("slowest page of a run", [arm.slowest for arm in read], "s"),
    ]


def _past_round(data: Path, asked: Manifest) -> None:
    """The campaign opened, with one sealed round behind it."""
    store = open_store(data)
    DeviceKey(data / "device.key")  # the service makes none where reports were counted before
    campaign = store.open_campaign(asked, int(time.time()))
    body = bytes(asked.body_formats[0].length)
    past = [Candidate(campaign.id, 0, device, 0, 0, device, body) for device in range(SEALED)]
    store.commit(past, [])
    rounds.seal(store, campaign, 0, int(time.time()))
    store.close()


@contextmanager
def _collector(data: Path, broker: str) -> Iterator[tuple[int, int]]:
    """`allomfree-collector run` with its page on a free port; yields process id and port."""
    port = free_port()
    places = ("--data-dir", data, "--broker", broker, "--listen", f"127.0.0.1:{port}")
    manner = ("--quiet", "--client-id", "reader", "--log-level", "error")
    process = subprocess.Popen(
        command_of("allomfree-collector", "run", *places, *manner),
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_for_page(port, process)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(30)


def _wait_for_page(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until it answers at all: without its broker the collector is not healthy yet."""
    limit = time.monotonic() + DEADLINE
    while _get(port, "/") is None:
        if process.poll() is not None or time.monotonic() > limit:
            raise RuntimeError("the collector's page did not come up; nothing was measured")
        time.sleep(0.05)


def _cpu(pid: int) -> tuple[float, float]:
    """CPU seconds so far of a process, and of its children: of ingest, and of its page."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return _seconds(pid), sum(_seconds(int(child)) for child in children)


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Seen:
    """What the readers got."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.failures = 0


@contextmanager
def _refreshing(port: int, asked: Manifest, readers: int) -> Iterator[Seen]:
    """Readers, each on one of the campaign's pages, until the context ends."""
    seen, done = Seen(), threading.Event()
    paths = addresses(asked)
    threads = [
        threading.Thread(target=_read, args=(port, paths[i % len(paths)], i / readers, seen, done))
        for i in range(readers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        done.set()
        for thread in threads:
            thread.join()


def addresses(asked: Manifest) -> list[str]:
    """The pages a reader may have open."""
    campaign = f"/campaigns/{asked.campaign}"
    attribute = f"{campaign}/attributes/{asked.attributes[0].name}"
    return ["/", campaign, attribute, f"{attribute}/rounds/latest", f"{campaign}.json"]


def _read(port: int, path: str, delay: float, seen: Seen, done: threading.Event) -> None:
    """One reader. They begin spread over a second, as people do, so each finds the page changed."""
    done.wait(delay * EVERY)
    while not done.is_set():
        begin = time.perf_counter()
        if _get(port, path) == http.client.OK:
            seen.times.append(time.perf_counter() - begin)
        else:
            seen.failures += 1
        done.wait(max(0.0, EVERY - (time.perf_counter() - begin)))


def _get(port: int, path: str) -> int | None:
    """The status of one page, wholly read, or None without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
    except OSError:
        return None
    finally:
        connection.close()
    return answer.status


def _drain(data: Path, count: int) -> float:
    """Reports a second, from the first seen in the database to the last."""
    store = read_store(data)
    limit = time.monotonic() + DEADLINE
    first, began = 0, 0.0
    try:
        while (received := store.received() - SEALED) < count:
            if received > 0 and not first:
                first, began = received, time.perf_counter()
            if time.monotonic() > limit:
                raise RuntimeError(f"only {received:,} of {count:,} reports came in {DEADLINE} s")
            time.sleep(0.02)
        if not first:
            raise RuntimeError(
                f"all {count:,} reports came at once, so there is no rate; measure with more"
            )
        return (count - first) / (time.perf_counter() - began)
    finally:
        store.close()
