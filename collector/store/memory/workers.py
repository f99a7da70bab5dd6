"""Several workers over one memory database: the twin of what a shared engine does."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from collector.errors import Fenced, NotLeading
from collector.records import Campaign, Candidate, Refusal, UnpublishedResult, Withdrawal
from collector.store.memory import MemorySealing, MemoryStore
from collector.store.memory.tables import MemoryDatabase
from collector.store.shared import FENCED, KEPT_SECONDS, NOT_LEADING
from collector.store.workers import QueuedAnswer, ReceiptBatch, ReceiptKind, Worker
from protocol_spec import Outcome

Feed = tuple[ReceiptKind, Candidate]


@dataclass(slots=True)
class Lease:
    """Who leads."""

    holder: int = 0
    epoch: int = 0
    until: float = 0.0


@dataclass(slots=True)
class WorkerTables:
    """What workers share beside the counts."""

    numbers: int = 0
    workers: dict[int, Worker] = field(default_factory=dict)
    lease: Lease = field(default_factory=Lease)
    feed: list[Feed] = field(default_factory=list)
    answers: dict[int, QueuedAnswer] = field(default_factory=dict)
    answered: int = 0
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    fingerprint: bytes = b""


class SharedMemoryDatabase(MemoryDatabase):
    """A memory database with workers; `now` is its clock."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.now = now
        self.shared = WorkerTables()


class MemoryWorker(MemoryStore):
    """A store that can enlist, and that leads only with the lease."""

    database: SharedMemoryDatabase

    def __init__(self, database: SharedMemoryDatabase | None = None) -> None:
        super().__init__(database or SharedMemoryDatabase())
        self._shared = self.database.shared
        self._number: int | None = None
        self._epoch = 0
        self._read_epoch = 0
        self._returned = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def now(self) -> float:
        """The database's clock."""
        return self.database.now()

    def leader_session(self) -> str:
        """The name under which whoever leads connects to the broker."""
        return self._shared.session

    def agree_on_key(self, fingerprint: bytes) -> bytes:
        """The fingerprint of the device key that all workers use: the first one given."""
        with self.database.lock:
            self._shared.fingerprint = self._shared.fingerprint or fingerprint
            return self._shared.fingerprint

    def enlist(self, name: str) -> int:
        """Become a worker with a new number."""
        with self.database.lock:
            shared, now = self._shared, self.now()
            shared.workers.pop(self._number or 0, None)
            shared.numbers += 1
            self._number, self._epoch = shared.numbers, 0
            shared.workers[self._number] = Worker(
                self._number, name, now, now, 0.0, leads=False, fenced=False, received=0
            )
            return self._number

    def beat(self, drained: float) -> float:
        """Say that this worker lives, and up to when it has committed everything."""
        with self.database.lock:
            self._sign_of_life(drained, 0)
            return self.now()

    def retire(self) -> None:
        """Leave in good order."""
        with self.database.lock:
            self.resign()
            self._shared.workers.pop(self._number or 0, None)
            self._number = 0  # nobody has it: enlist again

    def workers(self) -> list[Worker]:
        """Those that enlisted and did not retire, by number."""
        with self.database.lock:
            leader = self._shared.lease.holder if self._shared.lease.until > self.now() else 0
            return [replace(w, leads=w.number == leader) for w in self._shared.workers.values()]

    def lead(self, seconds: float) -> int | None:
        """Take or keep the lease for so long."""
        with self.database.lock:
            lease, number = self._shared.lease, self._enlisted()
            if lease.holder != number and lease.until > self.now():
                return None
            if lease.holder != number:
                lease.holder, lease.epoch = number, lease.epoch + 1
            lease.until, self._epoch = self.now() + seconds, lease.epoch
            return lease.epoch

    def resign(self) -> None:
        """Let another worker lead."""
        with self.database.lock:
            if self._number is not None and self._shared.lease.holder == self._number:
                self._shared.lease.until, self._shared.lease.holder = 0.0, 0
            self._epoch = 0

    def fence(self, silent_seconds: float) -> list[Worker]:
        """Shut out workers that were not heard of for so long."""
        with self._leading():
            shared, now = self._shared, self.now()
            silent = [
                replace(w, fenced=True)
                for w in shared.workers.values()
                if not w.fenced and w.seen < now - silent_seconds and w.number != self._number
            ]
            shared.workers.update({w.number: w for w in silent})
            for w in list(shared.workers.values()):
                if w.fenced and w.seen < now - KEPT_SECONDS:
                    del shared.workers[w.number]
            return silent

    def fresh_receipts(self) -> list[ReceiptBatch]:
        """What workers counted, saw again or withdrew since the last call."""
        with self._leading():
            feed = self._shared.feed
            if self._read_epoch != self._epoch:
                self._read_epoch, self._returned = self._epoch, len(feed)
            del feed[: self._returned]
            self._returned = len(feed)
            return _batches(feed)

    def queue_answers(self, answers: Sequence[tuple[str, bytes]]) -> None:
        """Have the leader publish these."""
        with self.database.lock:
            for topic, payload in answers:
                self._shared.answered += 1
                number = self._shared.answered
                self._shared.answers[number] = QueuedAnswer(number, topic, payload)

    def queued_answers(self, limit: int) -> list[QueuedAnswer]:
        """The oldest answers that wait to be published."""
        with self.database.lock:
            return list(self._shared.answers.values())[:limit]

    def drop_answers(self, numbers: Sequence[int]) -> None:
        """The broker has taken these."""
        with self._leading():
            for number in numbers:
                self._shared.answers.pop(number, None)

    # --- who may do what ---------------------------------------------------------------------

    def _enlisted(self) -> int:
        known = self._shared.workers.get(self._number or 0)
        if known is None or known.fenced:
            raise Fenced(FENCED)
        return known.number

    def _sign_of_life(self, drained: float, received: int) -> None:
        known = self._shared.workers[self._enlisted()]
        drained = max(known.drained, drained)
        more = known.received + received
        self._shared.workers[known.number] = replace(
            known, seen=self.now(), drained=drained, received=more
        )

    @contextmanager
    def _leading(self) -> Iterator[None]:
        with self.database.lock:
            lease = self._shared.lease
            if self._number is None and lease.until > self.now():
                raise NotLeading(NOT_LEADING)
            if self._number is not None and (lease.holder, lease.epoch) != (
                self._enlisted(),
                self._epoch,
            ):
                raise NotLeading(NOT_LEADING)
            yield

    def _note(self, kind: ReceiptKind, reports: Iterable[Candidate]) -> None:
        if self._number is not None:
            self._shared.feed += [(kind, report) for report in reports]


def _batches(feed: Iterable[Feed]) -> list[ReceiptBatch]:
    """Withdrawn ones last: none of them can be counted again."""
    groups: dict[tuple[ReceiptKind, int, int], list[Candidate]] = defaultdict(list)
    for kind, report in feed:
        groups[kind, report.campaign, report.round].append(report)
    return [
        ReceiptBatch(*key, *np.array([(r.page, r.tag) for r in groups[key]], dtype=np.uint32).T)
        for key in sorted(groups)
    ]


class SharedMemoryStore(MemoryWorker):
    """The memory engine with workers: what only a leader may write needs the lease."""

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch, unless this worker is fenced, and say for receipts what was counted."""
        with self.database.lock:
            if self._number is not None:
                self._sign_of_life(0.0, len(candidates) + len(refusals))
            outcomes = super().commit(candidates, refusals)
            told = list(zip(candidates, outcomes))
            self._note(ReceiptKind.COUNTED, (c for c, o in told if o is Outcome.ACCEPTED))
            self._note(ReceiptKind.REPEATED, (c for c, o in told if o is Outcome.DUPLICATE))
        self.meanwhile()
        return outcomes

    def withdraw(
        self, asked: Sequence[tuple[int, int]], *, repeated: int = 0, invalid: int = 0
    ) -> list[Withdrawal]:
        """Forget devices, unless this worker is fenced."""
        with self.database.lock:
            if self._number is not None:
                self._sign_of_life(0.0, 0)
            done = super().withdraw(asked, repeated=repeated, invalid=invalid)
            self._note(ReceiptKind.WITHDRAWN, (r for each in done for r in each.reports))
            return done

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[MemorySealing | None]:
        """Close a round for ever when the block ends well, as the leader."""
        with self._leading(), super().sealing(campaign, number, at) as sealing:
            yield sealing

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part."""
        with self._leading():
            return super().drop_devices(campaign)

    def drop_unreleased(self, campaign: int) -> bool:
        """Delete the counts that were not released."""
        with self._leading():
            return super().drop_unreleased(campaign)

    def mark_published(self, result: UnpublishedResult) -> None:
        """The broker has taken this result."""
        with self._leading():
            super().mark_published(result)

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""
        with self._leading():
            super().publish_again()

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""
        with self._leading():
            super().mark_receipts_cleared(campaign, number)
