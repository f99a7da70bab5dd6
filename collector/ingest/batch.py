"""A batch of messages: decided, committed, and only then acknowledged.

Claims:
  I6   a message is acknowledged, and a receipt given, only after its batch is durable
  I15  a bad message is counted as such and acknowledged; only a storage failure withholds that
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from collector.health import Status
from collector.ingest.admit import OpenCampaigns, admit
from collector.ingest.forget import Answer, forget, is_request
from collector.ingest.receipts import ReceiptPages
from collector.mqtt import Link, Message
from collector.records import Candidate, Refusal
from collector.store import Store
from collector.timing import Clock
from protocol_spec import Outcome


@dataclass(frozen=True, slots=True)
class Counted:
    """What became of a batch: each candidate's outcome in order, and how many were refused."""

    candidates: Sequence[Candidate]
    outcomes: Sequence[Outcome]
    refused: int

    @property
    def received(self) -> int:
        """Messages in the batch."""
        return len(self.candidates) + self.refused

    @property
    def accepted(self) -> int:
        """Reports counted for the first time."""
        return self.outcomes.count(Outcome.ACCEPTED)

    @property
    def rounds(self) -> set[tuple[int, int]]:
        """(campaign, round) of every report that was counted."""
        pairs = zip(self.candidates, self.outcomes)
        return {(c.campaign, c.round) for c, outcome in pairs if outcome is Outcome.ACCEPTED}


def count(
    messages: Iterable[Message],
    store: Store,
    campaigns: OpenCampaigns,
    now: float,
    receipts: ReceiptPages | None = None,
) -> Counted:
    """Decide on every message and count the batch in one transaction.

    When this returns, the outcome of every message is durable: it may be acknowledged, and the
    receipts of what was counted are noted. A `StorageFailure` means that nothing was changed.
    """
    candidates: list[Candidate] = []
    refusals: list[Refusal] = []
    for message in messages:
        verdict = admit(message, campaigns, now)
        if isinstance(verdict, Candidate):
            candidates.append(verdict)
        else:
            refusals.append(verdict)
    outcomes = store.commit(candidates, refusals)
    if receipts is not None:
        receipts.note(candidates, outcomes)
    return Counted(candidates, outcomes, len(refusals))


class Ingest:
    """Counts what a connection delivers, and holds the batch that the storage refused."""

    def __init__(
        self,
        store: Store,
        campaigns: OpenCampaigns,
        receipts: ReceiptPages,
        status: Status,
        clock: Clock,
        trace: Callable[[str], None],
    ) -> None:
        self.campaigns = campaigns
        self.held: list[Message] = []
        self._store = store
        self._receipts = receipts
        self._status = status
        self._clock = clock
        self._trace = trace

    def take(self, link: Link, messages: list[Message]) -> set[tuple[int, int]]:
        """Commit a batch, then acknowledge it; the (campaign, round) of what was counted.

        A `StorageFailure` leaves the batch in `held`, unacknowledged, to be taken again.
        """
        self.held = messages
        self._trace("batch in memory")
        counted, answers = self._commit(messages)
        self.held = []
        self._trace("batch committed")
        for topic, payload in answers:
            link.publish(topic, payload, retain=False)
        link.acknowledge(messages)
        self._trace("batch acknowledged")
        return counted

    def release(self) -> None:
        """The connection is gone: the broker delivers again what was not acknowledged."""
        self.held = []

    def _commit(self, messages: Sequence[Message]) -> tuple[set[tuple[int, int]], list[Answer]]:
        """Reports first: a report and its withdrawal in one batch leave nothing."""
        requests = [message for message in messages if is_request(message)]
        reports = [m for m in messages if not is_request(m)] if requests else messages
        counted: set[tuple[int, int]] = set()
        if reports:
            done = count(reports, self._store, self.campaigns, self._clock.now(), self._receipts)
            self._note(done)
            counted = done.rounds
        asked = (forget(m, self._store, self.campaigns, self._receipts) for m in requests)
        return counted, [answer for answer in asked if answer is not None]

    def _note(self, counted: Counted) -> None:
        status = self._status
        status.received += counted.received
        status.accepted += counted.accepted
        status.batches += 1
        status.largest_batch = max(status.largest_batch, counted.received)
        status.last_commit = self._clock.now()
