"""Where the collector keeps what it knows: a small port, and one file per engine.

Claims that every engine must keep:
  I6   `commit` returns only when everything in the batch is durable
  I8   a (campaign, round, device) is counted at most once, by a unique key inside the transaction
  I10  once a round is sealed, nothing of it changes
  I12  every message of a batch adds one to exactly one outcome counter
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from collector.records import Campaign, Candidate, Refusal, Tally
from protocol_spec import Manifest, Outcome, Result


class Store(Protocol):
    """What the collector asks of its storage; `collector.store.sqlite` is the first engine.

    Everything but `data` and `cli`, which choose the engine, knows only this.
    """

    def close(self) -> None:
        """Release everything."""

    # campaigns

    def campaigns(self) -> list[Campaign]:
        """Every campaign, open and closed, oldest first."""

    def campaign(self, name: str | None) -> Campaign:
        """One campaign by its name or the beginning of it; the only one when not named."""

    def open_campaign(self, manifest: Manifest, at: int) -> Campaign:
        """Add a campaign; opening it again changes nothing."""

    def close_campaign(self, campaign: Campaign, at: int) -> None:
        """Take no more reports."""

    def changed_elsewhere(self) -> int:
        """A number that changes when another process wrote."""

    # counting

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch durably; the outcome of each candidate, in order."""

    def received(self) -> int:
        """Messages received, ever; always the sum of all outcomes."""

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        """Outcome counters of a campaign, of one of its rounds, or of everything received."""

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round, open or sealed."""

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        """(page, tag) of every report of an open round."""

    # rounds

    def open_rounds(self, campaign: int) -> list[int]:
        """Rounds that hold reports and are not sealed."""

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""

    def seal(
        self,
        campaign: Campaign,
        number: int,
        at: int,
        results: Callable[[Mapping[int, Tally], Mapping[Outcome, int]], list[Result]],
        pooled: Callable[[], list[Result]],
    ) -> list[Result]:
        """Close a round for ever, atomically; empty when it was sealed before."""

    def sealed_total(self, campaign: int, attribute: int) -> tuple[int, Tally | None]:
        """Number of sealed rounds with reports, and all their counts together."""

    def participation(self, campaign: int, attribute: int) -> tuple[list[int], list[int]]:
        """How many devices reported in how many sealed rounds: (rounds, devices)."""

    # results and receipts at the broker

    def results(
        self, campaign: int, attribute: int | None = None, rounds: range | None = None
    ) -> list[Result]:
        """Stored results, rounds in order and the pooled one, whose number is `POOLED`, first.

        Of all rounds unless some are named: others are not read, so that they cost no memory.
        """

    def unpublished(self, limit: int = 100) -> list[tuple[int, int, int, bytes]]:
        """(campaign, attribute, round, message) of results that no broker has taken yet."""

    def mark_published(self, campaign: int, attribute: int, number: int, message: bytes) -> None:
        """The broker has taken this result."""

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""

    def clearable_receipts(self, campaign: int) -> list[int]:
        """Sealed rounds whose receipt pages still stand at the broker."""

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""

    # devices

    def withdraw(self, campaign: Campaign, device: int) -> int:
        """Take a device's reports out of every open round and forget the device."""

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part, at the end of the manifest's retention."""

    def revoked(self) -> frozenset[str]:
        """Names of devices whose reports are no longer taken."""

    def wipe_log(self) -> None:
        """Leave no deleted report behind in a log, as far as readers allow it now."""
