"""The PostgreSQL engine: one database that any number of workers share.

connection.py  opening, transactions, opening again
errors.py      what the server answers, in plain words
arrays.py      columns of a batch as the server reads them
reading.py     what can be asked
counting.py    the hot path: batches in which all is new
careful.py     batches in which something is not
columns.py     a batch as columns
counters.py    what a worker writes beside the reports
forgetting.py  devices that asked to be forgotten
sealing.py     making rounds final, the end of retention
campaigns.py   campaigns, revoked devices, what was published
moving.py      filling an empty database from another engine
schema.py      the tables, as append-only migrations

This file has what workers share: who they are, who leads, what the leader has to publish.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from collector.errors import Fenced
from collector.store import QueuedAnswer, ReceiptBatch, ReceiptKind, Worker
from collector.store.moving import Portion
from collector.store.postgres.arrays import bigints
from collector.store.postgres.campaigns import Campaigns
from collector.store.postgres.connection import Connection
from collector.store.postgres.moving import take_over
from collector.store.shared import FENCED, KEPT_SECONDS
from collector.store_address import StoreAddress

__all__ = ["PostgresStore"]


class PostgresStore(Campaigns):
    """The collector's memory in PostgreSQL; `read_only` for whoever only looks."""

    def __init__(self, address: StoreAddress, *, read_only: bool = False) -> None:
        super().__init__(Connection(address, read_only=read_only))
        self._read_epoch = 0
        self._returned: list[int] = []

    def now(self) -> float:
        """The database's clock, seconds since 1970."""
        row = self._db.row("SELECT extract(epoch FROM clock_timestamp())::double precision")
        return float(row[0]) if row else 0.0

    def leader_session(self) -> str:
        """The name under which whoever leads connects to the broker."""
        return self._agree("leader session", secrets.token_hex(16).encode()).decode()

    def agree_on_key(self, fingerprint: bytes) -> bytes:
        """The fingerprint of the device key that all workers use: the first one given."""
        return self._agree("device key", fingerprint)

    def _agree(self, name: str, value: bytes) -> bytes:
        if value:
            self._db.execute(
                "INSERT INTO setting VALUES (%s, %s) ON CONFLICT DO NOTHING", (name, value)
            )
        row = self._db.row("SELECT value FROM setting WHERE name = %s", (name,))
        return bytes(row[0]) if row else b""

    def take_over(self, contents: Callable[[], Iterable[Portion]]) -> dict[str, int]:
        """Copy all that another store holds into this empty one, compared; rows by table."""
        return take_over(self._db, contents)

    # --- workers -----------------------------------------------------------------------------

    def enlist(self, name: str) -> int:
        """Become a worker with a new number."""
        with self._db.transaction():
            self._db.execute("DELETE FROM worker WHERE number = %s AND number > 0", (self.worker,))
            ((number,),) = self._db.rows(
                """INSERT INTO worker (number, name, started, seen)
                   SELECT nextval('worker_number'), %s, t, t
                   FROM (SELECT extract(epoch FROM clock_timestamp()) AS t) AS now
                   RETURNING number""",
                (name,),
            )
        self._db.execute("SELECT set_config('application_name', %s, false)", (_session(number),))
        self.worker, self._lost, self.epoch = int(number), self._db.lost, 0
        return self.worker

    def beat(self, drained: float) -> float:
        """Say that this worker lives, and up to when it has committed everything."""
        row = self._db.row(
            """UPDATE worker SET seen = extract(epoch FROM clock_timestamp()),
                                 drained = greatest(drained, %s)
               WHERE number = %s AND number > 0 AND NOT fenced RETURNING seen""",
            (drained, self._own()),
        )
        if row is None:
            raise Fenced(FENCED)
        return float(row[0])

    def retire(self) -> None:
        """Leave in good order."""
        self.resign()
        self._db.execute("DELETE FROM worker WHERE number = %s AND number > 0", (self.worker,))
        self.worker = -1  # nobody has it: enlist again

    def workers(self) -> list[Worker]:
        """Those that enlisted and did not retire, by number."""
        rows = self._db.rows(
            """SELECT number, name, started, seen, drained,
                      holder = number AND until > extract(epoch FROM clock_timestamp()),
                      fenced, received
               FROM worker CROSS JOIN lease WHERE number > 0 ORDER BY number"""
        )
        return [Worker(*row) for row in rows]

    # --- the leader --------------------------------------------------------------------------

    def lead(self, seconds: float) -> int | None:
        """Take or keep the lease for so long."""
        with self._db.transaction():
            self.take_row()
            # Who seals holds the lease's row, and leads: it is not waited for.
            free = self._db.row(
                """SELECT 1 FROM lease WHERE holder = %s
                   OR until <= extract(epoch FROM clock_timestamp()) FOR UPDATE SKIP LOCKED""",
                (self._own(),),
            )
            if free is None:
                return None
            ((epoch,),) = self._db.rows(
                """UPDATE lease SET holder = %s, epoch = epoch + (holder <> %s)::integer,
                                    until = extract(epoch FROM clock_timestamp()) + %s
                   RETURNING epoch""",
                (self._own(), self._own(), seconds),
            )
        self.epoch = int(epoch)
        return self.epoch

    def resign(self) -> None:
        """Let another worker lead."""
        if self.epoch:
            self._db.execute(
                "UPDATE lease SET holder = 0, until = 0 WHERE holder = %s AND epoch = %s",
                (self.worker, self.epoch),
            )
        self.epoch = 0

    def fence(self, silent_seconds: float) -> list[Worker]:
        """Shut out workers that were not heard of for so long."""
        with self._db.transaction():
            self.check_leading()
            silent = self._silent(silent_seconds)
            for worker in silent:
                self._end_session(worker)
            rows = self._db.rows(
                """UPDATE worker SET fenced = true WHERE number = ANY(%s)
                   AND seen < extract(epoch FROM clock_timestamp()) - %s RETURNING number""",
                (bigints(silent), silent_seconds),
            )
            self._db.execute(
                """DELETE FROM worker
                   WHERE fenced AND seen < extract(epoch FROM clock_timestamp()) - %s""",
                (KEPT_SECONDS,),
            )
        shut_out = {number for (number,) in rows}
        return [worker for worker in self.workers() if worker.number in shut_out]

    def _silent(self, seconds: float) -> list[int]:
        rows = self._db.rows(
            """SELECT number FROM worker WHERE number > 0 AND number <> %s AND NOT fenced
               AND seen < extract(epoch FROM clock_timestamp()) - %s ORDER BY number""",
            (self._own(), seconds),
        )
        return [number for (number,) in rows]

    def _end_session(self, number: int) -> None:
        """A worker that stopped in the middle of a batch holds rows that others wait for."""
        self._db.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE application_name = %s AND usename = current_user
               AND datname = current_database() AND state LIKE 'idle in transaction%%'""",
            (_session(number),),
        )

    def fresh_receipts(self) -> list[ReceiptBatch]:
        """What workers counted, saw again or withdrew since the last call."""
        with self._db.transaction():
            self.check_leading()
            if self._read_epoch != self.epoch:
                self._db.execute("DELETE FROM receipt_feed")
                self._read_epoch, self._returned = self.epoch, []
                return []
            self._db.execute(
                "DELETE FROM receipt_feed WHERE sequence = ANY(%s)", (bigints(self._returned),)
            )
            rows = self._db.rows("SELECT sequence, kind, campaign, round, places FROM receipt_feed")
        self._returned = [row[0] for row in rows]
        return _batches(rows)

    # --- answers to devices ------------------------------------------------------------------

    def queue_answers(self, answers: Sequence[tuple[str, bytes]]) -> None:
        """Have the leader publish these."""
        with self._db.transaction():
            for answer in answers:
                self._db.execute("INSERT INTO answer (topic, payload) VALUES (%s, %s)", answer)

    def queued_answers(self, limit: int) -> list[QueuedAnswer]:
        """The oldest answers that wait to be published."""
        rows = self._db.rows(
            "SELECT number, topic, payload FROM answer ORDER BY number LIMIT %s", (limit,)
        )
        return [QueuedAnswer(*row) for row in rows]

    def drop_answers(self, numbers: Sequence[int]) -> None:
        """The broker has taken these."""
        with self._db.transaction():
            self.check_leading()
            self._db.execute("DELETE FROM answer WHERE number = ANY(%s)", (bigints(numbers),))


def _session(number: int) -> str:
    """The name under which the server shows a worker's connection."""
    return f"allomfree worker {number}"


def _batches(rows: Iterable[tuple[Any, ...]]) -> list[ReceiptBatch]:
    """Withdrawn ones last: none of them can be counted again."""
    groups: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)
    for _, kind, campaign, number, places in rows:
        groups[kind, campaign, number].append(places)
    found = []
    for kind, campaign, number in sorted(groups):
        places = np.frombuffer(b"".join(groups[kind, campaign, number]), dtype=">u8")
        pages, tags = (places >> np.uint64(32)).astype("u4"), places.astype("u4")
        found.append(ReceiptBatch(ReceiptKind(kind), campaign, number, pages, tags))
    return found
