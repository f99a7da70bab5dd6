"""The collector's service in a process of its own, attached while reports are published."""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

from benchmarks.attached import attached


def main(url: str, count: int, directory: Path) -> None:
    """Say when it is attached, and when so many reports were counted; go on until told to end."""
    service, _, _ = attached(url, directory, lambda _: None)
    while not service.status.connected:
        service.turn(0.1)
    for _ in range(5):
        service.turn(0.1)  # it announces the campaign
    print("attached", flush=True)
    began_cpu, told = time.process_time(), False
    while not _is_over():
        service.turn(0.1)
        if service.status.accepted >= count and not told:
            told = True
            cpu = (time.process_time() - began_cpu) / count * 1e6
            again = service.status.received - service.status.accepted
            facts = {"done_at": time.monotonic(), "cpu_microseconds": cpu, "again": again}
            print(json.dumps(facts), flush=True)
    service.shut_down()


def _is_over() -> bool:
    """Whether whoever started this has closed the pipe."""
    return bool(select.select([sys.stdin], [], [], 0.0)[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
