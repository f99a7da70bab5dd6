"""The collector's storage: the port `Store`, and an engine for each database.

    sqlite, sqlite_database      one file that one worker writes, and any number of readers
    postgres, postgres_counting, postgres_connection   one database that several workers share
    common                       what both engines do alike

Claims that every engine must keep:
  I6   `commit` returns only when everything in the batch is durable
  I8   a (campaign, round, device) is counted at most once, by a unique key inside the transaction
  I9   a second report with other bits changes nothing: the first stays
  I10  once a round is sealed, nothing of it changes
  I11  a device's attribute in a campaign never changes
  I12  every message of a batch adds one to exactly one outcome counter
  A4   a device that was forgotten is not counted again in that campaign
  W1   a worker's number is never used again, and a fenced worker commits nothing more
  W2   at most one worker leads at any time of the database; its epoch only grows, and whatever only
       a leader may write fails under an old epoch, inside the transaction that would write it
  W3   time is the database's: the clocks of workers do not matter
Every write is atomic: it happens as a whole, or raises `StorageFailure` and changes nothing.

A worker is a service that enlisted. One worker at a time leads: it seals rounds and publishes for
all. A SQLite file has one worker, whose lease nobody contests; its clock is the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from collector.records import (
    Campaign,
    Candidate,
    Refusal,
    RequestOutcome,
    RoundSum,
    Tally,
    UnpublishedResult,
    Withdrawal,
)
from collector.store.common import Sealing
from protocol_spec import Manifest, Outcome, Result

__all__ = [
    "QueuedAnswer",
    "ReceiptBatch",
    "ReceiptKind",
    "Sealing",
    "Store",
    "StoreReader",
    "Worker",
]

Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, as the others see it; times are the database's, in Unix seconds."""

    number: int
    name: str
    started: float
    seen: float  # its last sign of life, a beat or a batch
    drained: float  # all that the broker took for it before then is committed
    leads: bool
    fenced: bool
    received: int  # messages since it enlisted


class ReceiptKind(IntEnum):
    COUNTED = 0
    REPEATED = 1  # it was counted before and came again: its device has not seen the receipt
    WITHDRAWN = 2


@dataclass(frozen=True, slots=True)
class ReceiptBatch:
    """Pages and tags of the reports of one round to which the same happened."""

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


class StoreReader(Protocol):
    """What can be asked of a store without changing it."""

    def close(self) -> None: ...

    # campaigns and devices

    def campaigns(self) -> list[Campaign]:
        """Every campaign, open and closed, oldest first."""

    def campaign(self, name: str | None) -> Campaign:
        """One campaign by its name or the beginning of it; the only one when not named."""

    def signature(self, campaign: int) -> bytes:
        """The operator's signature of a campaign's manifest; empty where it has none."""

    def revoked(self) -> frozenset[str]:
        """Names of devices whose reports are no longer taken."""

    def changed_elsewhere(self) -> int:
        """A number that changes when another process opened a campaign, revoked a device, ..."""

    def now(self) -> float:
        """The database's clock, seconds since 1970."""

    def workers(self) -> list[Worker]:
        """Those that enlisted and did not retire, by number."""

    # counts

    def received(self) -> int:
        """Messages received, ever; always the sum of all outcomes."""

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        """Outcome counters of a campaign, of one of its rounds, or of everything received."""

    def requests(self) -> dict[RequestOutcome, int]:
        """Requests to be forgotten, ever, by what became of them."""

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round, open or sealed; n alone if they were not released."""

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        """(page, tag) of every report of an open round."""

    # rounds

    def open_rounds(self, campaign: int) -> list[int]:
        """Rounds that hold reports and are not sealed."""

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""

    def released(self, campaign: int, attribute: int) -> RoundSum | None:
        """All sealed rounds that were released, by themselves or together with others."""

    def unreleased(self, campaign: int, attribute: int) -> RoundSum | None:
        """The sealed rounds that were not released so far, together: that is all that is kept."""

    def participation(
        self, campaign: int, attribute: int, *, released: bool = True
    ) -> tuple[list[int], list[int]]:
        """Numbers of released rounds (or of the others), and how many devices reported in so
        many of them."""

    # results and receipts at the broker

    def results(
        self, campaign: int, attribute: int | None = None, rounds: range | None = None
    ) -> list[Result]:
        """Stored results, rounds in order and the pooled one, whose number is `POOLED`, first.

        Of all rounds unless some are named: others are not read, so that they cost no memory.
        """

    def unpublished(self, limit: int = 100) -> list[UnpublishedResult]:
        """Results that no broker has accepted yet, the oldest rounds first."""

    def clearable_receipts(self, campaign: int) -> list[int]:
        """Sealed rounds whose receipt pages still stand at the broker."""


class Store(StoreReader, Protocol):
    """What the collector asks of its storage. Only `data_dir` chooses the engine.

    While a worker is enlisted, these need the lease, and raise `NotLeading` without it: `sealing`,
    `mark_published`, `publish_again`, `mark_receipts_cleared`, `drop_devices`, `drop_unreleased`,
    `fence`, `fresh_receipts` and `drop_answers`. A store that never enlisted may do all of this
    while nobody leads.

    While `commit` waits for the database it may call `meanwhile`, which must not use the store.
    """

    meanwhile: Callable[[], None]

    # campaigns and devices

    def open_campaign(self, manifest: Manifest, at: int, signature: bytes = b"") -> Campaign:
        """Add a campaign, with its operator's signature; opening it again changes nothing else.

        Raises `CollectorError`, and changes nothing, where another manifest has its name.
        """

    def close_campaign(self, campaign: Campaign, at: int) -> None:
        """Take no more reports."""

    def revoke(self, device: str, at: int) -> None:
        """Take no more reports from a device."""

    def reinstate(self, device: str) -> None:
        """Take a device's reports again."""

    def withdraw(
        self, asked: Sequence[tuple[int, int]], *, repeated: int = 0, invalid: int = 0
    ) -> list[Withdrawal]:
        """Forget devices, each a (campaign, device), in one transaction, and count the requests.

        Their reports leave every open round, and none of them is counted again: the device's
        number stays as that of a forgotten one until `drop_devices`. Sealed sums still include its
        reports, and their variance depends on how many reports one device sent: the number of
        rounds stays, under a random number that no device can have.

        `repeated` and `invalid` are further requests that are only counted.
        """

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part, at the end of the manifest's retention."""

    def drop_unreleased(self, campaign: int) -> bool:
        """Delete the counts that were not released, when no round can be added to them."""

    # counting and sealing

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch durably, in one transaction; the outcome of each candidate, in order."""

    def sealing(
        self, campaign: Campaign, number: int, at: int
    ) -> AbstractContextManager[Sealing | None]:
        """Close a round for ever when the block ends well; None if it was sealed before.

        No batch is committed meanwhile: each is wholly before the sealing or wholly after it.
        """

    def wipe_log(self) -> None:
        """Remove deleted reports from a log, as far as readers allow it now."""

    # results and receipts at the broker

    def mark_published(self, result: UnpublishedResult) -> None:
        """The broker has accepted this result; a newer pooled one stays to be published."""

    def publish_again(self) -> None:
        """Publish every result once more, to a broker that may have lost them."""

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""

    # what all workers agree on

    def leader_session(self) -> str:
        """The client id with which the leader connects to the broker: random, and made once.

        A broker allows one connection per client id, so that a new leader cuts off the old one.
        """

    def agree_on_key(self, fingerprint: bytes) -> bytes:
        """The fingerprint of the device key that all workers use: the first one given.

        With an empty one, only asks; empty if none was given before.
        """

    # workers

    def enlist(self, name: str) -> int:
        """Become a worker with a new number: at start, and whenever `Fenced` was raised."""

    def beat(self, drained: float) -> float:
        """Report that this worker lives, and that all messages which the broker accepted for it
        before `drained` are committed. Returns the database's time; raises `Fenced` if the others
        no longer wait for this worker.
        """

    def retire(self) -> None:
        """Stop being a worker: nobody has to wait for this one, and another may lead."""

    # the leader

    def lead(self, seconds: float) -> int | None:
        """Take or renew the lease for that time; the epoch, or None while another leads."""

    def resign(self) -> None:
        """Give up the lease, if this worker holds it."""

    def fence(self, silent_seconds: float) -> list[Worker]:
        """Shut out workers that were silent for that long; returns those shut out now.

        What they committed stays; they commit nothing more. Workers that were fenced a day ago are
        no longer listed.
        """

    def fresh_receipts(self) -> list[ReceiptBatch]:
        """Reports that workers counted, saw again or withdrew since the last call, in order.

        The first call in a new epoch discards what is older and returns nothing: make it before
        building pages from `receipt_tags`. What a call returns, the next call discards.
        """

    # answers to devices

    def queue_answers(self, answers: Sequence[tuple[str, bytes]]) -> None:
        """Queue topics and payloads for the leader to publish."""

    def queued_answers(self, limit: int) -> list[QueuedAnswer]:
        """The oldest answers that wait to be published."""

    def drop_answers(self, numbers: Sequence[int]) -> None:
        """Remove answers that the broker has accepted."""
