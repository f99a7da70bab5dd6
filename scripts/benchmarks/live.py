"""Counting while devices publish, and what a report costs the broker.

Live: publishers are a process of their own with many connections. They note when each report was
sent and listen to the receipts as devices do. The rate is from the first report sent to the last
one committed and acknowledged. In turns with it: the same publishers into a bare mosquitto whose
reports a bare paho subscriber counts, and into another version of collector and embedded broker.

Brokers: the reports of many devices come through one connection at full speed into the session of a
reader that is away, and are then read by a bare paho subscriber. The cost is the broker's processor
time, of all nodes together where there are three.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.children import SESSION
from benchmarks.report import Measurement, in_turns, median_of, progress, ratio_of
from benchmarks.workload import (
    Embedded,
    RoomyMosquitto,
    embedded_of,
    manifest,
    pid_of,
    reports,
)
from protocol_spec import Topics
from protocol_spec.topics import from_all_devices
from testbed.brokers import Broker, Nats, connected, make_session, publish, with_tls
from testbed.processes import (
    TestbedError,
    cpu_seconds,
    environment,
    find_program,
    free_port,
    resident_bytes,
)

# Another version gets this many times fewer. One that syncs every message to a slow disk takes
# longer than the 5 s that NATS waits for its own store, and closes the publishers' connections.
OTHER_SHARE: Final = 10
DEVICES_PER_PAGE: Final = 1000
ROOT: Final = Path(__file__).parents[2]
NODES: Final = 3
VISITS: Final = 300
CONNECTIONS: Final = 500
READY_SECONDS: Final = 60.0

Start = Callable[[Path, ExitStack], Sequence[Broker]]


@dataclass(frozen=True, slots=True)
class Live:
    """Microseconds of a report in each process, and seconds until its receipt, if there is one."""

    per_second: float
    publishing: float
    broker: float
    counting: float
    p50: float
    p99: float
    again: int  # messages that were delivered though their report was counted
    unseen: int  # reports without a receipt when the listener gave up


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is published, through how many connections, how often."""

    reports: int = 20_000
    connections: int = 20
    runs: int = 3
    k: int = 100

    @property
    def note(self) -> str:
        return f"{self.runs} runs of {self.reports:,} reports, {self.connections} connections"


def measure(effort: Effort, against: Path | None = None) -> list[Measurement]:
    """NATS as it is embedded; mosquitto, and what it is compared with, where it is installed."""

    def alone(name: str, kind: type[Broker]) -> list[Measurement]:
        return _live_rows(name, [one_run(kind, effort) for _ in range(effort.runs)])

    rows = _against_another(effort, against) if against else []
    if find_program("mosquitto") is None:
        progress("mosquitto is not installed: not measured")
        rows += [] if against else alone("embedded NATS", Embedded)
        return rows + alone("NATS, TLS", with_tls(Nats))
    return [
        *_against_bare(effort),
        *rows,
        *alone("NATS, TLS", with_tls(Nats)),
        *alone("mosquitto, TLS", with_tls(RoomyMosquitto)),
        *alone("mosquitto", RoomyMosquitto),
    ]


def _against_bare(effort: Effort) -> list[Measurement]:
    ours, bare = in_turns(
        effort.runs,
        lambda _: one_run(Embedded, effort),
        lambda _: one_run(RoomyMosquitto, effort, role="bare"),
    )
    mine, theirs = ([run.per_second for run in side] for side in (ours, bare))
    what = "embedded NATS, durable counting / bare mosquitto and paho"
    return [
        ratio_of(what, mine, theirs, note=effort.note, at_least=0.5),
        *_live_rows("embedded NATS", ours),
        median_of("bare mosquitto and paho: reports", theirs, "/s"),
    ]


def _against_another(effort: Effort, checkout: Path) -> list[Measurement]:
    """The other version has the same publishers, its own collector and its own configuration."""
    fewer = replace(effort, reports=max(1, effort.reports // OTHER_SHARE))
    ours, other = in_turns(
        effort.runs,
        lambda _: one_run(Embedded, effort),
        lambda _: one_run(embedded_of(checkout), fewer, checkout=checkout),
    )
    mine, theirs = ([run.per_second for run in side] for side in (ours, other))
    what = f"embedded NATS, durable counting / the same of {checkout.name}"
    note = f"{effort.note}; {fewer.reports:,} of {checkout.name}"
    return [
        ratio_of(what, mine, theirs, note=note, at_least=10.0),
        *_live_rows(f"embedded NATS of {checkout.name}", other),
    ]


def _live_rows(name: str, runs: list[Live]) -> list[Measurement]:
    return [
        median_of(f"{name}: reports counted", [run.per_second for run in runs], "/s"),
        median_of(f"{name}: CPU time of the publishers", [run.publishing for run in runs], "µs"),
        median_of(f"{name}: CPU time of the broker", [run.broker for run in runs], "µs"),
        median_of(f"{name}: CPU time of the collector", [run.counting for run in runs], "µs"),
        median_of(f"{name}: from publish to receipt, median", [run.p50 for run in runs], "s"),
        median_of(f"{name}: from publish to receipt, 99 %", [run.p99 for run in runs], "s"),
        median_of(f"{name}: delivered again", [run.again for run in runs], limit=0),
        median_of(f"{name}: without a receipt", [run.unseen for run in runs], limit=0),
    ]


def one_run(
    kind: type[Broker], effort: Effort, role: str = "live", checkout: Path | None = None
) -> Live:
    """A new broker, a reader attached to it, and then the publishers."""
    campaign = manifest(effort.k, receipt_pages=max(1, effort.reports // DEVICES_PER_PAGE))
    with tempfile.TemporaryDirectory() as scratch, kind(Path(scratch) / "broker") as broker:
        (Path(scratch) / "manifest").write_bytes(campaign.to_bytes())
        if broker.ca_file is not None:
            shutil.copy(broker.ca_file, Path(scratch) / "ca.crt")
        # The collector asks for the same: with two filters, each report would come twice.
        make_session(broker.url, SESSION, from_all_devices()[0], ca_file=broker.ca_file)
        words = (broker.url, str(effort.reports), scratch)
        with _child(role, *words, place=checkout or ROOT) as reading:
            _line(reading)  # it is attached
            before = cpu_seconds(pid_of(broker))
            receipts = 0 if role == "bare" else effort.reports
            more = (str(effort.connections), str(receipts))
            progress(f"{role}: {effort.reports} reports to {broker.url}")
            with _child("publishers", *words, *more, place=ROOT) as publishing:
                done = json.loads(_line(reading))
                broker_seconds = cpu_seconds(pid_of(broker)) - before
                sent = json.loads(_line(publishing))
    return Live(
        per_second=effort.reports / (done["done_at"] - sent["began_at"]),
        publishing=sent["cpu_microseconds"],
        broker=broker_seconds / effort.reports * 1e6,
        counting=done.get("cpu_microseconds", 0.0),
        p50=sent["p50"],
        p99=sent["p99"],
        again=done.get("again", 0),
        unseen=sent["unseen"],
    )


@contextmanager
def _child(*words: str, place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that ends when its input does, with the programs of the checkout at `place`."""
    command = [sys.executable, "-m", "benchmarks.children", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment(), cwd=place
    ) as made:
        try:
            yield made
        except BaseException:
            made.kill()
            raise


def _line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise TestbedError("a process of the benchmark ended without an answer")
    return line


# --- what a report costs the broker --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one report: processor time and disk; of a device: one visit, and memory while idle."""

    per_second: float
    accept_microseconds: float
    disk_bytes: float
    deliver_microseconds: float | None
    visit_microseconds: float
    connection_bytes: float


def measure_brokers(count: int, runs: int, k: int) -> list[Measurement]:
    """NATS alone and as a cluster of three; mosquitto where it is installed."""

    def one(kind: type[Broker]) -> Start:
        return lambda place, stack: [stack.enter_context(kind(place / "broker"))]

    kinds: dict[str, Start] = {
        "NATS": one(Nats),
        "NATS, TLS": one(with_tls(Nats)),
        "NATS, three nodes": _three_nodes,
    }
    if find_program("mosquitto") is None:
        progress("mosquitto is not installed: not measured")
    else:
        kinds["mosquitto"] = one(RoomyMosquitto)
        kinds["mosquitto, TLS"] = one(with_tls(RoomyMosquitto))
    costs: dict[str, list[Cost]] = {name: [] for name in kinds}
    for _ in range(runs):
        for name, start in kinds.items():
            progress(f"{name}: {count:,} reports")
            costs[name].append(_cost(start, count, k))
    return [row for name, each in costs.items() for row in _cost_rows(name, each)]


def _cost_rows(name: str, costs: Sequence[Cost]) -> Iterator[Measurement]:
    yield median_of(f"{name}: reports accepted", [c.per_second for c in costs], "/s")
    accept = [c.accept_microseconds for c in costs]
    yield median_of(f"{name}: CPU time, accepting a report", accept, "µs")
    deliver = [c.deliver_microseconds for c in costs if c.deliver_microseconds is not None]
    if deliver:
        yield median_of(f"{name}: CPU time, delivering it", deliver, "µs")
    yield median_of(f"{name}: on disk", [c.disk_bytes for c in costs], "bytes")
    visits = [c.visit_microseconds for c in costs]
    yield median_of(f"{name}: CPU time, a device that connects, reports and leaves", visits, "µs")
    memory = [c.connection_bytes / 1024 for c in costs]
    note = f"{CONNECTIONS} at once"
    yield median_of(f"{name}: memory of a connection", memory, "KiB", note=note)


def _cost(start: Start, count: int, k: int) -> Cost:
    """New nodes, a session that waits, the publisher, the reader, and devices by themselves."""
    campaign = manifest(k)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = start(place, stack)
        url, ca_file = nodes[0].url, nodes[0].ca_file
        _make_session(nodes[0], Topics(campaign.campaign).all_reports)
        connection_bytes = _memory_of_connections(nodes[0])  # before anything has grown
        began = time.monotonic()
        messages = reports(campaign, count)
        accept = _spent(nodes, lambda: publish(url, messages, ca_file=ca_file))
        seconds = time.monotonic() - began
        disk = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        deliver = None
        if not nodes[0].tls:  # the bare reader does not support TLS
            command = ["-m", "benchmarks.children", "bare", url, str(count), str(place)]
            read = [sys.executable, *command]
            deliver = _spent(
                nodes,
                lambda: subprocess.run(read, env=environment(), capture_output=True, check=True),
            )
        visits = list(reports(campaign, VISITS, number=1))
        visit = _spent(nodes, lambda: [publish(url, [v], ca_file=ca_file) for v in visits])
    return Cost(
        per_second=count / seconds,
        accept_microseconds=accept / count * 1e6,
        disk_bytes=disk / count,
        deliver_microseconds=None if deliver is None else deliver / count * 1e6,
        visit_microseconds=visit / VISITS * 1e6,
        connection_bytes=connection_bytes,
    )


def _spent(nodes: Sequence[Broker], work: Callable[[], object]) -> float:
    """Processor seconds of all nodes during the work."""
    before = sum(cpu_seconds(pid_of(node)) for node in nodes)
    work()
    return sum(cpu_seconds(pid_of(node)) for node in nodes) - before


def _memory_of_connections(broker: Broker) -> float:
    """Bytes that the broker takes for a device that is connected and silent."""
    before = resident_bytes(pid_of(broker))
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(connected(broker.url, ca_file=broker.ca_file))
        return (resident_bytes(pid_of(broker)) - before) / CONNECTIONS


def _make_session(broker: Broker, topic_filter: str) -> None:
    """Retried, because a cluster takes a while to elect a leader."""
    limit = time.monotonic() + READY_SECONDS
    while True:
        try:
            return make_session(broker.url, SESSION, topic_filter, ca_file=broker.ca_file)
        except TestbedError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.5)


def _three_nodes(place: Path, stack: ExitStack) -> Sequence[Broker]:
    """Three servers on this machine, every stream and consumer of MQTT on all of them."""
    routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(NODES)]
    nodes = []
    for number, route in enumerate(routes):
        node = Nats(place / f"node-{number}")
        node.server_name = f"node-{number}"
        listen = route.removeprefix("nats://")
        node.extra = f'cluster {{ name: testbed, listen: "{listen}", routes: {routes} }}'
        node.listener = f"stream_replicas: {NODES}, consumer_replicas: {NODES},"
        nodes.append(stack.enter_context(node))
    return nodes
