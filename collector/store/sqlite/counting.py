"""The hot path: a batch of reports into the tables, in one transaction.

Reports are appended, round by round; `Present` says which are new (I8). Counts are kept per round
and attribute, one row each, so that estimating and sealing never read reports again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from typing import Final

import numpy as np

from collector.records import FORGOTTEN, Campaign, Candidate, Refusal, Tally
from collector.store.rows import read_tally
from collector.store.shared import (
    Place,
    bodies_by_tally,
    count_outcomes,
    count_reports,
)
from collector.store.sqlite.connection import Connection
from collector.store.sqlite.present import ABSENT, Numbers, Present, attributes_of, place_of
from collector.store.sqlite.reading import Reading
from collector.store.sqlite.schema import places_of_round, report_id
from protocol_spec import Outcome

CHUNK: Final = 500
_ROUND: Final = itemgetter(0, 1)  # of a `Candidate`
_DEVICE: Final = itemgetter(2)
_ATTRIBUTE: Final = itemgetter(3)
Told = dict[int, Outcome]  # by position in a batch


class Counting(Reading):
    """Counts reports."""

    def __init__(self, connection: Connection, chunk: int) -> None:
        super().__init__(connection)
        self._chunk = chunk
        self._holding: dict[int, set[int]] = {}
        self._present: dict[tuple[int, int], Present] = {}
        self._seen: int | None = None

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch in one transaction; when this returns it is on disk."""
        with self.changing_reports():
            outcomes = self._insert_new(candidates)
            accepted = candidates
            if outcomes.count(Outcome.ACCEPTED) != len(candidates):
                accepted = [c for c, o in zip(candidates, outcomes) if o is Outcome.ACCEPTED]
            self.add_counts(accepted, +1)
            self._add_outcomes(count_outcomes(candidates, outcomes, refusals))
            self.raise_counters({"received": len(candidates) + len(refusals)})
        return outcomes

    @contextmanager
    def changing_reports(self) -> Iterator[None]:
        """A transaction in which memory is what the file is, and is read anew if it fails."""
        try:
            with self._db.transaction():
                if self._seen != (seen := self.changed_elsewhere()):
                    self._forget_memory()
                    self._seen = seen
                yield
        except BaseException:
            self._forget_memory()
            raise

    def _forget_memory(self) -> None:
        self._holding.clear()
        self._present.clear()

    # --- reports -----------------------------------------------------------------------------

    def _insert_new(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Insert what is new and say of every candidate what became of it."""
        outcomes = [Outcome.ACCEPTED] * len(candidates)
        for (campaign, number), members in by_round(candidates).items():
            if self._is_sealed(campaign, number):
                told = dict.fromkeys(range(len(members)), Outcome.LATE)
            else:
                mine = candidates
                if len(members) < len(candidates):
                    mine = [candidates[i] for i in members]
                told = self._insert_round(campaign, number, mine)
            for i, outcome in told.items():
                outcomes[members[i]] = outcome
        return outcomes

    def _insert_round(self, campaign: int, number: int, batch: Sequence[Candidate]) -> Told:
        """Reports of one round: a device keeps its attribute, and is counted once. What became of
        those that were not accepted."""
        devices = np.fromiter(map(_DEVICE, batch), np.int64, len(batch))
        attributes = np.fromiter(map(_ATTRIBUTE, batch), np.int64, len(batch))
        told = self._not_kept(campaign, number, devices, attributes)
        present = self.present(campaign, number)
        absent = present.find(devices) == ABSENT
        absent[list(told)] = False
        fresh = np.flatnonzero(absent)
        _, firsts = np.unique(devices[fresh], return_index=True)
        new = np.sort(fresh[firsts])
        places = present.add(devices[new], attributes[new])
        self._append(
            campaign, number, places, batch if len(new) == len(batch) else [batch[i] for i in new]
        )
        self.rounds_with_reports(campaign).add(number)
        if len(new) + len(told) < len(batch):
            absent[:] = True
            absent[list(told)] = absent[new] = False
            told |= self._repeated(campaign, number, batch, devices, np.flatnonzero(absent))
        return told

    def _append(
        self, campaign: int, number: int, places: range, batch: Sequence[Candidate]
    ) -> None:
        first = report_id(campaign, number, places.start)
        self._db.executemany(
            "INSERT INTO report (id, device, attribute, page, tag, body) VALUES (?, ?, ?, ?, ?, ?)",
            zip(range(first, first + len(batch)), *islice(zip(*batch), 2, None)),
        )

    def _repeated(
        self,
        campaign: int,
        number: int,
        batch: Sequence[Candidate],
        devices: Numbers,
        positions: Numbers,
    ) -> Told:
        """Of reports whose devices are in the round already: whether they say the same."""
        told: Told = {}
        entries = self.present(campaign, number).find(devices[positions])
        for i, entry in zip(positions.tolist(), entries.tolist()):
            row = self._db.execute(
                "SELECT attribute, body FROM report WHERE id = ?",
                (report_id(campaign, number, place_of(entry)),),
            ).fetchone()
            same = row == (batch[i].attribute, batch[i].body)
            told[i] = Outcome.DUPLICATE if same else Outcome.CONFLICT
        return told

    def _not_kept(self, campaign: int, number: int, devices: Numbers, attributes: Numbers) -> Told:
        """Who reported another attribute before, in sealed or in other open rounds, or is not to
        be counted again."""
        told: Told = {}
        for other in self.rounds_with_reports(campaign) - {number}:
            entries = self.present(campaign, other).find(devices)
            changed = (entries != ABSENT) & (attributes_of(entries) != attributes)
            told |= dict.fromkeys(np.flatnonzero(changed).tolist(), Outcome.ATTRIBUTE_CHANGED)
        if not self._has_devices(campaign):
            return told
        known: dict[int, int] = {}
        for attribute in np.unique(attributes).tolist():
            known.update(self._others(campaign, attribute, devices[attributes == attribute]))
        if known:
            of = {i: known[device] for i, device in enumerate(devices.tolist()) if device in known}
            told |= {i: _outcome(was) for i, was in of.items() if was != attributes[i]}
        return told

    def _has_devices(self, campaign: int) -> bool:
        some = self._db.execute("SELECT 1 FROM device WHERE campaign = ? LIMIT 1", (campaign,))
        return some.fetchone() is not None

    def _others(self, campaign: int, attribute: int, devices: Numbers) -> Iterator[tuple[int, int]]:
        """Those of these devices that are known from sealed rounds with another attribute.

        Chunks are filled up with the last device, so that there are few different statements.
        """
        for start in range(0, len(devices), self._chunk):
            asked = devices[start : start + self._chunk].tolist()
            asked += [asked[-1]] * (-len(asked) % min(self._chunk, 50))
            marks = ",".join("?" * len(asked))
            yield from self._db.execute(
                f"""SELECT device, attribute FROM device
                    WHERE campaign = ? AND device IN ({marks}) AND attribute <> ?""",  # noqa: S608
                (campaign, *asked, attribute),
            )

    def present(self, campaign: int, number: int) -> Present:
        """Which devices have a report in an open round."""
        key = (campaign, number)
        if key not in self._present:
            self._present[key] = Present(
                self._db.execute(
                    """SELECT device, (id & 0xFFFFFFFF) << 7 | attribute
                       FROM report WHERE id BETWEEN ? AND ?""",
                    places_of_round(campaign, number),
                )
            )
        return self._present[key]

    def _is_sealed(self, campaign: int, number: int) -> bool:
        row = self._db.execute(
            "SELECT 1 FROM round WHERE campaign = ? AND number = ?", (campaign, number)
        )
        return row.fetchone() is not None

    def rounds_with_reports(self, campaign: int) -> set[int]:
        """Rounds that may hold reports; kept in memory, because every batch asks."""
        if campaign not in self._holding:
            self._holding[campaign] = set(self.open_rounds(campaign))
        return self._holding[campaign]

    def forget_round(self, campaign: int, number: int) -> None:
        """A round is sealed: it holds no reports any more."""
        self.rounds_with_reports(campaign).discard(number)
        self._present.pop((campaign, number), None)

    # --- counters ----------------------------------------------------------------------------

    def raise_counters(self, counters: Mapping[str, int]) -> None:
        """Add to counters that stand by themselves, inside a transaction."""
        self._db.executemany(
            """INSERT INTO counter VALUES (?, ?)
               ON CONFLICT (name) DO UPDATE SET n = n + excluded.n""",
            [(name, n) for name, n in counters.items() if n],
        )

    def add_counts(self, reports: Sequence[Candidate], sign: int) -> None:
        """Add reports to the tallies they belong into, or take them out, inside a transaction."""
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
        self._db.executemany(
            """INSERT INTO outcome_total VALUES (?, ?, ?)
               ON CONFLICT (campaign, name) DO UPDATE SET n = n + excluded.n""",
            [(c, str(o), n) for (c, _, o), n in counted.items()],
        )


def by_round(candidates: Sequence[Candidate]) -> Mapping[tuple[int, int], Sequence[int]]:
    """Positions in a batch by campaign and round, in the order in which these appear."""
    keys = list(map(_ROUND, candidates))
    if len(set(keys)) == 1:  # nearly always
        return {keys[0]: range(len(keys))}
    rounds: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        rounds[key].append(i)
    return rounds


def _outcome(attribute: int) -> Outcome:
    """Of a device whose row does not have the attribute that it reports."""
    return Outcome.FORGOTTEN if attribute == FORGOTTEN else Outcome.ATTRIBUTE_CHANGED
