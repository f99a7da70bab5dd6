"""Live: many connections publish while the collector counts; how many a second, and how soon each
report has its receipt.

Publishers are a process of their own with so many connections. They note when each report was sent,
and listen to the receipts as devices do. The rate is from the first report sent to the last one
committed and acknowledged. Beside it, in turns: the same publishers into a bare mosquitto whose
reports a bare paho subscriber counts, and into another version of the collector and the broker that
it embeds, from its checkout.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.attached import SESSION
from benchmarks.campaign import manifest
from benchmarks.encrypted import Roomy
from benchmarks.live_brokers import Embedded, embedded_by
from benchmarks.machine import cpu_seconds
from benchmarks.measurements import Measurement, in_turns, median_of, ratio_of
from protocol_spec.topics import from_all_devices
from testbed.brokers import Broker, Nats, make_session, with_tls
from testbed.processes import TestbedError, environment, find_program

# Another version gets so many times fewer. One that syncs every message to a slow disk takes longer
# than the 5 s that NATS waits for its own store, and closes the connections of who sent the rest.
OTHER_SHARE: Final = 10
DEVICES_PER_PAGE: Final = 1000
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Live:
    """What became of so many reports, microseconds of each at every stage, and seconds until their
    receipts, where there are any."""

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
        """For a table."""
        return f"{self.runs} runs of {self.reports:,} reports, {self.connections} connections"

    @property
    def pages(self) -> int:
        """Receipt pages, as many as a manifest would have for so many devices."""
        return max(1, self.reports // DEVICES_PER_PAGE)


def measure(effort: Effort, against: Path | None = None) -> list[Measurement]:
    """NATS as it is embedded; mosquitto, and what it is compared with, where it is installed."""
    rows = _against_another(effort, against) if against else []
    if find_program("mosquitto") is None:
        print("mosquitto is not installed: not measured", file=sys.stderr)
        rows += [] if against else _alone("embedded NATS", Embedded, effort)
        return rows + _alone("NATS, TLS", with_tls(Nats), effort)
    rows = _against_bare(effort) + rows
    rows += _alone("NATS, TLS", with_tls(Nats), effort)
    rows += _alone("mosquitto, TLS", with_tls(Roomy), effort)
    return rows + _alone("mosquitto", Roomy, effort)


def _against_bare(effort: Effort) -> list[Measurement]:
    ours, bare = in_turns(
        effort.runs,
        lambda _: one_run(Embedded, effort),
        lambda _: one_run(Roomy, effort, reader="bare_reader"),
    )
    compared = ratio_of(
        "embedded NATS, durable counting / bare mosquitto and paho",
        [run.per_second for run in ours],
        [run.per_second for run in bare],
        note=effort.note,
        at_least=0.5,
    )
    rates = [run.per_second for run in bare]
    only = median_of("bare mosquitto and paho: reports", rates, "/s")
    return [compared, *_of("embedded NATS", ours), only]


def _against_another(effort: Effort, checkout: Path) -> list[Measurement]:
    """The other version has the same publishers, its own collector and its own configuration."""
    fewer = replace(effort, reports=max(1, effort.reports // OTHER_SHARE))
    ours, other = in_turns(
        effort.runs,
        lambda _: one_run(Embedded, effort),
        lambda _: one_run(embedded_by(checkout), fewer, checkout=checkout),
    )
    compared = ratio_of(
        f"embedded NATS, durable counting / the same of {checkout.name}",
        [run.per_second for run in ours],
        [run.per_second for run in other],
        note=f"{effort.note}; {fewer.reports:,} of {checkout.name}",
        at_least=10.0,
    )
    return [compared, *_of(f"embedded NATS of {checkout.name}", other)]


def _alone(name: str, kind: type[Broker], effort: Effort) -> list[Measurement]:
    return _of(name, [one_run(kind, effort) for _ in range(effort.runs)])


def _of(name: str, runs: list[Live]) -> list[Measurement]:
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
    kind: type[Broker], effort: Effort, reader: str = "live_reader", checkout: Path | None = None
) -> Live:
    """A fresh broker, a reader attached to it, and then the publishers."""
    campaign = manifest(effort.k, receipt_pages=effort.pages)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "manifest").write_bytes(campaign.to_bytes())
        with kind(directory / "broker") as broker:
            if broker.ca_file is not None:
                shutil.copy(broker.ca_file, directory / "ca.crt")
            # The collector asks for the same: with two filters, each report would come twice.
            make_session(broker.url, SESSION, from_all_devices()[0], ca_file=broker.ca_file)
            words = (broker.url, str(effort.reports), scratch)
            with _process(f"benchmarks.{reader}", *words, place=checkout) as reading:
                _line(reading)  # it is attached
                before = cpu_seconds(_pid(broker))
                receipts = 0 if reader == "bare_reader" else effort.reports
                more = (str(effort.connections), str(receipts))
                print(f"{reader}: {effort.reports} reports to {broker.url}", file=sys.stderr)
                with _process("benchmarks.live_publishers", *words, *more) as publishing:
                    done = json.loads(_line(reading))
                    taken = cpu_seconds(_pid(broker)) - before
                    told = json.loads(_line(publishing))
    return Live(
        per_second=effort.reports / (done["done_at"] - told["began_at"]),
        publishing=told["cpu_microseconds"],
        broker=taken / effort.reports * 1e6,
        counting=done.get("cpu_microseconds", 0.0),
        p50=told["p50"],
        p99=told["p99"],
        again=done.get("again", 0),
        unseen=told["unseen"],
    )


def _pid(broker: Broker) -> int:
    return broker.process.pid if broker.process is not None else 0


@contextmanager
def _process(
    module: str, *words: str, place: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process that ends when its input does, with the programs of this or another checkout."""
    command = [sys.executable, "-m", module, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment(), cwd=place or ROOT
    ) as made:
        try:
            yield made
        except BaseException:
            made.kill()
            raise


def _line(process: subprocess.Popen[str]) -> str:
    line: Any = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise TestbedError("a process of the benchmark ended without a word")
    return str(line)
