"""A batch counted with care: every report has its own outcome, whatever is stored of its device.

A device keeps the attribute of a sealed round, or else that of an open one, or else the first one
of the batch. The key of a round's table decides who counts a report (I8). Two workers that count
one device at the same moment for two rounds, under two attributes, do not see each other: the round
that is sealed first decides, and the other report is taken out when its round is sealed (I11).

Look-ups are written as subqueries by key, row by row: left to choose, the planner compares every
report of a batch with every device of a table that it believes to be empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from psycopg import sql

from collector.errors import Fenced
from collector.records import FORGOTTEN, Candidate, Refusal
from collector.store import ReceiptKind
from collector.store.postgres.arrays import bigints, byteas, smallints
from collector.store.postgres.connection import Answer, Connection
from collector.store.postgres.counters import Counters, Round
from collector.store.postgres.reading import TAGS, reports_of
from collector.store.shared import FENCED, bodies_by_tally, count_outcomes
from protocol_spec import Outcome

Held = tuple[int | None, int | None, bytes | None]  # attribute for life; of the report in a round
Standing = dict[tuple[int, int], int]  # campaign and device: the attribute that it has to keep


class CarefulCounting(Counters):
    """Counts reports of which some may not be new."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._stored: set[Round] = set()  # rounds that have a table, as far as is known here

    def _commit_any(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        rounds: Mapping[Round, Sequence[int]],
    ) -> Sequence[Outcome]:
        """Questions go to the server together, so that a batch waits for it five times in all."""
        with self._db.transaction(pipelined=True):
            lives = self._sign_of_life(len(candidates) + len(refusals))
            opened = self._ask_open({campaign for campaign, _ in rounds})
            tallies = self._ask_tallies({(c.campaign, c.round, c.attribute) for c in candidates})
            if lives.fetchone() is None:
                raise Fenced(FENCED)
            outcomes = self._insert_new(candidates, rounds, self._note_open(rounds, opened))
            accepted = [c for c, o in zip(candidates, outcomes) if o is Outcome.ACCEPTED]
            again = [c for c, o in zip(candidates, outcomes) if o is Outcome.DUPLICATE]
            self._write_counts(bodies_by_tally(accepted), +1, tallies)
            self._add_outcomes(count_outcomes(candidates, outcomes, refusals))
            self.feed(ReceiptKind.COUNTED, accepted)
            self.feed(ReceiptKind.REPEATED, again)
        return outcomes

    # --- rounds ----------------------------------------------------------------------------------

    def _make_tables(self, rounds: Iterable[Round]) -> None:
        for key in sorted(set(rounds) - self._stored):
            self.known(key[0])
            with self._db.transaction():
                make_table(self._db, *key)
            self._stored.add(key)

    def _ask_open(self, campaigns: Iterable[int]) -> Answer:
        """Rounds that can change; while the worker's row is held, none of them ends."""
        return self._db.execute(
            """SELECT campaign, number FROM round
               WHERE campaign = ANY(%s) AND stored AND NOT ended AND sealed IS NULL""",
            (bigints(list(campaigns)),),
        )

    def _note_open(self, rounds: Iterable[Round], answer: Answer) -> set[Round]:
        """Rounds of the batch's campaigns that are open, and nothing is left of others."""
        found, campaigns = set(answer.fetchall()), {campaign for campaign, _ in rounds}
        self._stored = {key for key in self._stored if key[0] not in campaigns} | found
        return found

    def rounds_with_reports(self, campaign: int) -> list[int]:
        """Rounds that can change; for one that is being sealed it is too late."""
        return sorted(number for _, number in self._ask_open([campaign]).fetchall())

    # --- reports ---------------------------------------------------------------------------------

    def _insert_new(
        self,
        candidates: Sequence[Candidate],
        rounds: Mapping[Round, Sequence[int]],
        opened: Set[Round],
    ) -> list[Outcome]:
        """Insert what is new and say of every candidate what became of it."""
        outcomes = [Outcome.LATE] * len(candidates)
        taken = {key: members for key, members in rounds.items() if key in opened}
        standing = self._standing([candidates[i] for members in taken.values() for i in members])
        # In order of keys, so that no two batches wait for each other.
        asked = []
        for key in sorted(taken):
            mine = [candidates[i] for i in taken[key]]
            asked.append((key, mine, self._ask_insert(key, mine, standing)))
        for key, mine, answer in asked:
            for i, outcome in zip(taken[key], self._told(key, mine, answer)):
                outcomes[i] = outcome
        return outcomes

    def _standing(self, reports: Sequence[Candidate]) -> Standing:
        """The attribute of every device: what is stored of it, or else what comes first."""
        devices: dict[int, set[int]] = defaultdict(set)
        standing: Standing = {}
        for c in reports:
            devices[c.campaign].add(c.device)
            standing.setdefault((c.campaign, c.device), c.attribute)
        for campaign, numbers in sorted(devices.items()):
            rows = self._db.rows(
                sql.SQL(
                    """SELECT device, known FROM (
                           SELECT n.device, {known} AS known
                           FROM unnest(%s) AS n (device) OFFSET 0) AS asked
                       WHERE known IS NOT NULL"""
                ).format(known=attribute_of(campaign, self._open_in(campaign))),
                (bigints(sorted(numbers)),),
            )
            standing.update({(campaign, device): known for device, known in rows})
        return standing

    def _open_in(self, campaign: int) -> list[Round]:
        return sorted(key for key in self._stored if key[0] == campaign)

    def _ask_insert(self, key: Round, mine: Sequence[Candidate], standing: Standing) -> Answer:
        """One round of a batch: of each device the first report with its attribute."""
        first = {
            c.device: c for c in reversed(mine) if standing[c.campaign, c.device] == c.attribute
        }
        query = _INSERT_REPORTS.format(reports=reports_of(*key))
        columns = _columns([first[device] for device in sorted(first)])
        return self._db.execute(query, (*columns, len(mine), len(mine)))

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
            else _repeated(c, held[c.device], elsewhere.get(c.device))
            for i, c in enumerate(mine)
        ]

    def _held(self, key: Round, devices: Iterable[int]) -> dict[int, Held]:
        """What is stored of devices, and of their reports in this round."""
        rows = self._db.rows(
            sql.SQL(
                """SELECT n.device, {known}, r.attribute, r.body
                   FROM unnest(%s) AS n (device)
                   LEFT JOIN LATERAL (SELECT * FROM {reports}
                                      WHERE device = n.device OFFSET 0) AS r ON true"""
            ).format(known=attribute_of(key[0], ()), reports=reports_of(*key)),
            (bigints(list(devices)),),
        )
        return {device: held for device, *held in rows}  # type: ignore[misc]

    def _elsewhere(self, key: Round, devices: Iterable[int]) -> dict[int, int]:
        """The attributes under which these reported in other open rounds."""
        asked, found = bigints(list(devices)), dict[int, int]()
        for other in self._open_in(key[0]):
            if other != key:
                query = sql.SQL(
                    """SELECT n.device, r.attribute FROM unnest(%s) AS n (device)
                       CROSS JOIN LATERAL (SELECT attribute FROM {}
                                           WHERE device = n.device OFFSET 0) AS r"""
                )
                found.update(self._db.rows(query.format(reports_of(*other)), (asked,)))
        return found


def attribute_of(campaign: int, rounds: Iterable[Round]) -> sql.Composed:
    """The attribute of `n.device` in what was sealed, or else in one of these rounds."""
    places = [
        sql.SQL(
            """(SELECT d.attribute FROM device d
                WHERE d.campaign = {} AND d.device = n.device)"""
        ).format(sql.Literal(campaign))
    ]
    for key in rounds:
        one = sql.SQL("(SELECT r.attribute FROM {} r WHERE r.device = n.device)")
        places.append(one.format(reports_of(*key)))
    return sql.SQL("coalesce({})").format(sql.SQL(", ").join(places))


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
           ON CONFLICT DO NOTHING RETURNING device, attribute)
       SELECT n, CASE WHEN n < %s THEN devices END, CASE WHEN n < %s THEN attributes END
       FROM (SELECT count(*) AS n, array_agg(device) AS devices,
                    array_agg(attribute) AS attributes FROM added) AS told"""
)


def _columns(reports: Sequence[Candidate]) -> tuple[Any, ...]:
    if not reports:
        return bigints(()), smallints(()), bigints(()), byteas(())
    _, _, devices, attributes, pages, tags, bodies = zip(*reports)
    places = np.array(pages, dtype=np.int64) * TAGS + np.array(tags, dtype=np.int64)
    return bigints(devices), smallints(attributes), bigints(places), byteas(bodies)


def _repeated(c: Candidate, held: Held, elsewhere: int | None) -> Outcome:
    """What becomes of a report that was not inserted."""
    known, counted, body = held
    if known == FORGOTTEN:
        return Outcome.FORGOTTEN
    if (elsewhere if known is None else known) not in (None, c.attribute):
        return Outcome.ATTRIBUTE_CHANGED
    return Outcome.DUPLICATE if (counted, body) == (c.attribute, c.body) else Outcome.CONFLICT
