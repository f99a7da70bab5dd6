"""The hot path: a batch of reports into the tables, in one transaction.

Reports are inserted in chunks with `ON CONFLICT DO NOTHING RETURNING`, so that the unique key
itself says which are new (I8); counts are kept per round and attribute, one row each, so that
estimating and sealing never read reports again.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from collector.records import Campaign, Candidate, Refusal, Tally
from collector.store.shared import Place, bodies_by_tally, count_outcomes, count_reports
from collector.store.sqlite.connection import Connection
from collector.store.sqlite.reading import Reading, read_tally
from protocol_spec import Outcome

CHUNK: Final = 200
_ROW: Final = "(?,?,?,?,?,?,?)"


class Counting(Reading):
    """Counts reports, and takes them back."""

    def __init__(self, connection: Connection, chunk: int) -> None:
        super().__init__(connection)
        self._chunk = chunk
        self._holding: dict[int, set[int]] = {}

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch in one transaction; when this returns it is on disk."""
        with self._db.transaction():
            outcomes = self._insert_new(candidates)
            accepted = [c for c, o in zip(candidates, outcomes) if o is Outcome.ACCEPTED]
            self._add_counts(accepted, +1)
            self._add_outcomes(count_outcomes(candidates, outcomes, refusals))
            self._db.execute(
                """INSERT INTO counter VALUES ('received', ?)
                   ON CONFLICT (name) DO UPDATE SET n = n + excluded.n""",
                (len(candidates) + len(refusals),),
            )
        return outcomes

    def withdraw(self, campaign: Campaign, device: int) -> int:
        """Take a device's reports out of every open round and forget the device."""
        with self._db.transaction():
            rows = [
                row
                for number in self._rounds_with_reports(campaign.id)
                for row in self._db.execute(
                    """DELETE FROM report WHERE campaign = ? AND round = ? AND device = ?
                       RETURNING campaign, round, device, attribute, page, tag, body""",
                    (campaign.id, number, device),
                ).fetchall()
            ]
            self._add_counts([Candidate(*row) for row in rows], -1)
            self._db.execute(
                "UPDATE device SET device = ? WHERE campaign = ? AND device = ?",
                (-1 - secrets.randbits(63), campaign.id, device),
            )
        self._db.wipe_after_deleting()
        return len(rows)

    # --- reports -----------------------------------------------------------------------------

    def _insert_new(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Insert what is new and say of every candidate what became of it."""
        outcomes = [Outcome.LATE] * len(candidates)
        rounds: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, c in enumerate(candidates):
            rounds[c.campaign, c.round].append(i)
        for (campaign, number), members in rounds.items():
            if not self._is_sealed(campaign, number):
                self._rounds_with_reports(campaign).add(number)
                for start in range(0, len(members), self._chunk):
                    self._insert_chunk(candidates, members[start : start + self._chunk], outcomes)
        return outcomes

    def _insert_chunk(
        self, candidates: Sequence[Candidate], members: Sequence[int], outcomes: list[Outcome]
    ) -> None:
        """One chunk of one round: a device keeps its attribute, and is counted once."""
        first = candidates[members[0]]
        devices = [candidates[i].device for i in members]
        known = self._attributes(first.campaign, first.round, devices)
        kept = []
        for i in members:
            c = candidates[i]
            if known.get(c.device, c.attribute) == c.attribute:
                kept.append(i)
            else:
                outcomes[i] = Outcome.ATTRIBUTE_CHANGED
        inserted = self._insert([candidates[i] for i in kept]) if kept else set()
        for i in kept:
            if candidates[i].device in inserted:
                inserted.remove(candidates[i].device)  # a second copy in the chunk is a repetition
                outcomes[i] = Outcome.ACCEPTED
            else:
                outcomes[i] = self._repeated(candidates[i])

    def _attributes(self, campaign: int, number: int, devices: Sequence[int]) -> dict[int, int]:
        """The attributes these devices reported before, in sealed and in other open rounds."""
        marks = ",".join("?" * len(devices))
        known: dict[int, int] = {}
        for other in self._rounds_with_reports(campaign) - {number}:
            known.update(
                self._db.execute(
                    f"""SELECT device, attribute FROM report
                        WHERE campaign = ? AND round = ? AND device IN ({marks})""",  # noqa: S608
                    (campaign, other, *devices),
                )
            )
        known.update(
            self._db.execute(
                f"""SELECT device, attribute FROM device
                    WHERE campaign = ? AND device IN ({marks})""",  # noqa: S608
                (campaign, *devices),
            )
        )
        return known

    def _insert(self, chunk: Sequence[Candidate]) -> set[int]:
        """Insert a chunk of one round; the devices that were not there before."""
        values = ",".join([_ROW] * len(chunk))
        rows = self._db.execute(
            f"""INSERT INTO report VALUES {values}
                ON CONFLICT DO NOTHING RETURNING device""",  # noqa: S608
            list(chain.from_iterable(chunk)),
        )
        return {device for (device,) in rows.fetchall()}

    def _repeated(self, c: Candidate) -> Outcome:
        row = self._db.execute(
            """SELECT attribute, body FROM report
               WHERE campaign = ? AND round = ? AND device = ?""",
            (c.campaign, c.round, c.device),
        ).fetchone()
        return Outcome.DUPLICATE if row == (c.attribute, c.body) else Outcome.CONFLICT

    def _is_sealed(self, campaign: int, number: int) -> bool:
        row = self._db.execute(
            "SELECT 1 FROM round WHERE campaign = ? AND number = ?", (campaign, number)
        )
        return row.fetchone() is not None

    def _rounds_with_reports(self, campaign: int) -> set[int]:
        """Rounds that may hold reports; kept in memory, because every chunk asks."""
        if campaign not in self._holding:
            self._holding[campaign] = set(self.open_rounds(campaign))
        return self._holding[campaign]

    # --- counters ----------------------------------------------------------------------------

    def _add_counts(self, reports: Sequence[Candidate], sign: int) -> None:
        for (campaign, number, attribute), bodies in bodies_by_tally(reports).items():
            way = self._known(campaign).manifest.ways[attribute]
            added = sign * count_reports(bodies, way)
            old = self._tally(campaign, number, attribute)
            counts = added if old is None else old.counts + added
            n = sign * len(bodies) + (0 if old is None else old.n)
            self._db.execute(
                "INSERT OR REPLACE INTO tally VALUES (?, ?, ?, ?, ?)",
                (campaign, number, attribute, n, counts.astype("<i8").tobytes()),
            )

    def _known(self, campaign: int) -> Campaign:
        if campaign not in self._campaigns:
            self.campaigns()
        return self._campaigns[campaign]

    def _tally(self, campaign: int, number: int, attribute: int) -> Tally | None:
        row = self._db.execute(
            "SELECT n, counts FROM tally WHERE campaign = ? AND round = ? AND attribute = ?",
            (campaign, number, attribute),
        ).fetchone()
        return read_tally(*row) if row else None

    def _add_outcomes(self, counted: Mapping[Place, int]) -> None:
        self._db.executemany(
            """INSERT INTO outcome VALUES (?, ?, ?, ?)
               ON CONFLICT (campaign, round, name) DO UPDATE SET n = n + excluded.n""",
            [(c, r, str(o), n) for (c, r, o), n in counted.items()],
        )
