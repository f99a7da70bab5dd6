"""What a worker writes beside the reports: signs of life, its tallies and outcomes, its receipts.

All of it is in rows of its own, so that nobody waits for another's row. Who writes holds the row of
its worker for as long. That row says that it may write (W1), and who has to be alone for a moment,
to end a round or to forget a device, takes all these rows in turn: it waits for the batches at hand
and nobody waits for long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from collector.errors import Fenced
from collector.records import Candidate
from collector.store import ReceiptKind
from collector.store.postgres.arrays import bigints
from collector.store.postgres.connection import Answer, Connection
from collector.store.postgres.reading import TAGS, Results
from collector.store.rows import read_tally
from collector.store.shared import FENCED, Place, TallyKey, bodies_by_tally, count_reports

Round = tuple[int, int]  # campaign, number


class Counters(Results):
    """Adds to this worker's rows."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.worker: int | None = None  # None: never enlisted
        self._lost = connection.lost

    def take_row(self, received: int = 0) -> None:
        """Hold this worker's row until the transaction ends, and show that it lives."""
        if self._sign_of_life(received).fetchone() is None:
            raise Fenced(FENCED)

    def _sign_of_life(self, received: int) -> Answer:
        return self._db.execute(
            """UPDATE worker SET seen = extract(epoch FROM clock_timestamp()),
                                 received = received + %s
               WHERE number = %s AND NOT fenced RETURNING number""",
            (received, self._own()),
        )

    def _own(self) -> int:
        """The number under which this store writes; after a lost connection it has none."""
        if self.worker is None:
            return 0
        if self._lost != self._db.lost:
            raise Fenced(FENCED)
        return self.worker

    # --- counters ----------------------------------------------------------------------------

    def add_counts(self, reports: Sequence[Candidate], sign: int) -> None:
        """Add reports to this worker's tallies, or take them out, while it holds its row."""
        asked = self._ask_tallies({(c.campaign, c.round, c.attribute) for c in reports})
        self._write_counts(bodies_by_tally(reports), sign, asked)

    def _write_counts(
        self, tallies: Mapping[TallyKey, Sequence[bytes]], sign: int, asked: Answer
    ) -> None:
        old = {(c, r, a): read_tally(n, counts) for c, r, a, n, counts in asked.fetchall()}
        for key, bodies in tallies.items():
            counts = sign * count_reports(bodies, self.known(key[0]).manifest.ways[key[2]])
            n = sign * len(bodies)
            if key in old:
                counts, n = counts + old[key].counts, n + old[key].n
            self._db.execute(
                """INSERT INTO tally VALUES (%s, %s, %s, %s, %s, %s)
                   ON CONFLICT (campaign, round, attribute, worker)
                   DO UPDATE SET n = excluded.n, counts = excluded.counts""",
                (*key, self._own(), n, counts.astype("<i8").tobytes()),
            )

    def _ask_tallies(self, keys: Collection[TallyKey]) -> Answer:
        """This worker's own rows, which nobody else changes while it holds its row."""
        columns = [bigints([key[i] for key in keys]) for i in range(3)]
        return self._db.execute(
            """SELECT campaign, round, attribute, n, counts FROM tally
               JOIN unnest(%s, %s, %s) AS asked (c, r, a)
               ON campaign = c AND round = r AND attribute = a WHERE worker = %s""",
            (*columns, self._own()),
        )

    def _add_outcomes(self, counted: Mapping[Place, int]) -> None:
        totals: dict[tuple[int, str], int] = defaultdict(int)
        for (campaign, number, outcome), n in counted.items():
            totals[campaign, str(outcome)] += n
            self._db.execute(
                """INSERT INTO outcome VALUES (%s, %s, %s, %s, %s)
                   ON CONFLICT (campaign, round, name, worker)
                   DO UPDATE SET n = outcome.n + excluded.n""",
                (campaign, number, str(outcome), self._own(), n),
            )
        for (campaign, name), n in totals.items():
            self._db.execute(
                """INSERT INTO outcome_total VALUES (%s, %s, %s, %s)
                   ON CONFLICT (campaign, name, worker)
                   DO UPDATE SET n = outcome_total.n + excluded.n""",
                (campaign, name, self._own(), n),
            )

    def feed(self, kind: ReceiptKind, reports: Iterable[Candidate]) -> None:
        """Tell the leader; without workers there is nobody to tell."""
        if self.worker is None:
            return
        groups: dict[Round, list[int]] = defaultdict(list)
        for c in reports:
            groups[c.campaign, c.round].append(c.page * TAGS + c.tag)
        for key, places in groups.items():
            self._feed(kind, key, np.array(places, dtype=np.int64))

    def _feed(self, kind: ReceiptKind, key: Round, places: npt.NDArray[np.int64]) -> None:
        if self.worker is not None:
            self._db.execute(
                """INSERT INTO receipt_feed (worker, kind, campaign, round, places)
                   VALUES (%s, %s, %s, %s, %s)""",
                (self.worker, int(kind), *key, places.astype(">i8").tobytes()),
            )
