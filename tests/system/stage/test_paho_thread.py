"""A paho client ends whatever its thread is doing, and leaves neither a thread nor a socket."""

from __future__ import annotations

import threading
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from stage.brokers import Nats
from stage.paho_thread import leave, stop


class EndsJustNow(mqtt.Client):
    """Its thread is there at paho's first two looks, and gone at the third."""

    looks = 0

    @property
    def _thread(self) -> threading.Thread | None:
        self.looks += 1
        return None if self.looks > 2 else threading.Thread()

    @_thread.setter
    def _thread(self, _thread: threading.Thread | None) -> None:
        self.looks = 0


def test_a_thread_that_ends_while_it_is_looked_for() -> None:
    client = EndsJustNow(CallbackAPIVersion.VERSION2)
    stop(client)
    assert client.looks == 3


def test_a_connection_that_is_left(tmp_path: Path) -> None:
    before, connected = set(threading.enumerate()), threading.Event()
    with Nats(tmp_path) as nats:
        client = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.on_connect = lambda *_: connected.set()
        client.connect("127.0.0.1", nats.port)
        client.loop_start()
        assert connected.wait(30)
        leave(client)
        assert client.socket() is None
    assert set(threading.enumerate()) <= before
    assert client.on_connect is None
