"""Durable exactly-once ingest against a bare paho subscriber that only counts, in one run.

Reports are first published to a subscriber's persistent session while nobody reads; then the time
to drain it is taken, from the first message read to the last one counted (bare) or committed and
acknowledged (ours). So both read the same messages from the same broker, and nothing else runs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurements import Measurement, ratio_of
from benchmarks.publisher import make_session, publish
from protocol_spec import Manifest, Topics
from simulation.children import environment
from tests.support.brokers import Nats


@dataclass(frozen=True, slots=True)
class Run:
    """Messages a second of both, in one run."""

    reports: int
    bare: float
    ours: float
    batches: int
    largest_batch: int
    memory_mib: float
    seal_seconds: float

    @property
    def ratio(self) -> float:
        return self.ours / self.bare


def manifest(k: int, begun: int = 60, protocol: str = "auto") -> Manifest:
    """A campaign of two rounds of a day that began so many seconds ago."""
    values = ", ".join(f'"v{i}"' for i in range(k))
    return Manifest.from_toml(
        f"""
        format = 1
        slug = "bench"
        title = "Benchmark"
        purpose = "Measure"
        owner = "Nobody"
        contact = "nobody@example.org"
        eps_inf = 2.0
        eps_1 = 0.6
        receipt_pages = 1000
        rounds = {{ first = {int(time.time()) - begun}, period = "1d", count = 2 }}
        [[attributes]]
        name = "a"
        question = "Which?"
        protocol = "{protocol}"
        values = [{values}]
        """
    )


class UnsyncedNats(Nats):
    """NATS that leaves syncing to the system: the broker's disk is not what is measured here."""

    def command(self) -> list[str]:
        made = super().command()
        config = self.directory / "nats.conf"
        config.write_text(config.read_text().replace(", sync_interval: always", ""))
        return made


# --- the two readers, each in a process of its own -------------------------------------------

BARE = """
import sys, threading, time
import paho.mqtt.client as mqtt
port, count = int(sys.argv[1]), int(sys.argv[2])
seen, began, done = 0, 0.0, threading.Event()
def on_message(client, data, message):
    global seen, began
    if not seen: began = time.perf_counter()
    seen += 1
    if seen == count: done.set()
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "reader", protocol=4, clean_session=False)
client.on_message = on_message
client.connect("127.0.0.1", port, 600)
client.loop_start()
done.wait()
print(count / (time.perf_counter() - began))
"""

OURS = """
import json, resource, sys, time
from pathlib import Path
from collector.rounds import sealing as rounds
from collector.device_key import DeviceKey
from collector.mqtt.link import PahoConnector
from collector.service import Service
from collector.store.sqlite import SqliteStore
from protocol_spec import Manifest
from protocol_spec.programs.address import Credentials, parse_broker
port, count, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
store = SqliteStore(directory / "collector.db")
manifest = Manifest.from_bytes((directory / "manifest").read_bytes())
campaign = store.open_campaign(manifest, int(time.time()))
began = 0.0
def trace(what):
    global began
    if what == "batch in memory" and not began: began = time.perf_counter()
broker = parse_broker(f"mqtt://127.0.0.1:{port}")
connect = PahoConnector(broker, Credentials(), client_id="reader")
service = Service(store, DeviceKey(directory / "key"), connect, trace=trace)
while service.status.accepted < count:
    service.turn(0.5)
rate = count / (time.perf_counter() - began)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
service.shut_down()
start = time.perf_counter()
rounds.seal(store, campaign, 0, int(time.time()))
print(json.dumps([rate, service.status.batches, service.status.largest_batch, memory,
                  time.perf_counter() - start]))
"""


def _measure(program: str, port: int, count: int, directory: Path) -> Any:
    command = [sys.executable, "-c", program, str(port), str(count), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return json.loads(done.stdout.splitlines()[-1])


def one_run(count: int, k: int) -> Run:
    """Both readers on the same reports, each from a broker of its own, freshly started."""
    campaign = manifest(k)
    measured = []
    for name, program in (("bare paho", BARE), ("allomfree", OURS)):
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            (directory / "manifest").write_bytes(campaign.to_bytes())
            with UnsyncedNats(directory / "broker") as broker:
                make_session(broker.port, "reader", Topics(campaign.campaign).all_reports)
                publish(broker.port, campaign, count)
                print(f"{name} reads {count:,} reports", file=sys.stderr)
                measured.append(_measure(program, broker.port, count, directory))
    ours = measured[1]
    return Run(count, measured[0], ours[0], ours[1], ours[2], ours[3], ours[4])


def measure(count: int, runs: int, large: int, k: int) -> list[Measurement]:
    """Several runs of `count` reports of one round, and one of `large`."""
    small = [one_run(count, k) for _ in range(runs)]
    rows = [
        ratio_of(
            "durable ingest / bare paho subscriber",
            [run.ours for run in small],
            [run.bare for run in small],
            note=f"{runs} runs of {count:,} reports",
            at_least=1.0,
        ),
        *_details(small[-1], statistics.median(run.ours for run in small)),
    ]
    if large:
        run = one_run(large, k)
        kept = run.ours / statistics.median(r.ours for r in small)
        rows += [
            Measurement(
                "the same ratio with a larger round",
                run.ratio,
                note=f"{large:,} reports",
                at_least=1.0,
            ),
            Measurement(
                "rate kept as the round fills", kept, note=f"{large:,} / {count:,} reports"
            ),
            *_details(run, run.ours),
        ]
    return rows


def _details(run: Run, rate: float) -> list[Measurement]:
    note = f"{run.reports:,} reports"
    return [
        Measurement("reports committed and acknowledged", rate, "/s", note=note),
        Measurement("largest batch", run.largest_batch, "messages", note=note, limit=4_000),
        Measurement("memory of the collector", run.memory_mib, "MiB", note=note),
        Measurement("sealing the round", run.seal_seconds, "s", note=note),
    ]
