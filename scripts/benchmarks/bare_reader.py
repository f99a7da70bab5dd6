"""A paho subscriber that only counts, in a process of its own: what ingest is compared with."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protocol_spec.programs.settings import parse_broker


def main(url: str, count: int) -> None:
    """Read so many messages of the waiting session; print how many a second."""
    seen, began, done = 0, 0.0, threading.Event()

    def on_message(*_: Any) -> None:
        nonlocal seen, began
        if not seen:
            began = time.perf_counter()
        seen += 1
        if seen == count:
            done.set()

    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        "reader",
        clean_session=False,
        protocol=MQTTProtocolVersion.MQTTv311,
    )
    client.on_message = on_message
    client.on_connect = lambda *_: print("attached", flush=True)
    broker = parse_broker(url)
    client.connect(broker.host, broker.port, 600)
    client.loop_start()
    done.wait()
    rate = count / (time.perf_counter() - began)
    print(json.dumps({"per_second": rate, "done_at": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
