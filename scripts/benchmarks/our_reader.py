"""The collector's service in a process of its own, on the reports of a waiting session."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.attached import attached
from collector.rounds import sealing
from collector.store_address import StoreAddress
from testbed.processes import peak_memory_mib


def main(url: str, count: int, directory: Path, shared: str | None = None) -> None:
    """Commit and acknowledge so many reports, then seal the round; print what it took."""
    began = began_cpu = 0.0

    def trace(step: str) -> None:
        nonlocal began, began_cpu
        if step == "batch in memory" and not began:
            began, began_cpu = time.perf_counter(), time.process_time()

    service, store, campaign = attached(
        url, directory, trace, StoreAddress(shared) if shared else None
    )
    while service.status.accepted < count:
        service.turn(0.5)
    told = {
        "per_second": count / (time.perf_counter() - began),
        "cpu_microseconds": (time.process_time() - began_cpu) / count * 1e6,
        "batches": service.status.batches,
        "largest_batch": service.status.largest_batch,
        "memory_mib": peak_memory_mib(),
    }
    service.shut_down()
    before = time.perf_counter()
    sealing.seal(store, campaign, 0, int(time.time()))
    print(json.dumps({**told, "seal_seconds": time.perf_counter() - before}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
