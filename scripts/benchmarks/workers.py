"""One, two and four workers on one NATS and one PostgreSQL, each held to a share of a core.

Reports wait in the stream when the workers begin. The rate is taken between the first tenth and the
eighth: before that workers start, and after that some have nothing left to do. The shares are small
enough that broker and database have time left on the machine's own cores.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from benchmarks.campaign import UnsyncedNats, manifest, reports
from benchmarks.held import Held
from benchmarks.measurements import Measurement, median_of, ratio_of
from benchmarks.stores import fresh_database, server_for_a_while
from collector.data_dir import open_shared
from collector.device_key import DeviceKey
from collector.store import Store
from testbed.brokers import publish
from testbed.collector import HOW, CollectorProcess, PostgresProcess, find_postgres

WORKERS: Final = (1, 2, 4)
AT_LEAST: Final = {2: 1.7, 4: 3.0}  # times the rate of one
MEASURED: Final = (0.1, 0.8)  # of the reports
LONGEST_SECONDS: Final = 900.0


def measure(count: int, runs: int, share: float) -> list[Measurement]:
    """The rates of one, two and four workers, in turns, where PostgreSQL is installed."""
    if find_postgres() is None:
        print(f"not measured: {HOW}", file=sys.stderr)
        return []
    rates: dict[int, list[float]] = {n: [] for n in WORKERS}
    with server_for_a_while() as server:
        for run in range(runs):
            for workers in WORKERS:
                rates[workers].append(_rate(server, f"run_{run}_{workers}", workers, count, share))
    note = f"{runs} runs of {count:,} reports, {share:.0%} of a core each"
    single = [
        median_of(f"{n} {'workers' if n > 1 else 'worker'}: reports a second", rates[n], "/s")
        for n in WORKERS
    ]
    return [
        *(
            ratio_of(f"{n} workers / one", rates[n], rates[1], note=note, at_least=AT_LEAST[n])
            for n in WORKERS[1:]
        ),
        *single,
    ]


def _rate(server: PostgresProcess, database: str, workers: int, count: int, share: float) -> float:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(UnsyncedNats(place / "nats"))
        address = fresh_database(server, database)
        asked = manifest(100)
        DeviceKey(place / "device.key")
        stream = f"nats://127.0.0.1:{broker.stream_port}"
        flags = ("--listen", "off", "--store", address.url, "--stream", stream)
        store = stack.enter_context(closing(open_shared(address)))
        store.open_campaign(asked, int(time.time()))
        running = [
            stack.enter_context(CollectorProcess(_data(place, n), *flags, broker=broker.url))
            for n in range(workers)
        ]
        for worker in running:
            worker.wait_until_connected()
        pids = [worker.pid for worker in running]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        publish(broker.url, reports(asked, count))
        with Held(pids, share):
            begun, after = (_counted(store, count * part) for part in MEASURED)
        return (after[0] - begun[0]) / (after[1] - begun[1])


def _data(place: Path, number: int) -> Path:
    """A worker's own directory, with the key that all have."""
    made = place / f"worker-{number}"
    made.mkdir(mode=0o700)
    shutil.copy(place / "device.key", made / "device.key")
    return made


def _counted(store: Store, least: float) -> tuple[int, float]:
    """How many are counted once it is so many, and when: just after a batch."""
    limit = time.monotonic() + LONGEST_SECONDS
    while True:
        counted = sum(tally.n for tally in store.tallies(1, 0).values())
        now = time.monotonic()
        if counted >= least:
            return counted, now
        if now > limit:
            raise TimeoutError(f"{least:,.0f} reports were not counted in {LONGEST_SECONDS:.0f} s")
        time.sleep(0.02)
