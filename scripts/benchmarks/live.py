"""Counting while devices publish, and what a report costs the broker.

Live: publishers are a process of their own with many connections. They record when each report was
sent and listen to the receipts as devices do. The rate is from the first report sent to the last
one committed and acknowledged. In turns with it: the same publishers into a bare mosquitto whose
reports a bare paho subscriber counts.

Brokers: the reports of many devices come through one connection at full speed into the session of a
reader that is away, and are then read by a bare paho subscriber. The cost is the broker's processor
time, of all nodes together where there are three.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.children import SESSION
from benchmarks.report import Measurement, in_turns, median_of, medians, progress, ratio_of
from benchmarks.workload import Embedded, RoomyMosquitto, manifest, pid_of, prepared, reports
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

DEVICES_PER_PAGE: Final = 1000
NODES: Final = 3
VISITS: Final = 300
CONNECTIONS: Final = 500
READY_SECONDS: Final = 60.0

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
    "per_second": ("reports accepted", "/s"),
    "accept": ("CPU time, accepting a report", "µs"),
    "deliver": ("CPU time, delivering it", "µs"),
    "disk": ("on disk, a report", "bytes"),
    "visit": ("CPU time, a device that connects, reports and leaves", "µs"),
    "connection": (f"memory of a connection, {CONNECTIONS} at once", "KiB"),
}

Run = dict[str, float]
Start = Callable[[Path, ExitStack], Sequence[Broker]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is published, through how many connections, how often."""

    reports: int = 20_000
    connections: int = 20
    runs: int = 3
    k: int = 100


def measure(effort: Effort) -> list[Measurement]:
    """NATS as it is embedded; mosquitto, and what it is compared with, where it is installed."""
    kinds: dict[str, type[Broker]] = {
        "embedded NATS": Embedded,
        "NATS, TLS": with_tls(Nats),
        "mosquitto": RoomyMosquitto,
        "mosquitto, TLS": with_tls(RoomyMosquitto),
    }
    if find_program("mosquitto") is None:
        progress("mosquitto is not installed: not measured")
        kinds = {name: kind for name, kind in kinds.items() if "NATS" in name}
        return _live_rows(kinds, effort, {})
    ours, bare = in_turns(
        effort.runs,
        lambda _: one_run(kinds["embedded NATS"], effort),
        lambda _: one_run(RoomyMosquitto, effort, role="bare"),
    )
    mine, theirs = ([run["per_second"] for run in side] for side in (ours, bare))
    what = "embedded NATS, durable counting / bare mosquitto and paho"
    note = f"{effort.runs} runs of {effort.reports:,} reports, {effort.connections} connections"
    return [
        ratio_of(what, mine, theirs, note=note, at_least=0.5),
        median_of("bare mosquitto and paho: reports", theirs, "/s"),
        *_live_rows(kinds, effort, {"embedded NATS": ours}),
    ]


def _live_rows(
    kinds: dict[str, type[Broker]], effort: Effort, known: dict[str, list[Run]]
) -> list[Measurement]:
    rows = []
    for name, kind in kinds.items():
        runs = known.get(name) or [one_run(kind, effort) for _ in range(effort.runs)]
        rows += medians(LIVE, runs, of=name) + medians(MUST_BE_NONE, runs, of=name, limit=0)
    return rows


def one_run(kind: type[Broker], effort: Effort, role: str = "live") -> Run:
    """A new broker, a reader attached to it, and then the publishers. Microseconds of a report in
    each process, and seconds until its receipt."""
    campaign = manifest(effort.k, receipt_pages=max(1, effort.reports // DEVICES_PER_PAGE))
    with prepared(kind, campaign) as (broker, scratch):
        # The collector asks for the same: with two filters, each report would come twice.
        make_session(broker.url, SESSION, from_all_devices()[0], ca_file=broker.ca_file)
        words = (broker.url, str(effort.reports), str(scratch))
        with _child(role, *words) as reading:
            _line(reading)  # it is attached
            before = cpu_seconds(pid_of(broker))
            receipts = 0 if role == "bare" else effort.reports
            progress(f"{role}: {effort.reports} reports to {broker.url}")
            more = (str(effort.connections), str(receipts))
            with _child("publishers", *words, *more) as publishing:
                facts: Run = json.loads(_line(reading))
                facts["broker"] = (cpu_seconds(pid_of(broker)) - before) / effort.reports * 1e6
                facts |= json.loads(_line(publishing))
    return {**facts, "per_second": effort.reports / (facts["done_at"] - facts["began_at"])}


@contextmanager
def _child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that ends when its input does."""
    command = [sys.executable, "-m", "benchmarks.children", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()) as made:
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
    costs: dict[str, list[Run]] = {name: [] for name in kinds}
    for _ in range(runs):
        for name, start in kinds.items():
            progress(f"{name}: {count:,} reports")
            costs[name].append(_cost(start, count, k))
    return [row for name, each in costs.items() for row in medians(COST, each, of=name)]


def _cost(start: Start, count: int, k: int) -> Run:
    """New nodes, a session that waits, the publisher, the reader, and devices by themselves."""
    campaign = manifest(k)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = start(place, stack)
        url, ca_file = nodes[0].url, nodes[0].ca_file
        _make_session(nodes[0], Topics(campaign.campaign).all_reports)
        memory = _memory_of_connections(nodes[0])  # before anything has grown
        began = time.monotonic()
        messages = reports(campaign, count)
        accept = _spent(nodes, lambda: publish(url, messages, ca_file=ca_file))
        found = {"per_second": count / (time.monotonic() - began), "accept": accept / count * 1e6}
        disk = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        if not nodes[0].tls:  # the bare reader does not support TLS
            command = ["-m", "benchmarks.children", "bare", url, str(count), str(place)]
            read = [sys.executable, *command]
            deliver = _spent(
                nodes,
                lambda: subprocess.run(read, env=environment(), capture_output=True, check=True),
            )
            found["deliver"] = deliver / count * 1e6
        visits = list(reports(campaign, VISITS, number=1))
        visit = _spent(nodes, lambda: [publish(url, [v], ca_file=ca_file) for v in visits])
    one_visit = visit / VISITS * 1e6
    return {**found, "disk": disk / count, "visit": one_visit, "connection": memory / 1024}


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
