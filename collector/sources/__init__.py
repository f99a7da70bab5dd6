"""Where a worker's reports come from when several workers share them: the port.

    shared.py   a shared subscription of MQTT 5, on any link
    (NATS's own stream is in `collector/nats/stream.py`)

Claims that every source must keep:
  I7   a source is one connection: a message can only be acknowledged where it was delivered
  I13  only `step` reads, at most `BATCH` messages: when the store is slow, the broker waits
  W4   `drained` is a moment before which nothing that the broker took for this worker, or for any
       of them, is uncommitted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from collector.mqtt import Message


class Source(Protocol):
    """One connection that brings this worker its part of the reports, in the caller's thread."""

    @property
    def name(self) -> str:
        """Where it leads, for the log."""

    @property
    def lost(self) -> str | None:
        """Why the connection has ended; None while it lives."""

    @property
    def drained(self) -> float:
        """Everything that the broker took before this moment is committed; a moment that was given
        to `mark`, or 0.0."""

    def step(self, timeout_seconds: float) -> list[Message]:
        """Wait for the network, then return what is there, at most a batch."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit (I6)."""

    def mark(self, moment: float) -> None:
        """It is this moment now: begin to prove that all before it is committed, or go on with a
        proof that was begun."""

    def retire(self, moment: float) -> None:
        """Ask for nothing more, at this moment; what is on its way still comes, and when `drained`
        has reached the moment, or nothing comes any more, that was all."""

    def close(self, *, stay: bool = True) -> None:
        """Say goodbye. What the broker keeps for this worker alone waits for its return, or, if it
        is not to stay, goes to the others from now on."""


OpenSource = Callable[[], Source]
"""Makes a new connection; raises `BrokerUnreachable` when there is none to be had."""
