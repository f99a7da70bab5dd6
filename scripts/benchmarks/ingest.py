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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.campaign import UnsyncedNats, manifest, reports
from benchmarks.measurements import Measurement, ratio_of
from protocol_spec import Topics
from stage.programs import environment
from stage.publisher import make_session, publish


@dataclass(frozen=True, slots=True)
class Run:
    """Reports a second of both readers, in one run, and what ours took besides."""

    reports: int
    bare_per_second: float
    ours_per_second: float
    largest_batch: int
    memory_mib: float
    seal_seconds: float

    @property
    def ratio(self) -> float:
        """How many times as fast ours is."""
        return self.ours_per_second / self.bare_per_second


def one_run(count: int, k: int) -> Run:
    """Both readers on the same reports, each from a broker of its own, freshly started."""
    bare = _drained("bare_reader", count, k)
    ours = _drained("our_reader", count, k)
    return Run(count, bare.pop("per_second"), ours.pop("per_second"), **ours)


def _drained(reader: str, count: int, k: int) -> dict[str, Any]:
    """What a reader, in a process of its own, says of the reports that waited for it."""
    campaign = manifest(k)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "manifest").write_bytes(campaign.to_bytes())
        with UnsyncedNats(directory / "broker") as broker:
            make_session(broker.url, "reader", Topics(campaign.campaign).all_reports)
            publish(broker.url, reports(campaign, count))
            print(f"{reader} reads {count:,} reports", file=sys.stderr)
            words = (str(broker.port), str(count), str(directory))
            done = subprocess.run(
                [sys.executable, "-m", f"benchmarks.{reader}", *words],
                capture_output=True, text=True, check=True, env=environment(),
            )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def measure(count: int, runs: int, large: int, k: int) -> list[Measurement]:
    """Several runs of `count` reports of one round, and one of `large`."""
    small = [one_run(count, k) for _ in range(runs)]
    usual = statistics.median(run.ours_per_second for run in small)
    compared = ratio_of(
        "durable ingest / bare paho subscriber",
        [run.ours_per_second for run in small],
        [run.bare_per_second for run in small],
        note=f"{runs} runs of {count:,} reports",
        at_least=1.0,
    )
    rows = [compared, *_details(small[-1], usual)]
    return rows + _large(one_run(large, k), count, usual) if large else rows


def _large(run: Run, count: int, usual_per_second: float) -> list[Measurement]:
    note = f"{run.reports:,} reports"
    kept = run.ours_per_second / usual_per_second
    return [
        Measurement("the same ratio with a larger round", run.ratio, note=note, at_least=1.0),
        Measurement(
            "rate kept as the round fills", kept, note=f"{run.reports:,} / {count:,} reports"
        ),
        *_details(run, run.ours_per_second),
    ]


def _details(run: Run, per_second: float) -> list[Measurement]:
    note = f"{run.reports:,} reports"
    return [
        Measurement("reports committed and acknowledged", per_second, "/s", note=note),
        Measurement("largest batch", run.largest_batch, "messages", note=note, limit=4_000),
        Measurement("memory of the collector", run.memory_mib, "MiB", note=note),
        Measurement("sealing the round", run.seal_seconds, "s", note=note),
    ]
