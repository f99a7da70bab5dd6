"""A paho subscriber that only counts, in a process of its own: what ingest is compared with."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion


def main(port: int, count: int) -> None:
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
    client.connect("127.0.0.1", port, 600)
    client.loop_start()
    done.wait()
    print(json.dumps({"per_second": count / (time.perf_counter() - began)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
