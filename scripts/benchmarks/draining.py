"""A reader in a process of its own, on reports that waited for it at a broker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.attached import SESSION
from benchmarks.campaign import manifest, reports
from benchmarks.held import on_cpu_seconds
from protocol_spec.topics import from_all_devices
from testbed.brokers import Broker, make_session, publish
from testbed.processes import environment

B = TypeVar("B", bound=Broker)


@dataclass(frozen=True, slots=True)
class Drained:
    """What our reader took for the reports."""

    per_second: float
    cpu_microseconds: float
    batches: int
    largest_batch: int
    memory_mib: float
    seal_seconds: float
    broker_microseconds: float
    server_microseconds: float = 0.0  # of a database server


def drained(
    reader: str,
    kind: type[B],
    count: int,
    k: int,
    more: Callable[[B], Sequence[str]] | None = None,
) -> dict[str, Any]:
    """What a reader says of the reports that waited for it: in a session of its own, or wherever
    `more` has them kept, which says what the reader is told besides."""
    campaign = manifest(k)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "manifest").write_bytes(campaign.to_bytes())
        with kind(directory / "broker") as broker:
            ca_file = broker.ca_file
            if ca_file is not None:
                shutil.copy(ca_file, directory / "ca.crt")
            told_besides = _keep(broker) if more is None else more(broker)
            publish(broker.url, reports(campaign, count), ca_file=ca_file)
            print(f"{reader} reads {count:,} reports from {broker.url}", file=sys.stderr)
            pid = broker.process.pid if broker.process is not None else 0
            before = on_cpu_seconds(pid)
            done = subprocess.run(
                [
                    *(sys.executable, "-m", f"benchmarks.{reader}"),
                    *(broker.url, str(count), scratch, *told_besides),
                ],
                capture_output=True, text=True, check=True, env=environment(),
            )  # fmt: skip
            broker_seconds = on_cpu_seconds(pid) - before
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**told, "broker_microseconds": broker_seconds / count * 1e6}


def _keep(broker: Broker) -> tuple[str, ...]:
    """Reports are kept for a subscriber that is away."""
    make_session(broker.url, SESSION, from_all_devices()[0], ca_file=broker.ca_file)
    return ()
