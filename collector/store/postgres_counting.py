"""Counting in PostgreSQL: a batch of reports into the tables, in one transaction.

A batch asks the server which of its devices may not report, or not this, by what is known of other
rounds; that is nearly always none. Then it sends what to add, with the end of the transaction
behind it. Whether a report is new the key of the round's table decides (I8): if it objects, nothing
was done, and the batch is tried again, now also asking which reports are there.

A device keeps the attribute of a sealed round, or else that of an open one, or else the first one
of the batch. Two workers that count one device at the same moment for two rounds do not see each
other: the round that is sealed first decides, and a report that it forbids is taken out when the
other round is sealed (I11).

Look-ups are written as subqueries by key, row by row: left to choose, the planner compares every
report of a batch with every device of a table that it believes to be empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from psycopg import sql

from collector.errors import Fenced
from collector.records import Campaign, Candidate, Refusal
from collector.store import FeedRow, ReceiptKind, feed_rows
from collector.store.common import (
    ANY_NUMBER,
    FENCED,
    TAGS,
    UNKNOWN,
    OutcomeKey,
    Past,
    Round,
    Stored,
    TallyKey,
    bodies_by_tally,
    by_round,
    changed_tally,
    count_outcomes,
    highest_lead,
    judge,
    limits_of,
    of_rounds,
    read_tally,
)
from collector.store.postgres_connection import (
    VERSION,
    Answer,
    Connection,
    KeyTaken,
    bigints,
    byteas,
    smallints,
)
from protocol_spec import Outcome

Column = npt.NDArray[np.int64]
ATTEMPTS: Final = 4  # to count a batch, some of which other workers count at the same moment


def reports_of(campaign: int, number: int) -> sql.Identifier:
    """The table that holds the reports of an open round."""
    return sql.Identifier(f"report_{campaign:d}_{number:d}")


# --- what a worker writes besides reports --------------------------------------------------------


class WorkerRows:
    """The rows of this worker: signs of life, its tallies and outcomes, its receipts.

    They are its own, so that no worker waits for another's row. While it writes it holds its row of
    `worker`: the row says that it may write (W1). To end a round or to forget a device, all these
    rows are taken in turn, which waits for the current batches only.
    """

    def __init__(self, db: Connection, known: Callable[[int], Campaign]) -> None:
        self.number: int | None = None  # None: never enlisted
        self.lost = db.lost
        self._db = db
        self._known = known

    def own(self) -> int:
        """The number under which this store writes; after a lost connection it has none."""
        if self.number is None:
            return 0
        if self.lost != self._db.lost:
            raise Fenced(FENCED)
        return self.number

    def take(self) -> None:
        """Hold this worker's row until the transaction ends, as a sign of life."""
        if self.sign_of_life(0).fetchone() is None:
            raise Fenced(FENCED)

    def take_all(self) -> None:
        """Hold the rows of all workers, in order: no batch is in progress until this ends."""
        self._db.fetch("SELECT number FROM worker ORDER BY number FOR UPDATE")

    def sign_of_life(self, received: int) -> Answer:
        return self._db.execute(
            """UPDATE worker SET seen = extract(epoch FROM clock_timestamp()),
                                 received = received + %s
               WHERE number = %s AND NOT fenced
               AND (SELECT version FROM allomfree) <= %s RETURNING number""",
            (received, self.own(), VERSION),
        )

    def add_counts(self, reports: Sequence[Candidate], sign: int) -> None:
        """Add reports to this worker's tallies, or subtract them, while it holds its row."""
        asked = self.ask_tallies({(c.campaign, c.round, c.attribute) for c in reports})
        self.write_counts(bodies_by_tally(reports), sign, asked)

    def ask_tallies(self, keys: Collection[TallyKey]) -> Answer:
        """This worker's own rows, which nobody else changes while it holds its row."""
        columns = [bigints([key[i] for key in keys]) for i in range(3)]
        return self._db.execute(
            """SELECT campaign, round, attribute, n, counts FROM tally
               JOIN unnest(%s, %s, %s) AS asked (c, r, a)
               ON campaign = c AND round = r AND attribute = a WHERE worker = %s""",
            (*columns, self.own()),
        )

    def write_counts(
        self, tallies: Mapping[TallyKey, Sequence[bytes]], sign: int, asked: Answer
    ) -> None:
        old = {(c, r, a): read_tally(n, counts) for c, r, a, n, counts in asked.fetchall()}
        for key, bodies in tallies.items():
            mechanism = self._known(key[0]).manifest.mechanisms[key[2]]
            self._db.execute(
                """INSERT INTO tally VALUES (%s, %s, %s, %s, %s, %s)
                   ON CONFLICT (campaign, round, attribute, worker)
                   DO UPDATE SET n = excluded.n, counts = excluded.counts""",
                (*key, self.own(), *changed_tally(old.get(key), bodies, sign, mechanism)),
            )

    def add_outcomes(self, counted: Mapping[OutcomeKey, int]) -> None:
        totals: dict[tuple[int, str], int] = defaultdict(int)
        for (campaign, number, outcome), n in counted.items():
            totals[campaign, str(outcome)] += n
            self._db.execute(
                """INSERT INTO outcome VALUES (%s, %s, %s, %s, %s)
                   ON CONFLICT (campaign, round, name, worker)
                   DO UPDATE SET n = outcome.n + excluded.n""",
                (campaign, number, str(outcome), self.own(), n),
            )
        for (campaign, name), n in totals.items():
            self._db.execute(
                """INSERT INTO outcome_total VALUES (%s, %s, %s, %s)
                   ON CONFLICT (campaign, name, worker)
                   DO UPDATE SET n = outcome_total.n + excluded.n""",
                (campaign, name, self.own(), n),
            )

    def feed(self, rows: Iterable[FeedRow]) -> None:
        """Leave receipts for the leader; without workers nobody reads them."""
        for row in rows if self.number is not None else ():
            self._db.execute(
                """INSERT INTO receipt_feed (worker, kind, campaign, round, places)
                   VALUES (%s, %s, %s, %s, %s)""",
                (self.number, *row),
            )


# --- a batch -------------------------------------------------------------------------------------


class Counting:
    """Commits batches; knows which rounds have a table, as far as this worker has seen."""

    def __init__(
        self, db: Connection, worker: WorkerRows, known: Callable[[int], Campaign]
    ) -> None:
        self.stored: set[Round] = set()
        self._db = db
        self._worker = worker
        self._known = known
        self._look_first = False  # whether reports of the last batch were there before

    def commit(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        meanwhile: Callable[[], None],
    ) -> Sequence[Outcome]:
        rounds = by_round(candidates)
        for key in sorted(set(rounds) - self.stored):
            self._known(key[0])
            with self._db.transaction():
                make_table(self._db, *key)
            self.stored.add(key)
        parts = [
            columns(key, candidates if len(rounds) == 1 else [candidates[i] for i in members])
            for key, members in sorted(rounds.items())
        ]
        for _ in range(ATTEMPTS - 1):
            try:
                return self._commit(candidates, refusals, rounds, parts, meanwhile)
            except KeyTaken:  # reports that are there: the next attempt looks at them
                self._look_first = True
        return self._commit(candidates, refusals, rounds, parts, meanwhile)

    def _commit(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        rounds: Mapping[Round, Sequence[int]],
        parts: Sequence[Columns],
        meanwhile: Callable[[], None],
    ) -> Sequence[Outcome]:
        """This waits for the server twice: for what it knows, and for the end. It waits once more
        if other rounds are open, or some reports may be there: a table can be asked only when it is
        known that its round has not ended."""
        campaigns, own = {campaign for campaign, _ in rounds}, set(rounds)
        asked, there = dict[Round, Answer](), dict[Round, Answer]()
        with self._db.in_one_go(meanwhile):
            lives = self._worker.sign_of_life(len(candidates) + len(refusals))
            opened = self.ask_open(campaigns)
            tallies = self._worker.ask_tallies(
                {(c.campaign, c.round, c.attribute) for c in candidates}
            )
            if self._open_in(campaigns) == own and len(own) == len(campaigns):
                asked = {part.key: self._ask_past(part, own, 1) for part in parts}
            meanwhile()
            if lives.fetchone() is None:
                raise Fenced(FENCED)
            found = set(opened.fetchall())
            self.stored = {key for key in self.stored if key[0] not in campaigns} | found
            parts = [part for part in parts if part.key in found]
            if not asked or found - own:
                asked = {part.key: self._ask_past(part, found, len(rounds)) for part in parts}
            if self._look_first:
                there = {part.key: self._ask_stored(part) for part in parts}
            past = {key: _past(answer) for key, answer in asked.items()}
            stored = {key: _stored(answer) for key, answer in there.items()}
            self._look_first = any(stored.values())
            outcomes = self._judge(candidates, rounds, parts, past, stored)
            self._write(candidates, outcomes, parts, tallies)
            self._worker.add_outcomes(count_outcomes(candidates, outcomes, refusals))
        return outcomes

    def ask_open(self, campaigns: Iterable[int]) -> Answer:
        """Rounds that can change; while the worker's row is held, none of them ends. For a round
        that is being sealed it is too late."""
        return self._db.execute(
            """SELECT campaign, number FROM round
               WHERE campaign = ANY(%s) AND stored AND NOT ended AND sealed IS NULL""",
            (bigints(list(campaigns)),),
        )

    def _open_in(self, campaigns: Set[int]) -> set[Round]:
        return {key for key in self.stored if key[0] in campaigns}

    def _ask_past(self, part: Columns, opened: Set[Round], rounds: int) -> Answer:
        """What is known from other rounds of those devices that may not report, or not this."""
        campaign = part.key[0]
        limits = limits_of(self._known(campaign).manifest)
        others = sorted(key for key in opened if key[0] == campaign and key != part.key)
        joins = [
            sql.SQL(
                """LEFT JOIN LATERAL (SELECT attribute FROM {} WHERE device = n.device
                   OFFSET 0) AS {} ON true"""
            ).format(reports_of(*key), sql.Identifier(f"r{key[1]}"))
            for key in others
        ]
        fields = [sql.Identifier(f"r{number}", "attribute") for _, number in others]
        known = sql.SQL("coalesce({})").format(
            sql.SQL(", ").join([sql.SQL("d.attribute"), *fields])
        )
        reports = sql.SQL(" + ").join(
            [sql.SQL("coalesce(d.reports, 0)")]
            + [sql.SQL("({} IS NOT NULL)::integer").format(field) for field in fields]
        )
        query = sql.SQL(
            """SELECT n.device, coalesce({known}, {nobody}), {reports}, coalesce(d.lead, {any})
               FROM unnest(%s, %s) AS n (device, attribute)
               LEFT JOIN LATERAL (
                   SELECT attribute, rounds + unreleased AS reports, lead FROM device
                   WHERE campaign = {campaign} AND device = n.device OFFSET 0) AS d ON true {joins}
               WHERE {known} <> n.attribute OR {reports} >= %s OR d.lead < %s"""
        ).format(
            known=known,
            reports=reports,
            any=sql.Literal(ANY_NUMBER),
            nobody=sql.Literal(UNKNOWN),
            campaign=sql.Literal(campaign),
            joins=sql.SQL(" ").join(joins),
        )
        least = limits.reports - (rounds - 1), highest_lead(part.bodies, part.key[1], limits)
        return self._db.execute(query, (bigints(part.devices), smallints(part.attributes), *least))

    def _ask_stored(self, part: Columns) -> Answer:
        """Reports of these devices in the same round."""
        query = sql.SQL(
            """SELECT n.device, r.attribute, r.body FROM unnest(%s) AS n (device)
               CROSS JOIN LATERAL (SELECT attribute, body FROM {} WHERE device = n.device
                                   OFFSET 0) AS r"""
        ).format(reports_of(*part.key))
        return self._db.execute(query, (bigints(part.devices),))

    def _judge(
        self,
        candidates: Sequence[Candidate],
        rounds: Mapping[Round, Sequence[int]],
        parts: Sequence[Columns],
        past: Mapping[Round, Mapping[int, Past]],
        stored: Mapping[Round, Mapping[int, Stored]],
    ) -> list[Outcome]:
        """The outcome of every candidate; `parts` are the rounds that are open."""
        outcomes, opened = [Outcome.ACCEPTED] * len(candidates), {part.key for part in parts}
        known = any((*past.values(), *stored.values()))
        if len(opened) == len(rounds) and not known and are_all_different(parts):
            return outcomes
        here: dict[tuple[int, int], list[int]] = defaultdict(list)
        for key, members in rounds.items():
            mine = [candidates[i] for i in members]
            found = [Outcome.LATE] * len(mine)
            if key in opened:
                limits = limits_of(self._known(key[0]).manifest)
                found = judge(mine, limits, past[key], stored.get(key, {}), here)
            for i, outcome in zip(members, found):
                outcomes[i] = outcome
            for c in accepted_of(mine, found):
                here[c.campaign, c.device].append(c.attribute)
        return outcomes

    def _write(
        self,
        candidates: Sequence[Candidate],
        outcomes: Sequence[Outcome],
        parts: Sequence[Columns],
        tallies: Answer,
    ) -> None:
        accepted = candidates
        if outcomes.count(Outcome.ACCEPTED) < len(outcomes):
            accepted = accepted_of(candidates, outcomes)
            again = accepted_of(candidates, outcomes, Outcome.DUPLICATE)
            self._worker.feed(feed_rows(ReceiptKind.REPEATED, again))
            parts = [columns(key, mine) for key, mine in sorted(of_rounds(accepted))]
        for part in parts:
            query = "INSERT INTO {} SELECT unnest(%s), unnest(%s), unnest(%s), unnest(%s)"
            self._db.execute(sql.SQL(query).format(reports_of(*part.key)), part.arrays())
            places = part.places.astype(">i8").tobytes()
            self._worker.feed([(int(ReceiptKind.COUNTED), *part.key, places)])
        self._worker.write_counts(bodies_by_tally(accepted), +1, tallies)


def _past(answer: Answer) -> dict[int, Past]:
    return {device: Past(*known) for device, *known in answer.fetchall()}


def _stored(answer: Answer) -> dict[int, Stored]:
    return {device: (attribute, body) for device, attribute, body in answer.fetchall()}


def accepted_of(
    batch: Sequence[Candidate], outcomes: Sequence[Outcome], wanted: Outcome = Outcome.ACCEPTED
) -> list[Candidate]:
    return [c for c, outcome in zip(batch, outcomes) if outcome is wanted]


def make_table(db: Connection, campaign: int, number: int) -> None:
    """Whoever adds the row of a round makes its table; others wait for that moment.

    A row that is there is only looked at: to add it again would wait until the round is sealed.
    """
    key = (campaign, number)
    if db.fetch_one("SELECT 1 FROM round WHERE campaign = %s AND number = %s", key) is not None:
        return
    added = db.fetch_one(
        """INSERT INTO round (campaign, number, stored) VALUES (%s, %s, true)
           ON CONFLICT DO NOTHING RETURNING number""",
        key,
    )
    if added is not None:
        db.execute(_CREATE_REPORTS.format(reports_of(*key)))


_CREATE_REPORTS = sql.SQL(
    """CREATE TABLE {} (
           device bigint PRIMARY KEY,
           attribute smallint NOT NULL,
           place bigint NOT NULL,
           body bytea NOT NULL)"""
)


# --- a batch as columns --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """Reports of one round, by device."""

    key: Round
    devices: Column
    attributes: Column
    places: Column
    bodies: Sequence[bytes]

    def arrays(self) -> tuple[Any, ...]:
        """What the round's table gets."""
        return (
            bigints(self.devices),
            smallints(self.attributes),
            bigints(self.places),
            byteas(self.bodies),
        )


def columns(key: Round, mine: Sequence[Candidate]) -> Columns:
    _, _, devices, attributes, pages, tags, bodies = zip(*mine)
    numbers = np.array(devices, dtype=np.int64)
    order = np.argsort(numbers)
    places = np.array(pages, dtype=np.int64) * TAGS + np.array(tags, dtype=np.int64)
    sorted_bodies = [bodies[i] for i in order.tolist()]
    return Columns(key, numbers[order], np.array(attributes)[order], places[order], sorted_bodies)


def are_all_different(parts: Sequence[Columns]) -> bool:
    """Whether no device has two reports in a batch."""
    devices = [part.devices for part in parts]
    if len(parts) > 1:
        devices = [np.sort(np.concatenate(devices))]
    return all(bool(np.all(each[1:] != each[:-1])) for each in devices)
