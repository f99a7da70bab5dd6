"""Many devices through one connection: the broker must let it publish on every device's topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protocol_spec.programs.address import parse_broker
from simulation.stage import StageFailure
from simulation.wire import Sent

WINDOW: Final = 1_000  # messages that may wait for the broker's answer
PATIENCE: Final = 60.0


def publish(url: str, sent: Iterable[Sent], progress: Callable[[int], None]) -> int:
    """Publish everything with QoS 1; returns how many once the broker has answered for all."""
    broker = parse_broker(url)
    free = threading.Semaphore(WINDOW)
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv311)
    client.max_inflight_messages_set(WINDOW)
    client.on_publish = lambda *_: free.release()
    if broker.tls:
        client.tls_set()
    try:
        client.connect(broker.host, broker.port)
        client.loop_start()
        number = _publish_all(client, sent, free, progress)
        for _ in range(WINDOW):
            _acquire(free)
        return number
    except OSError as error:
        raise StageFailure(f"{url} cannot be reached: {error}") from None
    finally:
        client.disconnect()
        client.loop_stop()


def _publish_all(
    client: Any, sent: Iterable[Sent], free: threading.Semaphore, progress: Callable[[int], None]
) -> int:
    number = 0
    for topic, payload in sent:
        _acquire(free)
        client.publish(topic, payload, 1)
        number += 1
        if number % WINDOW == 0:
            progress(WINDOW)
    progress(number % WINDOW)
    return number


def _acquire(free: threading.Semaphore) -> None:
    if not free.acquire(timeout=PATIENCE):
        raise StageFailure(f"the broker did not answer for {PATIENCE:.0f} s")
