"""Devices ask to be forgotten: their reports leave every round that is not sealed yet.

All requests of a batch are one transaction. A device is forgotten once in a campaign, so asking
again costs one look at its row; asking many times at once is one request (A2).
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from collector.health import Status
from collector.ingest.admit import OpenCampaigns, admit
from collector.ingest.flood import FloodGuard
from collector.ingest.receipts import ReceiptPages
from collector.links import BATCH, Delivery, Message
from collector.records import Campaign, Candidate, Refusal, Withdrawal
from collector.store import Store
from protocol_spec import (
    Outcome,
    Rejected,
    Request,
    Response,
    ResponseStatus,
    Topics,
    decode_request,
    digest8,
    parse_from_device,
)
from protocol_spec.topics import marker

Answer = tuple[str, bytes]  # topic and payload


class Asked(NamedTuple):
    """A request that is one, and who asks."""

    campaign: Campaign
    device: str
    request: Request

    def answer(self, withdrawal: Withdrawal, namespace: str) -> Answer:
        """That it is done."""
        request = self.request
        rounds, done = len(withdrawal.reports), ResponseStatus.DONE
        response = Response(request.digest8, request.kind, request.nonce, done, rounds)
        return Topics(self.campaign.name, namespace).response(self.device), response.encode()


def is_request(message: Message) -> bool:
    """Whether a message claims to be a request rather than a report."""
    return message.topic is not None and message.topic.endswith("/request")


def forget(
    messages: Sequence[Message], store: Store, campaigns: OpenCampaigns, receipts: ReceiptPages
) -> list[Answer]:
    """Withdraw the reports of devices that ask for it, forget the devices, and say so.

    When this returns, it is durable. A `StorageFailure` means that nothing was changed.
    """
    asked, repeated = _asked(messages, campaigns)
    numbers = [(a.campaign.id, campaigns.key.number(a.campaign.manifest, a.device)) for a in asked]
    invalid = len(messages) - repeated - len(asked)
    withdrawals = store.withdraw(numbers, repeated=repeated, invalid=invalid)
    for report in (report for each in withdrawals for report in each.reports):
        receipts.remove(report.campaign, report.round, report.page, report.tag)
    return [a.answer(done, campaigns.namespace) for a, done in zip(asked, withdrawals)]


def _asked(messages: Iterable[Message], campaigns: OpenCampaigns) -> tuple[list[Asked], int]:
    """The latest valid request of each device and campaign, and how many came before these."""
    latest: dict[str | None, Asked] = {}
    valid = 0
    for message in messages:
        asked = _read(message, campaigns)
        if asked is not None:
            latest[message.topic] = asked
            valid += 1
    return list(latest.values()), valid - len(latest)


def _read(message: Message, campaigns: OpenCampaigns) -> Asked | None:
    origin = parse_from_device(message.topic or "", campaigns.namespace)
    request = decode_request(message.payload)
    campaign = campaigns.by_name.get(origin.campaign) if origin else None
    if origin is None or campaign is None or isinstance(request, Rejected) or message.retained:
        return None
    if request.digest8 != digest8(campaign.manifest):
        return None
    return Asked(campaign, origin.device, request)


# --- A batch of messages: decided, committed, and only then acknowledged.


NAMES: Final = 20  # of suspended devices in the status: they must fit into a heartbeat


@dataclass(frozen=True, slots=True)
class Counted:
    """What became of a batch: each candidate's outcome in order, and how many were refused."""

    candidates: Sequence[Candidate]
    outcomes: Sequence[Outcome]
    refused: int
    early: int = 0

    @property
    def received(self) -> int:
        """Messages in the batch."""
        return len(self.candidates) + self.refused

    @property
    def accepted(self) -> int:
        """Reports counted for the first time."""
        return self.outcomes.count(Outcome.ACCEPTED)

    @property
    def late(self) -> int:
        """Reports of rounds that were sealed before."""
        return self.outcomes.count(Outcome.LATE)


def count(
    messages: Iterable[Message],
    store: Store,
    campaigns: OpenCampaigns,
    now: float,
    receipts: ReceiptPages | None = None,
    guard: FloodGuard | None = None,
) -> Counted:
    """Decide on every message and count the batch in one transaction.

    When this returns, the outcome of every message is durable: it may be acknowledged, and the
    receipts of what was counted are noted. A `StorageFailure` means that nothing was changed.
    """
    return count_decided(decide(list(messages), campaigns, now, guard), store, receipts, guard)


def count_decided(
    decided: Decided,
    store: Store,
    receipts: ReceiptPages | None = None,
    guard: FloodGuard | None = None,
) -> Counted:
    """Count a batch whose every message was decided on."""
    candidates, refusals = decided.candidates, decided.refusals
    outcomes = store.commit(candidates, refusals)
    if receipts is not None:
        receipts.note(candidates, outcomes)
    if guard is not None:
        guard.credit(decided.counted(outcomes))
        guard.waste(decided.useless(outcomes))
    early = sum(refusal.outcome is Outcome.EARLY for refusal in refusals)
    return Counted(candidates, outcomes, len(refusals), early)


@dataclass(frozen=True, slots=True)
class Decided:
    """Candidates and refusals of a batch, and the device or message that each came from."""

    candidates: list[Candidate] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    admitted: list[Message] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    refused: list[Message] = field(default_factory=list)

    def counted(self, outcomes: Sequence[Outcome]) -> Sequence[str]:
        """Devices whose reports are counted now."""
        if outcomes.count(Outcome.ACCEPTED) == len(self.names):  # nearly always
            return self.names
        return [name for name, o in zip(self.names, outcomes) if o is Outcome.ACCEPTED]

    def useless(self, outcomes: Sequence[Outcome]) -> Iterator[Message]:
        """Messages that changed nothing. A revoked device is shut out already."""
        if outcomes.count(Outcome.ACCEPTED) < len(self.names):
            for message, outcome in zip(self.admitted, outcomes):
                if outcome is not Outcome.ACCEPTED:
                    yield message
        for message, refusal in zip(self.refused, self.refusals):
            if refusal.outcome is not Outcome.REVOKED:
                yield message


def decide(
    messages: Sequence[Message],
    campaigns: OpenCampaigns,
    now: float,
    guard: FloodGuard | None = None,
) -> Decided:
    """Recognise what is like a report admitted before; judge the rest, and learn from it."""
    suspended: Set[str] = guard.suspended if guard is not None else frozenset()
    recognition = campaigns.recognition
    senders, recognised = recognition.recognise(messages, now, suspended)
    judge = _Judge(campaigns, now, guard)
    decided = Decided()
    for message, sender, candidate in zip(messages, senders, recognised):
        verdict = judge(message) if candidate is None else candidate
        if isinstance(verdict, Refusal):
            decided.refusals.append(verdict)
            decided.refused.append(message)
            continue
        if candidate is None and sender is not None:
            recognition.learn(message, sender, verdict)
        decided.candidates.append(verdict)
        decided.names.append(sender.name if sender is not None else "")
        decided.admitted.append(message)
    return decided


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The next reports, decided on while the batch before them was committed."""

    reports: Sequence[Message]
    campaigns: OpenCampaigns
    decided: Decided


class _Judge:
    """Admission with an eye on suspended devices: a flood of one topic is not even parsed twice."""

    def __init__(self, campaigns: OpenCampaigns, now: float, guard: FloodGuard | None) -> None:
        self._campaigns = campaigns
        self._suspended = guard.suspended if guard is not None else frozenset()
        self._now = now
        self._guard = guard
        self._dropped: dict[str | None, Refusal] = {}

    def __call__(self, message: Message) -> Candidate | Refusal:
        verdict = self._dropped.get(message.topic) or admit(
            message, self._campaigns, self._now, self._suspended
        )
        if self._guard and isinstance(verdict, Refusal) and verdict.outcome is Outcome.SUSPENDED:
            self._dropped[message.topic] = verdict
            if self._guard.looks_at(message):
                return admit(message, self._campaigns, self._now)
        return verdict


class Ingest:
    """Counts what a connection delivers, and holds the batch that the storage refused."""

    def __init__(
        self,
        store: Store,
        campaigns: OpenCampaigns,
        receipts: ReceiptPages,
        guard: FloodGuard,
        status: Status,
        latest: Callable[[], float],
        trace: Callable[[str], None],
    ) -> None:
        self.campaigns = campaigns
        self.held: list[Message] = []
        self._answers: deque[Answer] = deque(maxlen=BATCH)
        self._store = store
        self._receipts = receipts
        self._guard = guard
        self._status = status
        self._latest = latest  # the time of day, for a clock that was set back as well
        self._trace = trace
        self._marker = marker(campaigns.namespace)
        self._ahead: _Ahead | None = None

    def take(self, link: Delivery, messages: list[Message]) -> None:
        """Commit a batch, then acknowledge it.

        Markers, the collector's own messages to itself, are acknowledged and no more. A
        `StorageFailure` leaves the batch in `held`, unacknowledged, to be taken again.
        """
        of_devices = self._of_devices(messages)
        if not of_devices:
            link.acknowledge(messages)
            return
        self.held = messages
        self._trace("batch in memory")
        self._commit(of_devices)
        self.held = []
        self._trace("batch committed")
        self.answer(link)
        link.acknowledge(messages)
        self._trace("batch acknowledged")

    def prepare(self, messages: Sequence[Message]) -> None:
        """Decide on what will be the next batch, while the storage works on this one.

        That is forgotten if anything changes on which it depends.
        """
        if not self._guard.suspended:
            reports, _ = _sorted_out(self._of_devices(messages))
            decided = decide(reports, self.campaigns, self._latest(), self._guard)
            self._ahead = _Ahead(reports, self.campaigns, decided)

    def answer(self, link: Delivery) -> None:
        """Answer requests, as far as publishes may be unanswered; the rest at the next call."""
        for _ in range(min(link.free, len(self._answers))):
            topic, payload = self._answers.popleft()
            link.publish(topic, payload, retain=False)

    def release(self) -> None:
        """The connection is gone: the broker delivers again what was not acknowledged."""
        self.held = []

    def watch(self) -> None:
        """Once in a turn: end suspensions if it is time, and say who is suspended."""
        self._guard.begin_turn()
        self._status.suspended = len(self._guard.suspended)
        self._status.suspended_names = list(islice(self._guard.suspended, NAMES))

    def _of_devices(self, messages: Sequence[Message]) -> list[Message]:
        return [message for message in messages if message.topic != self._marker]

    def _prepared(self, reports: Sequence[Message]) -> Decided | None:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.campaigns is not self.campaigns or self._guard.suspended:
            return None
        return ahead.decided if ahead.reports == reports else None

    def _commit(self, messages: Sequence[Message]) -> None:
        """Reports first: a report and its withdrawal in one batch leave nothing."""
        reports, requests = _sorted_out(messages)
        if reports:
            self._count(reports)
        if requests:
            self._answers += forget(requests, self._store, self.campaigns, self._receipts)
            self._guard.waste(requests)

    def _count(self, reports: Sequence[Message]) -> None:
        now = self._latest()
        decided = self._prepared(reports) or decide(reports, self.campaigns, now, self._guard)
        counted = count_decided(decided, self._store, self._receipts, self._guard)
        status = self._status
        status.received += counted.received
        status.accepted += counted.accepted
        status.early += counted.early
        status.late += counted.late
        status.batches += 1
        status.largest_batch = max(status.largest_batch, counted.received)
        status.last_commit = now


def _sorted_out(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Reports, and requests."""
    requests = [message for message in messages if is_request(message)]
    return [m for m in messages if not is_request(m)] if requests else messages, requests


# --- Python's search for garbage in cycles, at the pace of batches.


OBJECTS: Final = 100_000  # more than those of a batch; a few megabytes, if they were garbage


def search_rarely() -> None:
    """For the whole process: a search when so many more objects were made than are gone."""
    gc.set_threshold(OBJECTS)
