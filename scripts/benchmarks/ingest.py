"""Durable exactly-once ingest against a bare paho subscriber that only counts, in one run.

Reports are first published to a subscriber's persistent session while nobody reads; then the time
to drain it is taken, from the first message read to the last one counted (bare) or committed and
acknowledged (ours). So both read the same messages from the same broker, and nothing else runs.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from benchmarks import encrypted, stores
from benchmarks.campaign import UnsyncedNats
from benchmarks.draining import Drained, drained
from benchmarks.measurements import Measurement, ratio_of

MEMORY_MIB: Final = 120.0  # with a million reports in the round


@dataclass(frozen=True, slots=True)
class Run:
    """Reports a second of both readers, in one run, and what ours took besides."""

    reports: int
    bare_per_second: float
    ours: Drained

    @property
    def ratio(self) -> float:
        """How many times as fast ours is."""
        return self.ours.per_second / self.bare_per_second


def one_run(count: int, k: int) -> Run:
    """Both readers on the same reports, each from a broker of its own, freshly started."""
    bare = drained("bare_reader", UnsyncedNats, count, k)["per_second"]
    return Run(count, bare, Drained(**drained("our_reader", UnsyncedNats, count, k)))


def measure(count: int, runs: int, large: int, k: int) -> list[Measurement]:
    """Several runs of `count` reports of one round, and one of `large`."""
    small = [one_run(count, k) for _ in range(runs)]
    usual = statistics.median(run.ours.per_second for run in small)
    compared = ratio_of(
        "durable ingest / bare paho subscriber",
        [run.ours.per_second for run in small],
        [run.bare_per_second for run in small],
        note=f"{runs} runs of {count:,} reports",
        at_least=2.8,
    )
    rows = [compared, *_details(small[-1], usual), *encrypted.measure(count, runs, k)]
    rows += stores.measure(count, runs, k)
    return rows + _large(one_run(large, k), count, usual) if large else rows


def _large(run: Run, count: int, usual_per_second: float) -> list[Measurement]:
    note = f"{run.reports:,} reports"
    kept = run.ours.per_second / usual_per_second
    return [
        Measurement("the same ratio with a larger round", run.ratio, note=note, at_least=2.4),
        Measurement(
            "rate kept as the round fills", kept, note=f"{run.reports:,} / {count:,} reports"
        ),
        *_details(run, run.ours.per_second, MEMORY_MIB),
    ]


def _details(run: Run, per_second: float, memory: float | None = None) -> list[Measurement]:
    note, ours = f"{run.reports:,} reports", run.ours
    return [
        Measurement("reports committed and acknowledged", per_second, "/s", note=note),
        Measurement("CPU time of a report", ours.cpu_microseconds, "µs", note=note, limit=15.0),
        Measurement("largest batch", ours.largest_batch, "messages", note=note, limit=4_000),
        Measurement("memory of the collector", ours.memory_mib, "MiB", note=note, limit=memory),
        Measurement("sealing the round", ours.seal_seconds, "s", note=note),
    ]
