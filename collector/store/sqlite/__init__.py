"""The SQLite engine: one file, one writer at a time, any number of readers.

connection.py  opening, transactions, wiping the log
reading.py     what can be asked
counting.py    the hot path: batches into tables
present.py     which devices an open round has, in memory
forgetting.py  devices that asked to be forgotten
copying.py     a copy of the whole file while it is used, and its check
sealing.py     making rounds final, the end of retention
moving.py      all that the file holds, for another engine
schema.py      the tables, as append-only migrations
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from collector.errors import Fenced
from collector.records import Campaign, Candidate, Refusal, UnpublishedResult, Withdrawal
from collector.store import QueuedAnswer, ReceiptBatch, ReceiptKind, Worker
from collector.store.moving import Portion
from collector.store.shared import FENCED, require_same
from collector.store.sqlite.connection import Connect, Connection
from collector.store.sqlite.counting import CHUNK, by_round
from collector.store.sqlite.moving import contents
from collector.store.sqlite.sealing import SealedRounds
from protocol_spec import Manifest, Outcome

__all__ = ["SqliteStore"]

MOST_ANSWERS: Final = 4000
_KINDS: Final = (
    (ReceiptKind.COUNTED, Outcome.ACCEPTED),
    (ReceiptKind.REPEATED, Outcome.DUPLICATE),
)


class SqliteStore(SealedRounds):
    """The collector's memory in one file.

    `connect` makes the connection, `chunk` is how many devices one statement asks for, and `now` is
    the time of day.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        connect: Connect = sqlite3.connect,
        chunk: int = CHUNK,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(Connection(path, read_only=read_only, connect=connect), chunk)
        self.path = path
        self.now = now
        self.meanwhile: Callable[[], None] = lambda: None
        self._worker: Worker | None = None
        self._epoch = 0
        self._leads = False
        self._feed: list[tuple[ReceiptKind, Sequence[Candidate]]] | None = None
        self._answers: dict[int, QueuedAnswer] = {}
        self._answered = 0

    def open_campaign(self, manifest: Manifest, at: int, signature: bytes = b"") -> Campaign:
        """Add a campaign, with its operator's signature; opening it again changes nothing else."""
        with self._db.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO campaign (name, manifest, opened) VALUES (?, ?, ?)",
                (manifest.campaign, manifest.to_bytes(), at),
            )
            key, stored = self._db.execute(
                "SELECT id, manifest FROM campaign WHERE name = ?", (manifest.campaign,)
            ).fetchone()
            require_same(stored, manifest)
            if signature:
                self._db.execute("INSERT OR REPLACE INTO signature VALUES (?, ?)", (key, signature))
        return self.campaign(manifest.campaign)

    def contents(self) -> Iterator[Portion]:
        """All that the file holds, to move it to another engine."""
        return contents(self._db)

    def signature(self, campaign: int) -> bytes:
        """The operator's signature of a campaign's manifest; empty where it has none."""
        row = self._db.execute(
            "SELECT signature FROM signature WHERE campaign = ?", (campaign,)
        ).fetchone()
        return b"" if row is None else row[0]

    def close_campaign(self, campaign: Campaign, at: int) -> None:
        """Take no more reports."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE campaign SET closed = ? WHERE id = ? AND closed IS NULL", (at, campaign.id)
            )

    def revoke(self, device: str, at: int) -> None:
        """Take no more reports from a device."""
        with self._db.transaction():
            self._db.execute("INSERT OR IGNORE INTO revoked VALUES (?, ?)", (device, at))

    def reinstate(self, device: str) -> None:
        """Take a device's reports again."""
        with self._db.transaction():
            self._db.execute("DELETE FROM revoked WHERE device = ?", (device,))

    def mark_published(self, result: UnpublishedResult) -> None:
        """The broker has taken this result; a newer pooled one stays to be published."""
        taken = (result.campaign, result.attribute, result.round, result.message)
        with self._db.transaction():
            self._db.execute(
                """DELETE FROM unpublished WHERE (campaign, attribute, round) IN (
                       SELECT campaign, attribute, round FROM result
                       WHERE campaign = ? AND attribute = ? AND round = ? AND message = ?)""",
                taken,
            )
            self._db.execute(
                """UPDATE result SET published = 1 WHERE campaign = ? AND attribute = ?
                   AND round = ? AND message = ? AND published = 0""",
                taken,
            )

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""
        with self._db.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO unpublished SELECT campaign, round, attribute FROM result"
            )

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE round SET receipts_cleared = 1 WHERE campaign = ? AND number = ?",
                (campaign, number),
            )

    # --- the only worker ---------------------------------------------------------------------

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch in one transaction; when this returns it is on disk."""
        outcomes = super().commit(candidates, refusals)
        self._note_batch(candidates, outcomes, len(candidates) + len(refusals))
        return outcomes

    def _note_batch(
        self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome], received: int
    ) -> None:
        if self._worker is None:
            return
        self._worker = replace(
            self._worker, seen=self.now(), received=self._worker.received + received
        )
        if outcomes.count(Outcome.ACCEPTED) == len(outcomes):  # nearly always
            self._note(ReceiptKind.COUNTED, candidates)
            return
        for kind, wanted in _KINDS:
            self._note(kind, [c for c, o in zip(candidates, outcomes) if o is wanted])

    def _note(self, kind: ReceiptKind, reports: Sequence[Candidate]) -> None:
        if self._feed is not None and reports:
            self._feed.append((kind, reports))

    def withdraw(
        self, asked: Sequence[tuple[int, int]], *, repeated: int = 0, invalid: int = 0
    ) -> list[Withdrawal]:
        """Forget devices, and count the requests."""
        done = super().withdraw(asked, repeated=repeated, invalid=invalid)
        self._note(ReceiptKind.WITHDRAWN, [report for each in done for report in each.reports])
        return done

    def leader_session(self) -> str:
        """The name under which the worker connects to the broker: random, and made once."""
        return self._agree("leader session", secrets.token_hex(16).encode()).decode()

    def agree_on_key(self, fingerprint: bytes) -> bytes:
        """The fingerprint of the device key: the first one given."""
        return self._agree("device key", fingerprint)

    def _agree(self, name: str, value: bytes) -> bytes:
        if value:
            with self._db.transaction():
                self._db.execute("INSERT OR IGNORE INTO setting VALUES (?, ?)", (name, value))
        row = self._db.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        return b"" if row is None else bytes(row[0])

    def enlist(self, name: str) -> int:
        """Become the worker. Its number means nothing here: no row bears it."""
        number = 1 if self._worker is None else self._worker.number + 1
        now = self.now()
        self._worker = Worker(number, name, now, now, 0.0, leads=False, fenced=False, received=0)
        self._leads, self._feed = False, None
        return number

    def beat(self, drained: float) -> float:
        """Note up to when everything is committed; returns the time of day."""
        if self._worker is None:
            raise Fenced(FENCED)
        drained = max(drained, self._worker.drained)
        self._worker = replace(self._worker, seen=self.now(), drained=drained)
        return self._worker.seen

    def retire(self) -> None:
        """Stop being the worker."""
        self.resign()
        self._worker = None

    def workers(self) -> list[Worker]:
        """The one worker, if it enlisted with this object: others do not see it."""
        return [] if self._worker is None else [replace(self._worker, leads=self._leads)]

    def lead(self, seconds: float) -> int | None:  # noqa: ARG002 - nobody else wants the lease
        """Lead, for ever; each time it begins there is a new epoch."""
        if self._worker is None:
            raise Fenced(FENCED)
        if not self._leads:
            self._leads, self._feed = True, None
            self._epoch += 1
        return self._epoch

    def resign(self) -> None:
        """Lead no more."""
        self._leads, self._feed = False, None

    def fence(self, silent_seconds: float) -> list[Worker]:  # noqa: ARG002
        """There is nobody else."""
        return []

    def fresh_receipts(self) -> list[ReceiptBatch]:
        """What was counted, seen again or withdrawn since the last call."""
        feed, self._feed = self._feed or [], []
        groups: dict[tuple[ReceiptKind, int, int], list[Candidate]] = defaultdict(list)
        for kind, reports in feed:
            for (campaign, number), positions in by_round(reports).items():
                groups[kind, campaign, number] += [reports[i] for i in positions]
        return [_receipts(key, groups[key]) for key in sorted(groups)]

    # --- answers to devices ------------------------------------------------------------------

    def queue_answers(self, answers: Sequence[tuple[str, bytes]]) -> None:
        """Keep answers in memory, the newest: a device that hears nothing asks again."""
        for topic, payload in answers:
            self._answered += 1
            self._answers[self._answered] = QueuedAnswer(self._answered, topic, payload)
            self._answers.pop(self._answered - MOST_ANSWERS, None)

    def queued_answers(self, limit: int) -> list[QueuedAnswer]:
        """The oldest answers that wait to be published."""
        return list(islice(self._answers.values(), limit))

    def drop_answers(self, numbers: Sequence[int]) -> None:
        """The broker has taken these."""
        for number in numbers:
            self._answers.pop(number, None)


def _receipts(key: tuple[ReceiptKind, int, int], reports: Sequence[Candidate]) -> ReceiptBatch:
    _, _, _, _, pages, tags, _ = zip(*reports)
    return ReceiptBatch(*key, np.array(pages, dtype=np.uint32), np.array(tags, dtype=np.uint32))
