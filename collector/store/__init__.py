"""Where the collector keeps what it knows: a port, and one room per engine.

    sqlite/    one file, one writer; what `allomfree-collector` uses
    postgres/  one database that several workers share
    workers.py what a store adds for that
    moving.py  all that a store holds, to move it to another engine
    memory/    dictionaries, for tests, notebooks and simulations without a disk
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
Whatever writes does so as a whole or raises `StorageFailure` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Protocol

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
    """What the collector asks of its storage. Only `data_dir` chooses the engine."""

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
