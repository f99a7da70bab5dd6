"""The end of a paho client that runs in a thread of its own."""

from __future__ import annotations

from contextlib import suppress

import paho.mqtt.client as mqtt


def leave(client: mqtt.Client) -> None:
    """Disconnect, wait for the thread, and let go of whoever listened: paho closes its sockets when
    nothing refers to the client any more."""
    with suppress(OSError):
        client.disconnect()
    stop(client)
    client.on_connect = client.on_message = client.on_subscribe = None


def stop(client: mqtt.Client) -> None:
    """Wait for the thread. One that ends just now is forgotten by paho between looking for it and
    waiting for it; then there is nothing to wait for."""
    with suppress(AttributeError):
        client.loop_stop()
