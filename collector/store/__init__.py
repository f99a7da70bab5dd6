"""Where the collector keeps what it knows: a port, and one room per engine.

    sqlite/    one file, one writer; what `allomfree-collector` uses
    postgres/  one database that several workers share
    moving.py  all that a store holds, to move it to another engine
    shared.py  what engines have in common
    rows.py    counts and sums as both databases keep them

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
all. SQLite has one worker, whom nobody contests, and its clock is that machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
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
from protocol_spec import Manifest, Outcome, Result

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


class StoreReader(Protocol):
    """What can be asked of a store without changing it."""

    def close(self) -> None:
        """Release everything."""

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
        """A number that changes when another process wrote: a campaign opened, a device revoked."""

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
        """How many devices reported in how many of the released rounds, or of the others."""

    # results and receipts at the broker

    def results(
        self, campaign: int, attribute: int | None = None, rounds: range | None = None
    ) -> list[Result]:
        """Stored results, rounds in order and the pooled one, whose number is `POOLED`, first.

        Of all rounds unless some are named: others are not read, so that they cost no memory.
        """

    def unpublished(self, limit: int = 100) -> list[UnpublishedResult]:
        """Results that no broker has taken yet, the oldest rounds first."""

    def clearable_receipts(self, campaign: int) -> list[int]:
        """Sealed rounds whose receipt pages still stand at the broker."""


class Sealing(Protocol):
    """A round while it is being sealed, inside one transaction: all of it is kept, or nothing."""

    @property
    def tallies(self) -> Mapping[int, Tally]:
        """The round's final counts by attribute."""

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """The round's final outcome counters."""

    def end_reports(self, released: Set[int], set_aside: Set[int]) -> None:
        """Count the round for each device that took part in it, and delete its reports.

        It counts as released for devices of the first attributes, whose counts are added to what
        was released, and as unreleased for those of the second; those of others are only
        remembered.
        """

    def set_aside(self, attribute: int) -> None:
        """Add the round's counts to the unreleased ones; of the round itself n stays."""

    def erase(self, attribute: int) -> None:
        """Delete the round's counts; n stays."""

    def release(self, attribute: int) -> None:
        """All that was unreleased is released, for devices and counts alike."""

    def drop_unreleased(self) -> None:
        """Delete what was not released of any attribute: nothing can be added to it any more."""

    def write(self, results: Sequence[Result], number: int) -> None:
        """Store results of the round, or under `POOLED`, to be published."""


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
        number stays as that of a forgotten one until `drop_devices`. Sealed sums still hold its
        reports, and their variance needs to know that someone sent so many: the number of rounds
        stays, under a random number that no device can have.

        `repeated` and `invalid` are requests beside these that are only counted.
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
        """Leave no deleted report behind in a log, as far as readers allow it now."""

    # results and receipts at the broker

    def mark_published(self, result: UnpublishedResult) -> None:
        """The broker has taken this result; a newer pooled one stays to be published."""

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""

    # what all workers agree on

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
