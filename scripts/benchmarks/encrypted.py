"""Ingest over TLS against ingest in plain text, on both brokers, in turns.

A broker sends nearly every message as a TLS record of its own: whoever reads one record a turn
commits one message at a time, and whoever asks the system for each record pays for it.
"""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.campaign import UnsyncedNats
from benchmarks.draining import Drained, drained
from benchmarks.measurements import Measurement, in_turns, median_of, ratio_of
from testbed.brokers import Broker, Mosquitto, with_tls
from testbed.processes import find_program


class Roomy(Mosquitto):
    """As `broker-config` writes it: much may wait, and much may be on its way."""

    extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 2000\n"


def measure(count: int, runs: int, k: int) -> list[Measurement]:
    """NATS always, mosquitto where it is installed."""
    rows = _compared("NATS", UnsyncedNats, count, runs, k)
    if find_program("mosquitto") is None:
        print("mosquitto is not installed: not measured", file=sys.stderr)
        return rows
    return rows + _compared("mosquitto", Roomy, count, runs, k)


def _compared(name: str, kind: type[Broker], count: int, runs: int, k: int) -> list[Measurement]:
    encrypted = partial(_drained, with_tls(kind), count, k)
    tls, plain = in_turns(runs, encrypted, partial(_drained, kind, count, k))
    note = f"{name}, {runs} runs of {count:,} reports"
    return [
        ratio_of(
            f"{name}: ingest over TLS / in plain text",
            [run.per_second for run in tls],
            [run.per_second for run in plain],
            note=note,
            at_least=0.8,
        ),
        *(row for way, of in (("TLS", tls), ("plain text", plain)) for row in _rows(name, way, of)),
    ]


def _rows(name: str, way: str, of: list[Drained]) -> list[Measurement]:
    """What one way took by itself."""
    cpu = [run.cpu_microseconds for run in of]
    return [
        median_of(f"{name}: reports a second, {way}", [run.per_second for run in of], "/s"),
        median_of(f"{name}: CPU time of a report, {way}", cpu, "µs"),
    ]


def _drained(kind: type[Broker], count: int, k: int, _repeat: int) -> Drained:
    return Drained(**drained("our_reader", kind, count, k))
