"""How much ingest slows down while people look at the analyst's page.

The reports wait in a broker that is not running yet. `allomfree-collector run` starts, serves its
page, and readers begin to refresh; then the broker starts, and the time from the first report
committed to the last is taken. The same without readers is the other arm, run in turns.

The rate is by the clock, so whatever else the machine does disturbs it; the CPU time that ingest
takes for a report stands beside it and is disturbed less.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.campaign import UnsyncedNats, manifest, reports
from benchmarks.machine import cpu_seconds
from benchmarks.measurements import Measurement, in_turns, median_of, ratio_of
from benchmarks.page_readers import get, refreshing
from collector.data_dir import open_store
from collector.device_key import DeviceKey
from collector.records import Candidate
from collector.rounds import sealing
from protocol_spec import Manifest
from protocol_spec.topics import from_all_devices
from testbed.brokers import make_session, publish
from testbed.collector import CollectorProcess
from testbed.processes import Timing, free_port

DAY_SECONDS: Final = 86_400
SEALED: Final = 500  # reports of the round before, so that the page has a histogram to draw
TIMING: Final = Timing(poll_seconds=0.02, ready_seconds=300.0, stop_seconds=30.0)


class Arm(NamedTuple):
    """One run: the rate and the CPU time of ingest, and what the readers got."""

    per_second: float
    ingest_cpu_seconds: float
    page_cpu_seconds: float
    refreshes: int
    failures: int
    slowest_seconds: float


Run = Callable[[int, int, int], Arm]


def one_run(count: int, k: int, readers: int) -> Arm:
    """Ingest `count` reports of k values while `readers` refresh the page."""
    asked = manifest(k, begun_seconds=DAY_SECONDS + 60)
    with tempfile.TemporaryDirectory(prefix="allomfree-readers-") as scratch:
        data, port = Path(scratch) / "data", free_port()
        past_round(data, asked)
        with UnsyncedNats(Path(scratch) / "broker") as broker:
            make_session(broker.url, "reader", from_all_devices()[0])
            publish(broker.url, reports(asked, count, number=1))
            broker.stop()
            with (
                _collector(data, broker.url, port) as collector,
                refreshing(port, asked, readers) as seen,
            ):
                before = _cpu_seconds(collector.pid)
                broker.start()
                rate = drain(collector, count)
                ingest, page = (a - b for a, b in zip(_cpu_seconds(collector.pid), before))
    print(f"{rate:,.0f} reports a second with {readers} readers", file=sys.stderr)
    slowest = max(seen.page_seconds, default=0.0)
    return Arm(rate, ingest, page, len(seen.page_seconds), seen.failures, slowest)


def measure(count: int, runs: int, k: int, readers: int, run: Run = one_run) -> list[Measurement]:
    """Both arms in turns."""
    read, alone = in_turns(runs, lambda _: run(count, k, readers), lambda _: run(count, k, 0))
    note = f"{readers} readers, a refresh a second each, {count:,} reports, {runs} runs"
    rates = [arm.per_second for arm in alone]
    return [
        ratio_of(
            "ingest with readers / without",
            [arm.per_second for arm in read],
            rates,
            at_least=0.9,
            note=note,
        ),
        ratio_of(
            "CPU time of ingest with readers / without",
            [arm.ingest_cpu_seconds for arm in read],
            [arm.ingest_cpu_seconds for arm in alone],
        ),
        median_of("CPU time of the page, read", [arm.page_cpu_seconds for arm in read], "s"),
        median_of("ingest without readers", rates, "/s", note="wall time"),
        Measurement(
            "pages that readers got", sum(arm.refreshes for arm in read), note="in all runs"
        ),
        Measurement("pages that failed", sum(arm.failures for arm in read), limit=0),
        median_of("slowest page of a run", [arm.slowest_seconds for arm in read], "s"),
    ]


def past_round(data: Path, asked: Manifest) -> None:
    """Open the campaign, with one sealed round behind it."""
    with closing(open_store(data)) as store:
        DeviceKey(data / "device.key")  # the service makes none where reports were counted before
        campaign = store.open_campaign(asked, int(time.time()))
        body = bytes(asked.body_formats[0].length)
        past = [Candidate(campaign.id, 0, device, 0, 0, device, body) for device in range(SEALED)]
        store.commit(past, [])
        sealing.seal(store, campaign, 0, int(time.time()))


def drain(collector: CollectorProcess, count: int) -> float:
    """Reports a second, from the first seen in the database to the last; where all came between
    two looks, no more than can be said: since we began to look."""
    first, began = 0, 0.0
    looked = time.perf_counter()

    def all_received() -> bool:
        nonlocal first, began
        received = store.received() - SEALED
        if received > 0 and not first:
            first, began = received, time.perf_counter()
        return received >= count

    with collector.store() as store:
        collector.wait_for(f"{count:,} reports", all_received)
    if first >= count:
        first, began = 0, looked
    return (count - first) / (time.perf_counter() - began)


@contextmanager
def _collector(data: Path, broker: str, port: int) -> Iterator[CollectorProcess]:
    """Ready when its page answers at all: without its broker the collector is not healthy yet."""
    page = ("--listen", f"127.0.0.1:{port}")
    flags = ("--client-id", "reader", "--log-level", "error")
    with CollectorProcess(data, *page, *flags, broker=broker, timing=TIMING) as collector:
        collector.wait_for("the collector's page", lambda: get(port, "/") is not None)
        yield collector


def _cpu_seconds(pid: int) -> tuple[float, float]:
    """So far, of a process and of its children: of ingest, and of its page."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return cpu_seconds(pid), sum(cpu_seconds(int(child)) for child in children)
