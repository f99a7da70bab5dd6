"""A batch of messages: decided, committed, and only then acknowledged.

Claims:
  I6   a message is acknowledged, and a receipt given, only after its batch is durable
  I15  a bad message is counted as such and acknowledged; only a storage failure withholds that
  A2   all requests to be forgotten in a batch are one transaction. A device is forgotten once in a
       campaign: asking again reads one row, and asking many times at once is one request
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Final, NamedTuple

from collector.health import Status
from collector.ingest.admit import OpenCampaigns, admit
from collector.ingest.flood import FloodGuard
from collector.links import Message, Source
from collector.records import Campaign, Candidate, Refusal
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

NAMES: Final = 20  # of suspended devices in the status: they must fit into a heartbeat
GC_THRESHOLD: Final = 100_000  # more than those of a batch; a few megabytes, if they were garbage

Answer = tuple[str, bytes]  # topic and payload


def relax_garbage_collector() -> None:
    """Have Python search for cyclic garbage at the pace of batches, in the whole process.

    A batch makes tens of thousands of objects, and all of them are freed with it without a search.
    By default Python would look through them every 700 objects, and now and then through all that
    the program holds: a fifth of the processor time of a report.
    """
    gc.set_threshold(GC_THRESHOLD)


# --- deciding and counting ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """Candidates and refusals of a batch, and the device or message that each came from."""

    candidates: list[Candidate] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    admitted: list[Message] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    refused: list[Message] = field(default_factory=list)


def decide(
    messages: Sequence[Message],
    campaigns: OpenCampaigns,
    now: float,
    guard: FloodGuard | None = None,
) -> Decided:
    """Match what is like a report admitted before; admit or refuse the rest, and learn from it."""
    prefixes, suspended = campaigns.prefixes, guard.suspended if guard else frozenset[str]()
    senders, matched = prefixes.match(messages, now, suspended)
    if all(matched):  # nearly always, and then there is nothing else to do for each
        names = [sender.name for sender in senders if sender is not None]
        return Decided([c for c in matched if c is not None], names, list(messages))
    dropped: dict[str | None, Refusal] = {}  # a flood on one topic is not even parsed twice
    decided = Decided()
    for message, sender, candidate in zip(messages, senders, matched):
        verdict: Candidate | Refusal | None = candidate
        if verdict is None:
            verdict = dropped.get(message.topic) or admit(message, campaigns, now, suspended)
            if guard and isinstance(verdict, Refusal) and verdict.outcome is Outcome.SUSPENDED:
                dropped[message.topic] = verdict
                if guard.looks_at(message):
                    verdict = admit(message, campaigns, now)
        if isinstance(verdict, Refusal):
            decided.refusals.append(verdict)
            decided.refused.append(message)
            continue
        if candidate is None and sender is not None:
            prefixes.add(message, sender, verdict)
        decided.candidates.append(verdict)
        decided.names.append(sender.name if sender is not None else "")
        decided.admitted.append(message)
    return decided


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of a batch: each candidate's outcome in order, and how many were refused."""

    candidates: Sequence[Candidate]
    outcomes: Sequence[Outcome]
    refused: int
    early: int = 0

    @property
    def received(self) -> int:
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
    guard: FloodGuard | None = None,
) -> Counted:
    """Decide on every message and count the batch in one transaction.

    When this returns, the outcome of every message is durable: it may be acknowledged. A
    `StorageFailure` means that nothing was changed.
    """
    return count_decided(decide(list(messages), campaigns, now, guard), store, guard)


def count_decided(decided: Decided, store: Store, guard: FloodGuard | None = None) -> Counted:
    """Count a batch. For the guard, whatever changed nothing is waste, except from a revoked
    device, which is shut out already."""
    names, refusals = decided.names, decided.refusals
    outcomes = store.commit(decided.candidates, refusals)
    counted = Counted(
        decided.candidates,
        outcomes,
        len(refusals),
        sum(refusal.outcome is Outcome.EARLY for refusal in refusals),
    )
    if guard is not None:
        wasted: list[Message] = []
        if counted.accepted < len(names):
            good = [outcome is Outcome.ACCEPTED for outcome in outcomes]
            names = list(compress(names, good))
            wasted = [m for m, is_good in zip(decided.admitted, good) if not is_good]
        guard.credit(names)
        of_others = zip(decided.refused, refusals)
        guard.waste(wasted + [m for m, r in of_others if r.outcome is not Outcome.REVOKED])
    return counted


# --- requests to be forgotten -------------------------------------------------------------------


class Asked(NamedTuple):
    """A valid request, and who asks."""

    campaign: Campaign
    device: str
    request: Request


def forget(messages: Sequence[Message], store: Store, campaigns: OpenCampaigns) -> list[Answer]:
    """Withdraw the reports of devices that ask for it from every round that is not sealed, forget
    the devices, and return the answers to them.

    When this returns, it is durable. A `StorageFailure` means that nothing was changed.
    """
    latest: dict[str | None, Asked] = {}
    valid = 0
    for message in messages:
        asked = _read_request(message, campaigns)
        if asked is not None:
            latest[message.topic] = asked
            valid += 1
    withdrawals = store.withdraw(
        [
            (campaign.id, campaigns.key.number(campaign.manifest, device))
            for campaign, device, _ in latest.values()
        ],
        repeated=valid - len(latest),
        invalid=len(messages) - valid,
    )
    answers = []
    for (campaign, device, request), done in zip(latest.values(), withdrawals):
        response = Response(
            request.digest8, request.kind, request.nonce, ResponseStatus.DONE, len(done.reports)
        )
        topic = Topics(campaign.name, campaigns.namespace).response(device)
        answers.append((topic, response.encode()))
    return answers


def _read_request(message: Message, campaigns: OpenCampaigns) -> Asked | None:
    origin = parse_from_device(message.topic or "", campaigns.namespace)
    request = decode_request(message.payload)
    campaign = campaigns.by_name.get(origin.campaign) if origin else None
    if origin is None or campaign is None or isinstance(request, Rejected) or message.retained:
        return None
    is_for_it = request.digest8 == digest8(campaign.manifest)
    return Asked(campaign, origin.device, request) if is_for_it else None


# --- what a connection delivers -----------------------------------------------------------------


class _Prefetched(NamedTuple):
    """The next reports, decided on while the batch before them was committed."""

    reports: Sequence[Message]
    campaigns: OpenCampaigns
    decided: Decided


class Ingest:
    """Counts what a connection delivers, and holds the batch that the storage refused.

    Its answers to requests go to the store, for the leader to publish. Only then is the batch
    acknowledged, so that a request is answered however this worker ends.
    """

    def __init__(
        self,
        store: Store,
        campaigns: OpenCampaigns,
        guard: FloodGuard,
        status: Status,
        latest: Callable[[], float],
        trace: Callable[[str], None],
    ) -> None:
        self.campaigns = campaigns
        self.held: list[Message] = []  # not committed
        self._owed: list[Message] = []  # committed, not acknowledged
        self._owes_devices = False  # whether these are more than markers
        self._answers: list[Answer] = []  # not in the store yet
        self._store = store
        self._guard = guard
        self._status = status
        self._latest = latest  # the time of day; for a clock that was set back, too
        self._trace = trace
        self._marker = marker(campaigns.namespace)
        self._prefetched: _Prefetched | None = None

    def commit(self, messages: list[Message]) -> None:
        """Count a batch. Markers, the collector's own messages to itself, are only acknowledged.

        A `StorageFailure` leaves the batch in `held`, to be committed again.
        """
        of_devices = self._of_devices(messages)
        if of_devices:
            self.held = messages
            self._trace("batch in memory")
            reports, requests = _sort(of_devices)
            if reports:  # first: a report and its withdrawal in one batch leave nothing
                self._count(reports)
            if requests:
                self._answers += forget(requests, self._store, self.campaigns)
                self._guard.waste(requests)
            self.held = []
            self._owes_devices = True
            self._trace("batch committed")
        self._owed += messages

    def queue_answers(self) -> bool:
        """Hand answers to the store; whether there were any."""
        if not self._answers:
            return False
        self._store.queue_answers(self._answers)
        self._answers = []
        return True

    def acknowledge(self, source: Source) -> None:
        """Acknowledge what is committed and answered."""
        if self._owed:
            source.acknowledge(self._owed)
            self._owed = []
        if self._owes_devices:
            self._owes_devices = False
            self._trace("batch acknowledged")

    def release(self) -> None:
        """The connection is gone: the broker redelivers what was not acknowledged."""
        self.held, self._owed, self._owes_devices = [], [], False

    def decide_prefetched(self, messages: Sequence[Message]) -> None:
        """Decide on what will be the next batch, while the storage works on this one.

        That is forgotten if anything changes that it depends on.
        """
        if not self._guard.suspended:
            reports, _ = _sort(self._of_devices(messages))
            decided = decide(reports, self.campaigns, self._latest(), self._guard)
            self._prefetched = _Prefetched(reports, self.campaigns, decided)

    def begin_turn(self) -> None:
        """End suspensions whose time is over, and update the status with those that are left."""
        self._guard.begin_turn()
        self._status.suspended = len(self._guard.suspended)
        self._status.suspended_names = list(islice(self._guard.suspended, NAMES))

    def _of_devices(self, messages: Sequence[Message]) -> list[Message]:
        return [message for message in messages if message.topic != self._marker]

    def _count(self, reports: Sequence[Message]) -> None:
        now, guard = self._latest(), self._guard
        prefetched, self._prefetched = self._prefetched, None
        decided = None
        if (
            prefetched is not None
            and prefetched.campaigns is self.campaigns
            and not guard.suspended
        ):
            decided = prefetched.decided if prefetched.reports == reports else None
        counted = count_decided(
            decided or decide(reports, self.campaigns, now, guard), self._store, guard
        )
        status = self._status
        status.received += counted.received
        status.accepted += counted.accepted
        status.early += counted.early
        status.late += counted.late
        status.batches += 1
        status.largest_batch = max(status.largest_batch, counted.received)
        status.last_commit = now


def _sort(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Reports, and requests to be forgotten."""
    asks = [m.topic is not None and m.topic.endswith("/request") for m in messages]
    if not any(asks):
        return messages, ()
    return [m for m, ask in zip(messages, asks) if not ask], list(compress(messages, asks))
