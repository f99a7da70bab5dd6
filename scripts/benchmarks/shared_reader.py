"""A worker in a process of its own, on reports that wait in NATS's stream, with a shared store."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

from benchmarks.held import with_children_seconds
from collector.data_dir import open_shared
from collector.device_key import DeviceKey
from collector.ingest.batch import search_rarely
from collector.links.mqtt import PahoConnector
from collector.links.stream import StreamConnector
from collector.rounds import sealing
from collector.settings import parse_streams
from collector.store_address import StoreAddress
from collector.workers.service import Connections, SharedService
from protocol_spec import DEFAULT_NAMESPACE, Manifest
from protocol_spec.programs.settings import Credentials, parse_broker
from testbed.processes import peak_memory_mib


def main(url: str, count: int, directory: Path, stream: str, shared: str, server: str) -> None:
    """Commit and acknowledge so many reports, then seal the round; print what it took."""
    began = began_cpu = server_cpu = 0.0

    def trace(step: str) -> None:
        nonlocal began, began_cpu, server_cpu
        if step == "batch in memory" and not began:
            server_cpu = with_children_seconds(int(server))
            began, began_cpu = time.perf_counter(), time.process_time()

    search_rarely()  # as `run` does
    address = StoreAddress(shared)
    manifest = Manifest.from_bytes((directory / "manifest").read_bytes())
    with closing(open_shared(address)) as store:
        campaign = store.open_campaign(manifest, int(time.time()))
        source = StreamConnector(lambda: parse_streams(stream), Credentials(), DEFAULT_NAMESPACE)
        publisher = PahoConnector(parse_broker(url), Credentials(), client_id="leader")
        lines = Connections(source, publisher, whole=True)
        key = DeviceKey(directory / "key")
        service = SharedService(store, key, lines, name="worker", trace=trace)
        while service.status.accepted < count:
            service.turn(0.5)
        told = {
            "per_second": count / (time.perf_counter() - began),
            "cpu_microseconds": (time.process_time() - began_cpu) / count * 1e6,
            "server_microseconds": (with_children_seconds(int(server)) - server_cpu) / count * 1e6,
            "batches": service.status.batches,
            "largest_batch": service.status.largest_batch,
            "memory_mib": peak_memory_mib(),
        }
        service.shut_down()
    with closing(open_shared(address)) as store:
        before = time.perf_counter()
        sealing.seal(store, campaign, 0, int(time.time()))
    print(json.dumps({**told, "seal_seconds": time.perf_counter() - before}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:7])
