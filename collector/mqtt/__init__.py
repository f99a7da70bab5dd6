"""MQTT as the collector uses it: the port, and one file per adapter.

    link.py       the paho adapter, for real brokers
    gathering.py  when it waits a moment for more
    memory.py     a broker in this process, for tests, notebooks and simulations

Claims that every link must keep:
  I7   a link is one connection: a message can only be acknowledged where it was delivered
  I13  only `step` reads, at most `BATCH` messages: when the store is slow, the broker waits
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from protocol_spec.programs.packets import Message

BATCH: Final = 4_000
WINDOW: Final = 100

__all__ = ["BATCH", "WINDOW", "Connect", "Delivery", "Link", "Message", "Will", "refusal"]


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained, when the connection ends without a goodbye."""

    topic: str
    payload: bytes


def refusal(topic: str, reason: str) -> str:
    """Why the broker did not take a message, and which."""
    return f"{topic}: {reason}"


class Delivery(Protocol):
    """What a batch came by: where it is acknowledged, and its requests are answered."""

    @property
    def free(self) -> int:
        """How many more publishes may be unanswered at once."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit (I6)."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        """Hand a message to the broker, QoS 1; its number comes back from `answers`."""


class Link(Protocol):
    """One connection to a broker, run in the caller's thread. A new connection is a new link."""

    @property
    def name(self) -> str:
        """Where it leads, for the log."""

    @property
    def lost(self) -> str | None:
        """Why the connection has ended; None while it lives."""

    @property
    def session_present(self) -> bool:
        """Whether the broker knew the session, and so may have kept messages for it."""

    @property
    def redelivers_later(self) -> bool:
        """Whether the broker delivers unacknowledged messages again only after a while, behind
        newer ones, rather than first on a new connection."""

    @property
    def granted(self) -> int:
        """Subscriptions the broker has said yes to, which need not mean much."""

    @property
    def sharing(self) -> str | None:
        """Why the broker cannot deal messages out among several sessions; None if it can."""

    @property
    def free(self) -> int:
        """How many more publishes may be unanswered at once."""

    def subscribe(self, filters: Iterable[str], *, qos: int = 1) -> None:
        """Ask for messages, with the next `step`; a broker that refuses ends the connection."""

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """Ask for no more of these; what is on its way still comes."""

    def step(self, timeout_seconds: float) -> list[Message]:
        """Wait for the network, then return what is there, at most a batch."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit (I6)."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        """Hand a message to the broker, QoS 1; its number comes back from `answers`."""

    def is_unanswered(self, number: int) -> bool:
        """Whether the broker owes an answer to a publish of this connection."""

    def answers(self) -> dict[int, str | None]:
        """Publishes the broker has answered since the last call; with its reason if it refused."""

    def close(self) -> None:
        """Say goodbye; the session stays at the broker."""

    def leave(self) -> None:
        """Say goodbye for ever: the session ends, and what it held."""


Connect = Callable[[Will | None], Link]
"""Makes a new connection; raises `BrokerUnreachable` when there is none to be had."""
