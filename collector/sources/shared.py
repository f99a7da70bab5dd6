"""A shared subscription of MQTT 5: the broker deals reports out to the sessions of a group.

Every worker has a session of its own, which keeps its part while it is away. A marker, to which it
subscribes by itself, comes through the same queue: when it is back and its batch is committed,
everything the broker had dealt out to this worker before is counted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from collector.mqtt import Link, Message
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.topics import from_all_devices, marker

GROUP: Final = "allomfree"
NONCE_BYTES: Final = 16
# How long the broker keeps a worker's part for its return. A broker may go on dealing reports to a
# session whose worker is gone, and devices have to send those again: so not for days.
SESSION_SECONDS: Final = 3_600
NOT_SHARED: Final = (
    "the broker {} cannot be used by several workers: it has no shared subscriptions ({}). Nothing "
    "was lost. If it is NATS, name its own port with --stream tls://HOST:4222; otherwise switch "
    "them on, or use a broker of MQTT 5 that has them"
)
_OUTSTANDING: Final = 8  # markers on their way; later ones are worth more than old ones


def filters(namespace: str) -> tuple[str, ...]:
    """What a worker subscribes to: its part of the reports and requests, and the markers."""
    shared = (f"$share/{GROUP}/{name}" for name in from_all_devices(namespace))
    return (*shared, marker(namespace))


class SharedSubscription:
    """A link whose broker deals reports out among all workers."""

    def __init__(
        self,
        link: Link,
        namespace: str,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        if link.sharing is not None:
            link.close()
            raise BrokerUnreachable(NOT_SHARED.format(link.name, link.sharing))
        self.drained = 0.0
        self._link = link
        self._nonce = nonce
        self._topic = marker(namespace)
        self._filters = filters(namespace)
        self._sent: dict[bytes, float] = {}  # nonce: the moment before it was sent
        link.subscribe(self._filters)

    @property
    def name(self) -> str:
        """The broker's address."""
        return self._link.name

    @property
    def lost(self) -> str | None:
        """Why the connection has ended."""
        return self._link.lost

    def step(self, timeout_seconds: float) -> list[Message]:
        """What the broker dealt to this worker, and markers."""
        messages = self._link.step(timeout_seconds)
        self._link.answers()
        return messages

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """These are committed: a marker of ours among them proves what it proves."""
        self._link.acknowledge(messages)
        for message in messages:
            if message.topic == self._topic and not message.retained:
                self.drained = max(self.drained, self._sent.pop(message.payload, 0.0))

    def mark(self, moment: float) -> None:
        """Send a marker, once the broker has confirmed what we subscribed to."""
        if self._link.granted < len(self._filters) or not self._link.free:
            return
        while len(self._sent) >= _OUTSTANDING:
            del self._sent[max(self._sent, key=self._sent.__getitem__)]  # old ones are nearer
        nonce = self._nonce()
        self._sent[nonce] = moment
        self._link.publish(self._topic, nonce, retain=False)

    def retire(self, moment: float) -> None:
        """Leave the group, and send a marker behind what it dealt to us."""
        self._link.unsubscribe(name for name in self._filters if name.startswith("$share/"))
        self.mark(moment)

    def close(self, *, stay: bool = True) -> None:
        """The session stays for this worker's return; or it goes, and with it what it held."""
        if stay:
            self._link.close()
        else:
            self._link.leave()
