"""Counting while devices publish, and what devices cost the broker.

Live: publishers are a process of their own with many connections. They record when each report was
sent and listen to the receipts as devices do. The rate is from the first report sent to the last
one committed. In turns with it: the same publishers into a bare mosquitto whose reports a bare paho
subscriber counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.children import SESSION, child
from benchmarks.report import Measurement, in_turns, median_of, medians, progress, ratio_of
from benchmarks.workload import Embedded, RoomyMosquitto, manifest, reports, trusting
from collector.data_dir import open_store
from protocol_spec import Manifest, Outcome
from protocol_spec.topics import from_all_devices
from testbed.brokers import Broker, Nats, connected, make_session, publish, with_tls
from testbed.collector import CollectorProcess
from testbed.processes import cpu_seconds, find_program, resident_bytes

DEVICES_PER_PAGE: Final = 1000
VISITS: Final = 300
CONNECTIONS: Final = 500

LIVE: Final = {
    "per_second": ("reports counted", "/s"),
    "publishing": ("CPU time of the publishers", "µs"),
    "broker": ("CPU time of the broker", "µs"),
    "counting": ("CPU time of the collector", "µs"),
    "p50": ("from publish to receipt, median", "s"),
    "p99": ("from publish to receipt, 99 %", "s"),
}
MUST_BE_NONE: Final = {"again": ("delivered again", ""), "unseen": ("without a receipt", "")}
COST: Final = {
    "visit": ("CPU time of the broker for a device that connects, reports and leaves", "µs"),
    "connection": (f"memory of a connection, {CONNECTIONS} at once", "KiB"),
}

Run = dict[str, float]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is published, through how many connections, how often."""

    reports: int = 20_000
    connections: int = 20
    runs: int = 3
    k: int = 100


def measure(effort: Effort) -> list[Measurement]:
    """NATS as it is embedded; mosquitto, and what it is compared with, where it is installed."""
    kinds: dict[str, type[Broker]] = {"embedded NATS": Embedded, "NATS, TLS": with_tls(Nats)}
    rows, known = list[Measurement](), dict[str, list[Run]]()
    if find_program("mosquitto") is None:
        progress("mosquitto is not installed: not measured")
    else:
        kinds |= {"mosquitto": RoomyMosquitto, "mosquitto, TLS": with_tls(RoomyMosquitto)}
        ours, bare = in_turns(
            effort.runs,
            lambda _: one_run(Embedded, effort),
            lambda _: one_run(RoomyMosquitto, effort, bare=True),
        )
        known["embedded NATS"] = ours
        mine, theirs = ([run["per_second"] for run in side] for side in (ours, bare))
        what = "embedded NATS, durable counting / bare mosquitto and paho"
        note = f"{effort.runs} runs of {effort.reports:,} reports, {effort.connections} connections"
        rows = [
            ratio_of(what, mine, theirs, note=note, at_least=0.5),
            median_of("bare mosquitto and paho: reports", theirs, "/s"),
        ]
    for name, kind in kinds.items():
        runs = known.get(name) or [one_run(kind, effort) for _ in range(effort.runs)]
        rows += medians(LIVE, runs, of=name) + medians(MUST_BE_NONE, runs, of=name, limit=0)
        rows += medians(COST, [_costs(kind) for _ in range(effort.runs)], of=name)
    return rows


def one_run(kind: type[Broker], effort: Effort, *, bare: bool = False) -> Run:
    """A new broker, a reader attached to it, and then the publishers. Microseconds of a report in
    each process, and seconds until its receipt."""
    asked = manifest(effort.k, receipt_pages=max(1, effort.reports // DEVICES_PER_PAGE))
    with tempfile.TemporaryDirectory() as scratch, kind(Path(scratch) / "broker") as broker:
        file = Path(scratch) / "manifest"
        file.write_bytes(asked.to_bytes())
        receipts = 0 if bare else effort.reports
        more = (file, effort.connections, receipts)
        with (_paho if bare else _collector)(broker, asked, Path(scratch), effort.reports) as wait:
            progress(f"{effort.reports:,} reports to {broker.url}")
            before = cpu_seconds(broker.pid)
            with child("publishers", broker.url, effort.reports, *more) as line:
                facts: Run = wait()
                facts["broker"] = (cpu_seconds(broker.pid) - before) / effort.reports * 1e6
                facts |= line()
    return {**facts, "per_second": effort.reports / (facts["done_at"] - facts["began_at"])}


@contextmanager
def _paho(
    broker: Broker, _asked: Manifest, _place: Path, count: int
) -> Iterator[Callable[[], Run]]:
    make_session(broker.url, SESSION, from_all_devices())
    with child("bare", broker.url, count) as line:
        line()  # it is attached
        yield line


@contextmanager
def _collector(
    broker: Broker, asked: Manifest, place: Path, count: int
) -> Iterator[Callable[[], Run]]:
    """`allomfree-collector run`, connected; yields a function that waits until all is counted."""
    with closing(open_store(place / "data")) as store:
        campaign = store.open_campaign(asked, int(time.time()))
    flags = ("--listen", "off", *trusting(broker))
    with CollectorProcess(place / "data", *flags, broker=broker.url) as collector:
        collector.poll_seconds = 0.01
        collector.wait_until_connected()
        before = cpu_seconds(collector.pid)

        def wait() -> Run:
            with collector.store() as store:

                def counted() -> bool:
                    return store.outcomes(campaign.id).get(Outcome.ACCEPTED, 0) >= count

                collector.wait_for(f"{count:,} reports", counted)
                done = time.monotonic()
                cpu = (cpu_seconds(collector.pid) - before) / count * 1e6
                again = store.received() - count
            return {"done_at": done, "counting": cpu, "again": again}

        yield wait


# --- what devices cost the broker ----------------------------------------------------------------


def _costs(kind: type[Broker]) -> Run:
    """Memory of a device that is connected and silent, and processor time of one that connects,
    reports and leaves."""
    visits = list(reports(manifest(100), VISITS))
    with tempfile.TemporaryDirectory() as scratch, kind(Path(scratch)) as broker:
        pid, ca_file = broker.pid, broker.ca_file
        publish(broker.url, visits[:1], ca_file=ca_file)  # NATS makes its streams
        before = resident_bytes(pid)
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                stack.enter_context(connected(broker.url, ca_file=ca_file))
            memory = (resident_bytes(pid) - before) / CONNECTIONS / 1024
        spent = cpu_seconds(pid)
        for visit in visits:
            publish(broker.url, [visit], ca_file=ca_file)
        return {"connection": memory, "visit": (cpu_seconds(pid) - spent) / VISITS * 1e6}
