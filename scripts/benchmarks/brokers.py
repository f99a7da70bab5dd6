"""What a report costs a broker: taking it, keeping it while nobody reads, and handing it on; and
what a device costs it that connects, reports once and leaves, or that stays connected.

The reports of many devices come through one connection at full speed into the session of a reader
that is away, and are then read by a bare paho subscriber. The cost is the broker's processor time,
of all nodes together where there are three. Nothing of ours is measured but the publisher's pace.
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

from benchmarks.campaign import manifest, reports
from benchmarks.encrypted import Roomy
from benchmarks.held import on_cpu_seconds
from benchmarks.measurements import Measurement, median_of
from protocol_spec import Topics
from testbed.brokers import Broker, Nats, connected, make_session, publish, with_tls
from testbed.processes import TestbedError, environment, find_program, free_port, resident_bytes

READER: Final = "reader"
NODES: Final = 3
VISITS: Final = 300
HELD: Final = 500
READY_SECONDS: Final = 60.0

Start = Callable[[Path, ExitStack], Sequence[Broker]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one report, and how many there were a second."""

    taken_per_second: float
    taking_microseconds: float
    bytes_on_disk: float
    handing_on_microseconds: float | None
    visiting_microseconds: float
    connected_bytes: float


def measure(count: int, runs: int, k: int) -> list[Measurement]:
    """NATS alone and as a cluster of three; mosquitto where it is installed."""
    kinds: dict[str, Start] = {
        "NATS": _one(Nats),
        "NATS, TLS": _one(with_tls(Nats)),
        "NATS, three nodes": three_nodes,
    }
    if find_program("mosquitto") is None:
        print("mosquitto is not installed: not measured", file=sys.stderr)
    else:
        kinds |= {"mosquitto": _one(Roomy), "mosquitto, TLS": _one(with_tls(Roomy))}
    costs: dict[str, list[Cost]] = {name: [] for name in kinds}
    for _ in range(runs):
        for name, start in kinds.items():
            print(f"{name}: {count:,} reports", file=sys.stderr)
            costs[name].append(one_run(start, count, k))
    return [row for name, each in costs.items() for row in _rows(name, each)]


def _rows(name: str, costs: Sequence[Cost]) -> Iterator[Measurement]:
    yield median_of(f"{name}: reports taken", [c.taken_per_second for c in costs], "/s")
    taking = [c.taking_microseconds for c in costs]
    yield median_of(f"{name}: CPU time, taking a report", taking, "µs")
    on = [c.handing_on_microseconds for c in costs if c.handing_on_microseconds is not None]
    if on:
        yield median_of(f"{name}: CPU time, handing it on", on, "µs")
    yield median_of(f"{name}: on disk", [c.bytes_on_disk for c in costs], "bytes")
    visits = [c.visiting_microseconds for c in costs]
    yield median_of(f"{name}: CPU time, a device that connects, reports and leaves", visits, "µs")
    held = [c.connected_bytes / 1024 for c in costs]
    yield median_of(f"{name}: memory of a connection", held, "KiB", note=f"{HELD} at once")


def one_run(start: Start, count: int, k: int, visits: int = VISITS, held: int = HELD) -> Cost:
    """Fresh nodes, a session that waits, the publisher, the reader, and devices by themselves."""
    campaign = manifest(k)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = start(place, stack)
        first = nodes[0]
        _make_session(first, Topics(campaign.campaign).all_reports)
        connected_bytes = _memory_of_connections(first, held)  # before anything has grown
        with _spent(nodes) as taking:
            began = time.monotonic()
            publish(first.url, reports(campaign, count), ca_file=first.ca_file)
            seconds = time.monotonic() - began
        on_disk = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        on = None
        if not first.tls:  # the bare reader speaks no TLS
            with _spent(nodes) as handing:
                _read(first.url, count)
            on = handing[0] / count * 1e6
        with _spent(nodes) as visiting:
            for message in reports(campaign, visits, number=1):
                publish(first.url, [message], ca_file=first.ca_file)
    return Cost(
        taken_per_second=count / seconds,
        taking_microseconds=taking[0] / count * 1e6,
        bytes_on_disk=on_disk / count,
        handing_on_microseconds=on,
        visiting_microseconds=visiting[0] / visits * 1e6,
        connected_bytes=connected_bytes,
    )


def _memory_of_connections(broker: Broker, count: int) -> float:
    """Bytes that the broker takes for a device that is connected and silent."""
    (pid,) = _pids([broker])
    before = resident_bytes(pid)
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connected(broker.url, ca_file=broker.ca_file))
        return (resident_bytes(pid) - before) / count


def _make_session(broker: Broker, topic_filter: str) -> None:
    """A cluster takes a while to agree on who leads."""
    limit = time.monotonic() + READY_SECONDS
    while True:
        try:
            return make_session(broker.url, READER, topic_filter, ca_file=broker.ca_file)
        except TestbedError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.5)


@contextmanager
def _spent(nodes: Sequence[Broker]) -> Iterator[list[float]]:
    """Processor seconds of all nodes during the context."""
    pids = _pids(nodes)
    spent, before = list[float](), sum(map(on_cpu_seconds, pids))
    yield spent
    spent.append(sum(map(on_cpu_seconds, pids)) - before)


def _pids(nodes: Sequence[Broker]) -> list[int]:
    return [node.process.pid for node in nodes if node.process is not None]


def _read(url: str, count: int) -> None:
    command = [sys.executable, "-m", "benchmarks.bare_reader", url, str(count)]
    done = subprocess.run(command, env=environment(), text=True, capture_output=True, check=True)
    json.loads(done.stdout.splitlines()[-1])


def _one(kind: type[Broker]) -> Start:
    return lambda place, stack: [stack.enter_context(kind(place / "broker"))]


def three_nodes(place: Path, stack: ExitStack) -> Sequence[Broker]:
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
