"""What a store adds that several workers share: who they are, who leads, and what they counted.

A worker is a service that enlisted. One of them at a time leads: it seals rounds and publishes for
all. A store that never enlisted counts as one worker alone would, and may do what a leader may as
long as nobody leads.

Claims:
  W1  a worker's number is never used again, and a fenced worker commits nothing more
  W2  at most one worker leads at any time of the database; its epoch only grows, and whatever only
      a leader may write fails under an old epoch, inside the transaction that would write it
  W3  time is the database's: the clocks of workers do not matter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from collector.store import Store

Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, as the others see it; times are the database's, in seconds since 1970."""

    number: int
    name: str
    started: float
    seen: float  # its last sign of life, a beat or a batch
    drained: float  # all that the broker took for it before then is committed
    leads: bool
    fenced: bool
    received: int  # messages since it enlisted


class ReceiptKind(IntEnum):
    """What happened to a report, for its receipt."""

    COUNTED = 0
    REPEATED = 1  # it was counted before and came again: its device has not seen the receipt
    WITHDRAWN = 2


@dataclass(frozen=True, slots=True)
class ReceiptBatch:
    """Reports of one round to which the same happened: their pages and tags, side by side."""

    kind: ReceiptKind
    campaign: int
    round: int
    pages: Numbers
    tags: Numbers


class QueuedAnswer(NamedTuple):
    """An answer to a device that the leader has to publish."""

    number: int
    topic: str
    payload: bytes


@runtime_checkable
class SharedStore(Store, Protocol):
    """A store with several workers.

    While a worker is enlisted, these need the lease, and raise `NotLeading` without it: `sealing`,
    `mark_published`, `publish_again`, `mark_receipts_cleared`, `drop_devices`, `drop_unreleased`,
    `fence`, `fresh_receipts` and `drop_answers`.

    While `commit` waits for the database it may call `meanwhile`, which must not use the store.
    """

    meanwhile: Callable[[], None]

    def now(self) -> float:
        """The database's clock, seconds since 1970."""

    def leader_session(self) -> str:
        """The name under which whoever leads connects to the broker: random, and made once.

        A broker lets only one connection have a name, so that a new leader cuts off the old one.
        """

    def agree_on_key(self, fingerprint: bytes) -> bytes:
        """The fingerprint of the device key that all workers use: the first one given.

        With an empty one, only asks; empty if none was given before.
        """

    # workers

    def enlist(self, name: str) -> int:
        """Become a worker with a new number: at start, and whenever `Fenced` was raised."""

    def beat(self, drained: float) -> float:
        """Say that this worker lives, and that all which the broker took for it before `drained`
        is committed. Returns the database's time; raises `Fenced` if others no longer wait for it.
        """

    def retire(self) -> None:
        """Leave in good order: nobody has to wait for this worker, and another may lead."""

    def workers(self) -> list[Worker]:
        """Those that enlisted and did not retire, by number."""

    # the leader

    def lead(self, seconds: float) -> int | None:
        """Take or keep the lease for so long; the epoch, or None while another leads."""

    def resign(self) -> None:
        """Let another worker lead; nothing happens to who does not lead."""

    def fence(self, silent_seconds: float) -> list[Worker]:
        """Shut out workers that were not heard of for so long; those shut out now.

        What they committed stays; they commit nothing more. Rows of workers that were fenced a day
        ago are deleted.
        """

    def fresh_receipts(self) -> list[ReceiptBatch]:
        """What workers counted, saw again or withdrew since the last call, to be applied in order.

        The first call under a new epoch drops what is older and returns nothing: make it before
        pages are built again from `receipt_tags`. What is returned is dropped by the next call.
        """

    # answers to devices

    def queue_answers(self, answers: Sequence[tuple[str, bytes]]) -> None:
        """Have the leader publish these: topics and payloads."""

    def queued_answers(self, limit: int) -> list[QueuedAnswer]:
        """The oldest answers that wait to be published."""

    def drop_answers(self, numbers: Sequence[int]) -> None:
        """The broker has taken these."""
