"""Counting in PostgreSQL: a batch of reports into the tables, in one transaction.

Nearly always every report of a batch is new, and its device is unknown or keeps its attribute. The
fast path assumes so: it asks the server whether any device has another attribute, and then sends
what to add with the end of the transaction behind it, without looking again. The key of the round's
table decides (I8): if it objects, or anything else is unexpected, nothing was done, and the batch
is committed with conflicts, where every report gets its own outcome.

A device keeps the attribute of a sealed round, or else that of an open one, or else the first one
of the batch. Two workers that count one device at the same moment for two rounds, under two
attributes, do not see each other: the round that is sealed first decides, and the other report is
taken out when its round is sealed (I11).

Look-ups are written as subqueries by key, row by row: left to choose, the planner compares every
report of a batch with every device of a table that it believes to be empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, LiteralString

import numpy as np
import numpy.typing as npt
from psycopg import sql

from collector.errors import Fenced
from collector.records import FORGOTTEN, Campaign, Candidate, Refusal
from collector.store import FeedRow, ReceiptKind, feed_rows
from collector.store.common import (
    FENCED,
    TAGS,
    OutcomeKey,
    Round,
    TallyKey,
    bodies_by_tally,
    by_round,
    changed_tally,
    count_outcomes,
    read_tally,
)
from collector.store.postgres_connection import (
    Answer,
    Connection,
    KeyTaken,
    bigints,
    byteas,
    smallints,
)
from protocol_spec import Outcome

Column = npt.NDArray[np.int64]
# The attribute that a device has elsewhere, and its report's attribute and body in a round.
Stored = tuple[int | None, int | None, bytes | None]


class FastPathMiss(Exception):
    """Some report of a batch is not new, or its device has another attribute."""


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
               WHERE number = %s AND NOT fenced RETURNING number""",
            (received, self.own()),
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
        self._fast = True  # whether everything in the last batch was new

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
        parts = columns_of(candidates, rounds) if self._fast else None
        devices = devices_of(parts) if parts is not None else None
        if parts is not None and devices is not None:
            try:
                self._commit_new(candidates, refusals, parts, devices, meanwhile)
                return [Outcome.ACCEPTED] * len(candidates)
            except (FastPathMiss, KeyTaken):
                pass
        outcomes = self._commit_with_conflicts(candidates, refusals, rounds)
        self._fast = outcomes.count(Outcome.ACCEPTED) == len(outcomes)
        return outcomes

    def ask_open(self, campaigns: Iterable[int]) -> Answer:
        """Rounds that can change; while the worker's row is held, none of them ends. For a round
        that is being sealed it is too late."""
        return self._db.execute(
            """SELECT campaign, number FROM round
               WHERE campaign = ANY(%s) AND stored AND NOT ended AND sealed IS NULL""",
            (bigints(list(campaigns)),),
        )

    def _note_open(self, rounds: Iterable[Round], answer: Answer) -> set[Round]:
        """The open rounds of the batch's campaigns; others of these campaigns are forgotten."""
        found, campaigns = set(answer.fetchall()), {campaign for campaign, _ in rounds}
        self.stored = {key for key in self.stored if key[0] not in campaigns} | found
        return found

    def _open_in(self, campaign: int) -> list[Round]:
        return sorted(key for key in self.stored if key[0] == campaign)

    # --- the fast path ---------------------------------------------------------------------------

    def _commit_new(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        parts: Sequence[Columns],
        devices: Sequence[Devices],
        meanwhile: Callable[[], None],
    ) -> None:
        """This waits for the server twice: for what it knows, and for the end; and once more if
        other rounds may be open, which have to be searched."""
        bodies, own = bodies_by_tally(candidates), {part.key for part in parts}
        with self._db.in_one_go(meanwhile):
            lives = self._worker.sign_of_life(len(candidates) + len(refusals))
            opened = self.ask_open(each.campaign for each in devices)
            believed = {key for each in devices for key in self._open_in(each.campaign)} | own
            alone = len(believed) == len(devices)  # one round of each campaign
            others = set() if alone else self._others(own, opened)
            tallies = self._worker.ask_tallies(bodies)
            changed = [self._ask_changed(each, own, others) for each in devices]
            meanwhile()
            if lives.fetchone() is None:
                raise Fenced(FENCED)
            if alone and self._others(own, opened):
                raise FastPathMiss
            if any(answer.fetchone() != (0,) for answer in changed):
                raise FastPathMiss
            for part in parts:
                self._add_reports(part)
                places = part.places.astype(">i8").tobytes()
                self._worker.feed([(int(ReceiptKind.COUNTED), *part.key, places)])
            self._worker.write_counts(bodies, +1, tallies)
            accepted = [Outcome.ACCEPTED] * len(candidates)
            self._worker.add_outcomes(count_outcomes(candidates, accepted, refusals))

    def _others(self, own: Set[Round], opened: Answer) -> set[Round]:
        """Other open rounds of the same campaigns, provided that those of the batch are open."""
        found = self._note_open(own, opened)
        if not own <= found:
            raise FastPathMiss
        return found - own

    def _ask_changed(self, devices: Devices, own: Set[Round], others: Set[Round]) -> Answer:
        """How many devices have another attribute than they report."""
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

    def _add_reports(self, part: Columns, on_conflict: LiteralString = "") -> Answer:
        """Insert reports; the devices of those that are new."""
        query = "INSERT INTO {} SELECT unnest(%s), unnest(%s), unnest(%s), unnest(%s) {} {}"
        returning = "RETURNING device" if on_conflict else ""
        return self._db.execute(
            sql.SQL(query).format(reports_of(*part.key), sql.SQL(on_conflict), sql.SQL(returning)),
            part.arrays(),
        )

    # --- with conflicts --------------------------------------------------------------------------

    def _commit_with_conflicts(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        rounds: Mapping[Round, Sequence[int]],
    ) -> Sequence[Outcome]:
        """Questions go to the server together, so that a batch waits for it five times in all."""
        with self._db.transaction(pipelined=True):
            lives = self._worker.sign_of_life(len(candidates) + len(refusals))
            opened = self.ask_open({campaign for campaign, _ in rounds})
            keys = {(c.campaign, c.round, c.attribute) for c in candidates}
            tallies = self._worker.ask_tallies(keys)
            if lives.fetchone() is None:
                raise Fenced(FENCED)
            outcomes = self._insert_new(candidates, rounds, self._note_open(rounds, opened))
            accepted = [c for c, o in zip(candidates, outcomes) if o is Outcome.ACCEPTED]
            again = [c for c, o in zip(candidates, outcomes) if o is Outcome.DUPLICATE]
            self._worker.write_counts(bodies_by_tally(accepted), +1, tallies)
            self._worker.add_outcomes(count_outcomes(candidates, outcomes, refusals))
            self._worker.feed(feed_rows(ReceiptKind.COUNTED, accepted))
            self._worker.feed(feed_rows(ReceiptKind.REPEATED, again))
        return outcomes

    def _insert_new(
        self,
        candidates: Sequence[Candidate],
        rounds: Mapping[Round, Sequence[int]],
        opened: Set[Round],
    ) -> list[Outcome]:
        """Insert of each round and device the first report with the device's attribute, if it is
        new; the outcome of every candidate."""
        outcomes = [Outcome.LATE] * len(candidates)
        taken = {key: members for key, members in rounds.items() if key in opened}
        attributes = self._attributes([candidates[i] for m in taken.values() for i in m])
        asked = []
        for key in sorted(taken):  # in order, so that no two batches wait for each other
            first: dict[int, int] = {}
            for i in taken[key]:
                c = candidates[i]
                if attributes[c.campaign, c.device] == c.attribute:
                    first.setdefault(c.device, i)
            part = columns(key, [candidates[i] for i in first.values()])
            asked.append((key, first, self._add_reports(part, "ON CONFLICT DO NOTHING")))
        for key, first, answer in asked:
            new = {first[device] for (device,) in answer.fetchall()}
            rest = [i for i in taken[key] if i not in new]
            stored = self._stored(key, {candidates[i].device for i in rest}) if rest else {}
            for i in new:
                outcomes[i] = Outcome.ACCEPTED
            for i in rest:
                outcomes[i] = _not_inserted(candidates[i], *stored[candidates[i].device])
        return outcomes

    def _attributes(self, reports: Sequence[Candidate]) -> dict[tuple[int, int], int]:
        """The attribute that each (campaign, device) has to keep: the stored one, or else that of
        its first report here."""
        devices: dict[int, set[int]] = defaultdict(set)
        found: dict[tuple[int, int], int] = {}
        for c in reports:
            devices[c.campaign].add(c.device)
            found.setdefault((c.campaign, c.device), c.attribute)
        for campaign, numbers in sorted(devices.items()):
            rows = self._db.fetch(
                sql.SQL(
                    """SELECT device, known FROM (
                           SELECT n.device, {known} AS known
                           FROM unnest(%s) AS n (device) OFFSET 0) AS asked
                       WHERE known IS NOT NULL"""
                ).format(known=attribute_of(campaign, self._open_in(campaign))),
                (bigints(sorted(numbers)),),
            )
            found.update({(campaign, device): known for device, known in rows})
        return found

    def _stored(self, key: Round, devices: Iterable[int]) -> dict[int, Stored]:
        """The attributes of devices elsewhere, and their reports in this round."""
        others = [each for each in self._open_in(key[0]) if each != key]
        rows = self._db.fetch(
            sql.SQL(
                """SELECT n.device, {known}, r.attribute, r.body
                   FROM unnest(%s) AS n (device)
                   LEFT JOIN LATERAL (SELECT * FROM {reports}
                                      WHERE device = n.device OFFSET 0) AS r ON true"""
            ).format(known=attribute_of(key[0], others), reports=reports_of(*key)),
            (bigints(list(devices)),),
        )
        return {device: tuple(stored) for device, *stored in rows}


def _not_inserted(
    c: Candidate, known: int | None, attribute: int | None, body: bytes | None
) -> Outcome:
    """The outcome of a report that was not inserted, by what is stored of its device."""
    if known == FORGOTTEN:
        return Outcome.FORGOTTEN
    if known not in (None, c.attribute):
        return Outcome.ATTRIBUTE_CHANGED
    return Outcome.DUPLICATE if (attribute, body) == (c.attribute, c.body) else Outcome.CONFLICT


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


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices of one campaign, each once, in order, with their attributes."""

    campaign: int
    numbers: Column
    attributes: Column


def columns(key: Round, mine: Sequence[Candidate]) -> Columns:
    if not mine:
        none = np.zeros(0, dtype=np.int64)
        return Columns(key, none, none, none, ())
    _, _, devices, attributes, pages, tags, bodies = zip(*mine)
    numbers = np.array(devices, dtype=np.int64)
    order = np.argsort(numbers)
    places = np.array(pages, dtype=np.int64) * TAGS + np.array(tags, dtype=np.int64)
    sorted_bodies = [bodies[i] for i in order.tolist()]
    return Columns(key, numbers[order], np.array(attributes)[order], places[order], sorted_bodies)


def columns_of(
    candidates: Sequence[Candidate], rounds: Mapping[Round, Sequence[int]]
) -> list[Columns] | None:
    """The columns of every round, in order; None if a device is in one of them twice."""
    made = []
    for key, members in sorted(rounds.items()):
        whole = len(members) == len(candidates)
        found = columns(key, candidates if whole else [candidates[i] for i in members])
        if not np.all(found.devices[1:] != found.devices[:-1]):
            return None
        made.append(found)
    return made


def devices_of(parts: Sequence[Columns]) -> list[Devices] | None:
    """The devices of every campaign; None if one of them has two attributes."""
    groups: dict[int, list[Columns]] = defaultdict(list)
    for part in parts:
        groups[part.key[0]].append(part)
    found = []
    for campaign, mine in sorted(groups.items()):
        numbers, attributes = mine[0].devices, mine[0].attributes
        if len(mine) > 1:
            every = np.concatenate([part.devices for part in mine])
            of_every = np.concatenate([part.attributes for part in mine])
            numbers, first, place = np.unique(every, return_index=True, return_inverse=True)
            attributes = of_every[first]
            if np.any(of_every != attributes[place]):
                return None
        found.append(Devices(campaign, numbers, attributes))
    return found
