"""Brokers that are started once per worker: tests use them in namespaces of their own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from testbed.brokers import Broker, Mosquitto, Nats
from tests.support.needs import need


class QuickNats(Nats):
    """Delivers again after a second, not half a minute, what was not acknowledged.

    On a busy machine that may be something a collector is just about to acknowledge.
    """

    listener = 'ack_wait: "1s"'


KINDS: Final[dict[str, type[Broker]]] = {
    "nats": Nats,
    "quick nats": QuickNats,
    "mosquitto": Mosquitto,
}


def new_broker(name: str, place: Path) -> Broker:
    """A broker, not started yet."""
    if name == "mosquitto":
        need("mosquitto")
    return KINDS[name](place)


class SharedBrokers:
    """Started when first asked for; nobody may stop them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running: dict[str, Broker] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, name: str) -> Broker:
        if name not in self._running:
            made = new_broker(name, self._place / name)
            self._running[name] = self._stack.enter_context(made)
        return self._running[name]
