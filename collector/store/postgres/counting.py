"""The hot path: a batch of reports into the tables, in one transaction.

Nearly always every report of a batch is new, and its device is unknown or keeps its attribute. So
that is believed first: the server is asked what it knows of the devices, and then told what to add,
with the transaction's end behind it, without looking again. The key of `device` and the key of the
round's table decide (I8, I11): if one of them objects, or anything is not as usual, nothing of it
was done, and the batch is counted with care, report by report.

Look-ups are written as subqueries by key, row by row: left to choose, the planner compares every
report of a batch with every device of a table that it believes to be empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from psycopg import sql

from collector.errors import Fenced
from collector.records import FORGOTTEN, Candidate, Refusal
from collector.store.postgres.arrays import bigints, byteas, smallints
from collector.store.postgres.columns import (
    Columns,
    Devices,
    bodies_of,
    by_round,
    columns_of,
    devices_of,
)
from collector.store.postgres.connection import Answer, Connection, KeyTaken
from collector.store.postgres.counters import Counters, Round
from collector.store.postgres.reading import TAGS, reports_of
from collector.store.shared import FENCED, bodies_by_tally, count_outcomes
from collector.store.workers import ReceiptKind
from protocol_spec import Outcome

Held = tuple[
    int, bool, int | None, bytes | None
]  # attribute, known, and of the report in this round


class _NotAsUsual(Exception):
    """Some report of a batch is not new, or its device has another attribute."""


class Counting(Counters):
    """Counts reports."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.meanwhile: Callable[[], None] = lambda: None
        self._stored: set[Round] = set()
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

    # --- all are new -----------------------------------------------------------------------------

    def _commit_new(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        parts: Sequence[Columns],
        devices: Sequence[Devices],
    ) -> Sequence[Outcome]:
        """It waits for the server twice: for what it knows, and for the end."""
        outcomes, bodies = [Outcome.ACCEPTED] * len(candidates), bodies_of(parts)
        with self._db.in_one_go(self.meanwhile):
            lives = self._sign_of_life(len(candidates) + len(refusals))
            ended = self._ask_ended([part.key for part in parts])
            tallies = self._ask_tallies(bodies)
            known = [self._ask_devices(each) for each in devices]
            if lives.fetchone() is None:
                raise Fenced(FENCED)
            if ended.fetchall():
                raise _NotAsUsual
            for each, answer in zip(devices, known):
                self._add_missing(each, answer)
            for part in parts:
                self._add_reports(part)
                self._feed(ReceiptKind.COUNTED, part.key, part.places)
            self._write_counts(bodies, +1, tallies)
            self._add_outcomes(count_outcomes(candidates, outcomes, refusals))
        return outcomes

    def _ask_devices(self, devices: Devices) -> Answer:
        """How many have the attribute that they report, and the places of those not known."""
        return self._db.execute(
            """SELECT count(*) FILTER (WHERE known = attribute),
                      string_agg(int8send(place), '') FILTER (WHERE known IS NULL)
               FROM (SELECT attribute, place,
                            (SELECT d.attribute FROM device d
                             WHERE d.campaign = %s AND d.device = n.device) AS known
                     FROM unnest(%s, %s) WITH ORDINALITY AS n (device, attribute, place)
                     OFFSET 0) AS asked""",
            (devices.campaign, bigints(devices.numbers), smallints(devices.attributes)),
        )

    def _add_missing(self, devices: Devices, answer: Answer) -> None:
        ((same, places),) = answer.fetchall()
        missing = np.frombuffer(places or b"", dtype=">i8") - 1
        if same + len(missing) < len(devices.numbers):
            raise _NotAsUsual
        if len(missing):
            self._db.execute(
                """INSERT INTO device (campaign, device, attribute)
                   SELECT %s, unnest(%s), unnest(%s)""",
                (
                    devices.campaign,
                    bigints(devices.numbers[missing]),
                    smallints(devices.attributes[missing]),
                ),
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

    # --- with care -------------------------------------------------------------------------------

    def _commit_any(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        rounds: Mapping[Round, Sequence[int]],
    ) -> Sequence[Outcome]:
        """Questions go to the server together, so that a batch waits for it five times in all."""
        with self._db.transaction(pipelined=True):
            lives = self._sign_of_life(len(candidates) + len(refusals))
            ended = self._ask_ended(rounds)
            tallies = self._ask_tallies({(c.campaign, c.round, c.attribute) for c in candidates})
            if lives.fetchone() is None:
                raise Fenced(FENCED)
            outcomes = self._insert_new(candidates, rounds, set(ended.fetchall()))
            accepted = [c for c, o in zip(candidates, outcomes) if o is Outcome.ACCEPTED]
            again = [c for c, o in zip(candidates, outcomes) if o is Outcome.DUPLICATE]
            self._write_counts(bodies_by_tally(accepted), +1, tallies)
            self._add_outcomes(count_outcomes(candidates, outcomes, refusals))
            self.feed(ReceiptKind.COUNTED, accepted)
            self.feed(ReceiptKind.REPEATED, again)
        return outcomes

    def _make_tables(self, rounds: Iterable[Round]) -> None:
        for key in sorted(set(rounds) - self._stored):
            self.known(key[0])
            with self._db.transaction():
                make_table(self._db, *key)
            self._stored.add(key)

    def _insert_new(
        self,
        candidates: Sequence[Candidate],
        rounds: Mapping[Round, Sequence[int]],
        ended: Set[Round],
    ) -> list[Outcome]:
        """Insert what is new and say of every candidate what became of it."""
        outcomes = [Outcome.LATE] * len(candidates)
        taken = {key: members for key, members in rounds.items() if key not in ended}
        self._stored -= ended
        self._add_devices(candidates, taken.values())
        # Here and below in order of keys, so that no two batches wait for each other.
        asked = []
        for key in sorted(taken):
            mine = [candidates[i] for i in taken[key]]
            asked.append((key, mine, self._ask_insert(key, mine)))
        for key, mine, answer in asked:
            for i, outcome in zip(taken[key], self._told(key, mine, answer)):
                outcomes[i] = outcome
        return outcomes

    def _ask_ended(self, rounds: Iterable[Round]) -> Answer:
        """Rounds that are sealed or being sealed; while the worker's row is held, no other ends."""
        keys = list(rounds)
        return self._db.execute(
            """SELECT campaign, number FROM round
               JOIN unnest(%s, %s) AS asked (c, r) ON campaign = c AND number = r
               WHERE ended OR sealed IS NOT NULL""",
            (bigints([c for c, _ in keys]), bigints([r for _, r in keys])),
        )

    def _add_devices(
        self, candidates: Sequence[Candidate], groups: Iterable[Sequence[int]]
    ) -> None:
        """A device that was never counted gets the attribute that comes first."""
        first: dict[int, dict[int, int]] = defaultdict(dict)
        for members in groups:
            devices = first[candidates[members[0]].campaign]
            for i in members:
                devices.setdefault(candidates[i].device, candidates[i].attribute)
        for campaign, devices in sorted(first.items()):
            numbers = np.fromiter(devices.keys(), dtype=np.int64, count=len(devices))
            attributes = np.fromiter(devices.values(), dtype=np.int64, count=len(devices))
            order = np.argsort(numbers)
            self._db.execute(
                """INSERT INTO device (campaign, device, attribute)
                   SELECT %s, n.device, n.attribute FROM unnest(%s, %s) AS n (device, attribute)
                   WHERE (SELECT 1 FROM device d
                          WHERE d.campaign = %s AND d.device = n.device) IS NULL
                   ON CONFLICT DO NOTHING""",
                (campaign, bigints(numbers[order]), smallints(attributes[order]), campaign),
            )

    def _ask_insert(self, key: Round, mine: Sequence[Candidate]) -> Answer:
        """One round of a batch: a device keeps its attribute, and is counted once."""
        sent = [mine[i] for i in _to_send(mine)]
        query = _INSERT_REPORTS.format(reports=reports_of(*key))
        return self._db.execute(query, (*_columns(sent), key[0], len(mine), len(mine)))

    def _told(self, key: Round, mine: Sequence[Candidate], answer: Answer) -> list[Outcome]:
        """What became of each; the server names those that it inserted only if it was not all."""
        ((inserted, devices, attributes),) = answer.fetchall()
        if inserted == len(mine):
            return [Outcome.ACCEPTED] * len(mine)
        first = {(mine[i].device, mine[i].attribute): i for i in reversed(range(len(mine)))}
        accepted = {first[which] for which in zip(devices or (), attributes or ())}
        rest = {c.device for i, c in enumerate(mine) if i not in accepted}
        held, elsewhere = self._held(key, rest), self._elsewhere(key, rest)
        return [
            Outcome.ACCEPTED
            if i in accepted
            else _repeated(c, held[c.device], c.device in elsewhere)
            for i, c in enumerate(mine)
        ]

    def _held(self, key: Round, devices: Iterable[int]) -> dict[int, Held]:
        """What is stored of devices, and of their reports in this round."""
        rows = self._db.rows(
            sql.SQL(
                """SELECT d.device, d.attribute, d.known, r.attribute, r.body
                   FROM unnest(%s) AS n (device)
                   CROSS JOIN LATERAL (SELECT * FROM device
                                       WHERE campaign = %s AND device = n.device OFFSET 0) AS d
                   LEFT JOIN LATERAL (SELECT * FROM {}
                                      WHERE device = n.device OFFSET 0) AS r ON true"""
            ).format(reports_of(*key)),
            (bigints(list(devices)), key[0]),
        )
        return {device: held for device, *held in rows}  # type: ignore[misc]

    def _elsewhere(self, key: Round, devices: Iterable[int]) -> set[int]:
        """Which of these reported in another open round."""
        asked, found = bigints(list(devices)), set[int]()
        for number in set(self.rounds_with_reports(key[0])) - {key[1]}:
            query = sql.SQL(
                """SELECT n.device FROM unnest(%s) AS n (device)
                   WHERE (SELECT 1 FROM {} r WHERE r.device = n.device) IS NOT NULL"""
            )
            rows = self._db.rows(query.format(reports_of(key[0], number)), (asked,))
            found.update(device for (device,) in rows)
        return found

    def rounds_with_reports(self, campaign: int) -> list[int]:
        """Rounds that can change; for one that is being sealed it is too late."""
        rows = self._db.rows(
            """SELECT number FROM round
               WHERE campaign = %s AND stored AND NOT ended AND sealed IS NULL ORDER BY number""",
            (campaign,),
        )
        return [number for (number,) in rows]


def make_table(db: Connection, campaign: int, number: int) -> None:
    """Whoever adds the row of a round makes its table; others wait for that moment.

    One that is there is only looked at: to add it again would wait until it is sealed.
    """
    there = db.row("SELECT 1 FROM round WHERE campaign = %s AND number = %s", (campaign, number))
    if there is not None:
        return
    added = db.row(
        """INSERT INTO round (campaign, number, stored) VALUES (%s, %s, true)
           ON CONFLICT DO NOTHING RETURNING number""",
        (campaign, number),
    )
    if added is not None:
        db.execute(_CREATE_REPORTS.format(reports_of(campaign, number)))


_CREATE_REPORTS = sql.SQL(
    """CREATE TABLE {} (
           device bigint PRIMARY KEY,
           attribute smallint NOT NULL,
           place bigint NOT NULL,
           body bytea NOT NULL)"""
)
_INSERT_REPORTS = sql.SQL(
    """WITH added AS (
           INSERT INTO {reports}
           SELECT n.device, n.attribute, n.place, n.body
           FROM unnest(%s, %s, %s, %s) AS n (device, attribute, place, body)
           WHERE n.attribute = (SELECT d.attribute FROM device d
                                WHERE d.campaign = %s AND d.device = n.device)
           ON CONFLICT DO NOTHING RETURNING device, attribute)
       SELECT n, CASE WHEN n < %s THEN devices END, CASE WHEN n < %s THEN attributes END
       FROM (SELECT count(*) AS n, array_agg(device) AS devices,
                    array_agg(attribute) AS attributes FROM added) AS told"""
)


def _to_send(mine: Sequence[Candidate]) -> Sequence[int]:
    """Positions by device; of those with the same device and attribute the first."""
    devices = np.fromiter((c.device for c in mine), dtype=np.int64, count=len(mine))
    order = np.argsort(devices)
    if np.all(np.diff(devices[order])):
        return order.tolist()  # type: ignore[no-any-return]
    first = {(mine[i].device, mine[i].attribute): i for i in reversed(range(len(mine)))}
    return [first[which] for which in sorted(first)]


def _columns(reports: Sequence[Candidate]) -> tuple[Any, ...]:
    _, _, devices, attributes, pages, tags, bodies = zip(*reports)
    places = np.array(pages, dtype=np.int64) * TAGS + np.array(tags, dtype=np.int64)
    return bigints(devices), smallints(attributes), bigints(places), byteas(bodies)


def _repeated(c: Candidate, held: Held, elsewhere: bool) -> Outcome:
    """What becomes of a report that was not inserted."""
    attribute, known, counted, body = held
    if attribute == FORGOTTEN:
        return Outcome.FORGOTTEN
    if attribute != c.attribute and (known or elsewhere or counted is None):
        return Outcome.ATTRIBUTE_CHANGED
    return Outcome.DUPLICATE if (counted, body) == (c.attribute, c.body) else Outcome.CONFLICT
