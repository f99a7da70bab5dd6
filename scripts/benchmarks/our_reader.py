"""The collector's service in a process of its own, on the reports of a waiting session."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from collector.device_key import DeviceKey
from collector.mqtt.link import PahoConnector
from collector.rounds import sealing
from collector.service import Service
from collector.store.sqlite import SqliteStore
from protocol_spec import Manifest
from protocol_spec.programs.address import Credentials, parse_broker
from stage.memory import peak_memory_mib


def main(port: int, count: int, directory: Path) -> None:
    """Commit and acknowledge so many reports, then seal the round; print what it took."""
    store = SqliteStore(directory / "collector.db")
    manifest = Manifest.from_bytes((directory / "manifest").read_bytes())
    campaign = store.open_campaign(manifest, int(time.time()))
    began = 0.0

    def trace(step: str) -> None:
        nonlocal began
        if step == "batch in memory" and not began:
            began = time.perf_counter()

    broker, key = parse_broker(f"mqtt://127.0.0.1:{port}"), DeviceKey(directory / "key")
    connect = PahoConnector(broker, Credentials(), client_id="reader")
    service = Service(store, key, connect, trace=trace)
    while service.status.accepted < count:
        service.turn(0.5)
    told = {
        "per_second": count / (time.perf_counter() - began),
        "largest_batch": service.status.largest_batch,
        "memory_mib": peak_memory_mib(),
    }
    service.shut_down()
    before = time.perf_counter()
    sealing.seal(store, campaign, 0, int(time.time()))
    print(json.dumps({**told, "seal_seconds": time.perf_counter() - before}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
