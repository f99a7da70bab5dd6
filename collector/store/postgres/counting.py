"""The hot path: a batch of reports into the tables, in one transaction.

Nearly always every report of a batch is new, and its device is unknown or keeps its attribute. So
that is believed first: the server is asked whether any device has another attribute, and then told
what to add, with the transaction's end behind it, without looking again. The key of the round's
table decides (I8): if it objects, or anything is not as usual, nothing of it was done, and the
batch is counted with care, report by report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from psycopg import sql

from collector.errors import Fenced
from collector.records import Candidate, Refusal
from collector.store import ReceiptKind
from collector.store.postgres.arrays import bigints, byteas, smallints
from collector.store.postgres.careful import CarefulCounting, attribute_of
from collector.store.postgres.columns import (
    Columns,
    Devices,
    bodies_of,
    by_round,
    columns_of,
    devices_of,
)
from collector.store.postgres.connection import Answer, Connection, KeyTaken
from collector.store.postgres.counters import Round
from collector.store.postgres.reading import reports_of
from collector.store.shared import FENCED, count_outcomes
from protocol_spec import Outcome


class _NotAsUsual(Exception):
    """Some report of a batch is not new, or its device has another attribute."""


class Counting(CarefulCounting):
    """Counts reports."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.meanwhile: Callable[[], None] = lambda: None
        self._usual = True  # whether the last batch was

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch in one transaction; when this returns it is durable."""
        rounds = by_round(candidates)
        self._make_tables(rounds)
        parts = columns_of(candidates, rounds) if self._usual else None
        devices = devices_of(parts) if parts is not None else None
        if parts is not None and devices is not None:
            try:
                return self._commit_new(candidates, refusals, parts, devices)
            except (_NotAsUsual, KeyTaken):
                pass
        outcomes = self._commit_any(candidates, refusals, rounds)
        self._usual = outcomes.count(Outcome.ACCEPTED) == len(outcomes)
        return outcomes

    def _commit_new(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        parts: Sequence[Columns],
        devices: Sequence[Devices],
    ) -> Sequence[Outcome]:
        """It waits for the server twice: for what it knows, and for the end; and once more if there
        may be other open rounds to look into, which have to be open still."""
        outcomes, bodies = [Outcome.ACCEPTED] * len(candidates), bodies_of(parts)
        own = {part.key for part in parts}
        with self._db.in_one_go(self.meanwhile):
            lives = self._sign_of_life(len(candidates) + len(refusals))
            opened = self._ask_open(each.campaign for each in devices)
            believed = {key for each in devices for key in self._open_in(each.campaign)} | own
            alone = len(believed) == len(devices)  # one round of each campaign
            others = set() if alone else self._others(own, opened)
            tallies = self._ask_tallies(bodies)
            changed = [self._ask_changed(each, own, others) for each in devices]
            self.meanwhile()
            if lives.fetchone() is None:
                raise Fenced(FENCED)
            if alone and self._others(own, opened):
                raise _NotAsUsual
            if any(answer.fetchone() != (0,) for answer in changed):
                raise _NotAsUsual
            for part in parts:
                self._add_reports(part)
                self._feed(ReceiptKind.COUNTED, part.key, part.places)
            self._write_counts(bodies, +1, tallies)
            self._add_outcomes(count_outcomes(candidates, outcomes, refusals))
        return outcomes

    def _others(self, own: Set[Round], opened: Answer) -> set[Round]:
        """Open rounds of the same campaigns, if those of the batch are open, too."""
        found = self._note_open(own, opened)
        if not own <= found:
            raise _NotAsUsual
        return found - own

    def _ask_changed(self, devices: Devices, own: Set[Round], others: Set[Round]) -> Answer:
        """How many have another attribute than they report."""
        mine = {key for key in own if key[0] == devices.campaign}
        rounds = {key for key in others if key[0] == devices.campaign}
        rounds |= mine if len(mine) > 1 else set()
        return self._db.execute(
            sql.SQL(
                """SELECT count(*) FROM (
                       SELECT n.attribute, {known} AS known
                       FROM unnest(%s, %s) AS n (device, attribute) OFFSET 0) AS asked
                   WHERE known <> attribute"""
            ).format(known=attribute_of(devices.campaign, sorted(rounds))),
            (bigints(devices.numbers), smallints(devices.attributes)),
        )

    def _add_reports(self, part: Columns) -> None:
        self._db.execute(
            sql.SQL("INSERT INTO {} SELECT unnest(%s), unnest(%s), unnest(%s), unnest(%s)").format(
                reports_of(*part.key)
            ),
            (
                bigints(part.devices),
                smallints(part.attributes),
                bigints(part.places),
                byteas(part.bodies),
            ),
        )
