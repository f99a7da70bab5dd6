"""The PostgreSQL engine: one database that any number of workers share.

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

A round is sealed in two steps. It is ended between the batches of all workers, in a moment: from
then on its reports are late. Then it is made final in one transaction, however long that takes,
while workers count for other rounds. If that fails the round is open again; if the leader dies
meanwhile, the next leader seals it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from psycopg import sql

from collector.errors import CollectorError, Fenced, NewerSchema, StorageFailure
from collector.records import FORGOTTEN, Campaign, Candidate, Refusal
from collector.settings import StoreAddress
from collector.store import (
    Later,
    ReceiptKind,
    Sealing,
    Store,
)
from collector.store.common import (
    ANY_NUMBER,
    FENCED,
    REPORT,
    TABLES,
    TAGS,
    UNKNOWN,
    Limits,
    Past,
    Portion,
    Round,
    Row,
    Stored,
    TallyKey,
    bodies_by_tally,
    by_round,
    count_outcomes,
    highest_lead,
    judge,
    limits_of,
    of_rounds,
    stored_counts,
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
CHUNK: Final = 20_000  # rows that are read at a time


class PostgresStore(Store):
    """The collector's database in PostgreSQL."""

    _level: ClassVar = "get_byte(body, 0)"
    _clock: ClassVar = "extract(epoch FROM clock_timestamp())::double precision"
    _current: ClassVar = f"AND (SELECT version FROM allomfree) <= {VERSION}"  # noqa: S608

    def __init__(self, address: StoreAddress, *, read_only: bool = False) -> None:
        self._db = Connection(address, read_only=read_only)
        super().__init__(self._db)
        self._stored: set[Round] = set()  # rounds that have a table, as far as this worker saw
        self._look_first = False  # whether reports of the last batch were there before
        self._own_changes = 0

    def _transaction(self, *, whole_tables: bool = False) -> AbstractContextManager[None]:
        return self._db.transaction(whole_tables=whole_tables)

    def _lock(self, how: str) -> str:
        return how

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One row is held until the end: campaigns are opened one after the other."""
        with self._db.transaction():
            self._db.execute("UPDATE allomfree SET changes = changes + 1")
            yield
        self._own_changes += 1

    @contextmanager
    def _withdrawing(self) -> Iterator[None]:
        with self._db.transaction():
            self._take_all()
            self._take()
            yield

    def wipe_log(self, *, deleted: bool = False) -> None:
        """The server's log is its own; docs/postgresql.md says how long it keeps deleted rows."""

    def close(self) -> None:
        self._db.close()

    # --- reading ---------------------------------------------------------------------------------

    def changed_elsewhere(self) -> int:
        ((version, changes),) = self._db.fetch("SELECT version, changes FROM allomfree")
        if version > VERSION:
            raise NewerSchema(self._db.address)
        return int(changes) - self._own_changes

    def _reports(self, campaign: int, number: int) -> str | None:
        query = "SELECT 1 FROM round WHERE campaign = %s AND number = %s AND stored"
        if self._db.fetch_one(query, (campaign, number)) is None:
            return None
        places = f"place / {TAGS} AS page, place & {TAGS - 1} AS tag"
        table = f"report_{campaign:d}_{number:d}"
        return f"(SELECT device, attribute, {places}, body FROM {table}) AS r"  # noqa: S608

    # --- counting and forgetting -----------------------------------------------------------------

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        rounds = by_round(candidates)
        for key in sorted(set(rounds) - self._stored):
            self._known(key[0])
            with self._db.transaction():
                make_table(self._db, *key)
            self._stored.add(key)
        parts = [
            columns(key, candidates if len(rounds) == 1 else [candidates[i] for i in members])
            for key, members in sorted(rounds.items())
        ]
        for _ in range(ATTEMPTS - 1):
            try:
                return self._commit(candidates, refusals, rounds, parts)
            except KeyTaken:  # reports that are there: the next attempt looks at them
                self._look_first = True
        return self._commit(candidates, refusals, rounds, parts)

    def _commit(
        self,
        candidates: Sequence[Candidate],
        refusals: Sequence[Refusal],
        rounds: Mapping[Round, Sequence[int]],
        parts: Sequence[Columns],
    ) -> Sequence[Outcome]:
        """This waits for the server twice: for what it knows, and for the end. It waits once more
        if other rounds are open, or some reports may be there: a table can be asked only when it is
        known that its round has not ended."""
        campaigns, own = {campaign for campaign, _ in rounds}, set(rounds)
        asked, there = dict[Round, Answer](), dict[Round, Answer]()
        with self._db.in_one_go(self.meanwhile):
            lives = self._db.ask(*self._sign_of_life(len(candidates) + len(refusals)))
            opened = self._ask_open(campaigns)
            tallies = self._ask_tallies({(c.campaign, c.round, c.attribute) for c in candidates})
            if self._open_in(campaigns) == own and len(own) == len(campaigns):
                asked = {part.key: self._ask_past(part, own, 1) for part in parts}
            self.meanwhile()
            if lives.fetchone() is None:
                raise Fenced(FENCED)
            found = set(opened.fetchall())
            self._stored = {key for key in self._stored if key[0] not in campaigns} | found
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
            self._add_outcomes(count_outcomes(candidates, outcomes, refusals))
        return outcomes

    def _ask_open(self, campaigns: Iterable[int]) -> Answer:
        """Rounds that can change; while the worker's row is held, none of them ends. For a round
        that is being sealed it is too late."""
        return self._db.execute(
            """SELECT campaign, number FROM round
               WHERE campaign = ANY(%s) AND stored AND NOT ended AND sealed IS NULL""",
            (bigints(list(campaigns)),),
        )

    def _open_in(self, campaigns: Set[int]) -> set[Round]:
        return {key for key in self._stored if key[0] in campaigns}

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
        tallies: Later,
    ) -> None:
        accepted = candidates
        if outcomes.count(Outcome.ACCEPTED) < len(outcomes):
            accepted = accepted_of(candidates, outcomes)
            again = accepted_of(candidates, outcomes, Outcome.DUPLICATE)
            self._feed(ReceiptKind.REPEATED, again)
            parts = [columns(key, mine) for key, mine in sorted(of_rounds(accepted))]
        for part in parts:
            query = "INSERT INTO {} SELECT unnest(%s), unnest(%s), unnest(%s), unnest(%s)"
            self._db.execute(sql.SQL(query).format(reports_of(*part.key)), part.arrays())
            places = part.places.astype(">i8").tobytes()
            self._feed_rows([(int(ReceiptKind.COUNTED), *part.key, places)])
        self._write_counts(bodies_by_tally(accepted), +1, tallies)

    def _delete_reports(self, campaign: int, device: int) -> Iterator[Candidate]:
        for _, number in sorted(self._ask_open([campaign]).fetchall()):
            query = sql.SQL("DELETE FROM {} WHERE device = %s RETURNING attribute, place, body")
            rows = self._db.fetch(query.format(reports_of(campaign, number)), (device,))
            for attribute, place, body in rows:
                page, tag = divmod(place, TAGS)
                yield Candidate(campaign, number, device, attribute, page, tag, body)

    # --- what this worker writes besides reports -------------------------------------------------
    # Its tallies, outcomes and receipts are rows of its own, so that no worker waits for another's.
    # To end a round or to forget a device, the rows of all workers are taken in turn, which waits
    # for the current batches only.

    def _take_all(self) -> None:
        """Hold the rows of all workers, in order: no batch is in progress until this ends."""
        self._db.fetch("SELECT number FROM worker ORDER BY number FOR UPDATE")

    def _ask_tallies(self, keys: Collection[TallyKey]) -> Later:
        """Nobody else changes them while it holds its row."""
        parts = [bigints([key[i] for key in keys]) for i in range(3)]
        return self._db.execute(
            """SELECT campaign, round, attribute, n, counts FROM tally
               JOIN unnest(%s, %s, %s) AS asked (c, r, a)
               ON campaign = c AND round = r AND attribute = a WHERE worker = %s""",
            (*parts, self._own_number()),
        ).fetchall

    def _own(self) -> Row:
        return {"worker": self._own_number()}

    # --- sealing ---------------------------------------------------------------------------------

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[Sealing | None]:
        key = (campaign.id, number)
        with self._leading():  # from now on no batch counts for this round
            self._take_all()
            ended = self._db.fetch_one(
                """INSERT INTO round (campaign, number, ended) VALUES (%s, %s, true)
                   ON CONFLICT (campaign, number) DO UPDATE SET ended = true
                   WHERE round.sealed IS NULL RETURNING number""",
                key,
            )
        if ended is None:
            yield None
            return
        try:
            with self._leading(whole_tables=True):
                yield self._begin(campaign, number, at)
        except BaseException:
            with suppress(StorageFailure):
                self._open_again(key)
            raise
        self._stored.discard(key)

    def _open_again(self, key: Round) -> None:
        with self._leading():
            self._db.execute(
                """UPDATE round SET ended = false
                   WHERE campaign = %s AND number = %s AND sealed IS NULL""",
                key,
            )
            self._db.execute(
                """DELETE FROM round
                   WHERE campaign = %s AND number = %s AND sealed IS NULL AND NOT stored""",
                key,
            )

    def _begin(self, campaign: Campaign, number: int, at: int) -> Sealing | None:
        key = (campaign.id, number)
        found = self._db.fetch_one(
            """UPDATE round SET sealed = %s WHERE campaign = %s AND number = %s
               AND sealed IS NULL RETURNING number""",
            (at, *key),
        )
        if found is None:
            return None
        begun = self._begin_sealing(campaign, number)
        self._add_up_workers(key)
        return begun

    def _refused(
        self, campaign: int, number: int, limits: Limits
    ) -> Iterable[tuple[Outcome, Candidate]]:
        """They were counted because two workers had both at the same moment (I11)."""
        if self._reports(campaign, number) is None:
            return []
        lead = _lead(number) if limits.levels else sql.Literal(-ANY_NUMBER)
        query = sql.SQL(_TAKE_OUT).format(reports=reports_of(campaign, number), lead=lead)
        rows = self._db.fetch(query, (campaign, FORGOTTEN, limits.reports, limits.reports))
        if rows:
            self._take()
        return [
            (Outcome(why), Candidate(campaign, number, d, a, place // TAGS, place % TAGS, body))
            for why, d, a, place, body in rows
        ]

    def _add_up_workers(self, key: Round) -> None:
        """The rows of all workers become one."""
        tallies, outcomes = self.tallies(*key), self.outcomes(*key)
        whole: Row = {"campaign": key[0], "round": key[1]}
        for table in ("tally", "outcome"):
            self._db.delete(table, whole)
        whole["worker"] = 0
        for attribute, tally in tallies.items():
            row = {"attribute": attribute, "n": tally.n, "counts": stored_counts(tally.counts)}
            self._db.add("tally", whole | row)
        for outcome, n in outcomes.items():
            self._db.add("outcome", whole | {"name": str(outcome), "n": n})

    def _count_forgotten(self, campaign: int, counted: str) -> None:
        """Under a random number: nobody counts for their own any more."""
        self._db.query(
            f"""INSERT INTO device (campaign, device, attribute, rounds, unreleased, grouped)
                SELECT {campaign:d}, -1 - floor(random() * 9e18)::bigint, r.attribute,
                       {counted}
                JOIN device d USING (device) WHERE d.campaign = ? AND d.attribute = ?""",
            (campaign, FORGOTTEN),
        )

    def _drop_reports(self, campaign: int, number: int) -> None:
        self._db.execute(sql.SQL("DROP TABLE {}").format(reports_of(campaign, number)))
        self._db.update("round", {"campaign": campaign, "number": number}, {"stored": False})

    # --- workers ---------------------------------------------------------------------------------

    def enlist(self, name: str) -> int:
        number = super().enlist(name)
        self._db.execute("SELECT set_config('application_name', %s, false)", (_session(number),))
        return number

    def _end_batch(self, worker: int) -> None:
        self._db.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE application_name = %s AND usename = current_user
               AND datname = current_database() AND state LIKE 'idle in transaction%%'""",
            (_session(worker),),
        )

    # --- moving from another engine --------------------------------------------------------------

    def take_over(self, contents: Iterable[Portion]) -> dict[str, int]:
        """Copy all that another store holds in one transaction; the number of rows by table.

        If anything fails, or this database holds campaigns, nothing is changed.
        """
        with self._db.transaction(whole_tables=True):
            self._db.execute("UPDATE allomfree SET changes = changes + 1")
            if self._db.fetch_one("SELECT 1 FROM campaign LIMIT 1") is not None:
                raise CollectorError(
                    f"{self._db.address} holds campaigns already; nothing was changed. Name an "
                    "empty database"
                )
            return {
                table: (_copy_reports if table == REPORT else _copy_table)(self._db, table, rows)
                for table, rows in contents
            }


def reports_of(campaign: int, number: int) -> sql.Identifier:
    """The table that holds the reports of an open round."""
    return sql.Identifier(f"report_{campaign:d}_{number:d}")


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


def _session(number: int) -> str:
    """The name under which the server shows a worker's connection."""
    return f"allomfree worker {number}"


def _lead(number: int) -> sql.Composed:
    """The level of a report minus its round."""
    return sql.SQL("get_byte(body, 0) - {}").format(sql.Literal(number))


_TAKE_OUT: Final = """
    DELETE FROM {reports} r USING device d
    WHERE d.campaign = %s AND d.device = r.device AND d.attribute <> %s
    AND (d.attribute <> r.attribute OR d.rounds + d.unreleased >= %s OR {lead} > d.lead)
    RETURNING CASE WHEN d.attribute <> r.attribute THEN 'attribute_changed'
                   WHEN d.rounds + d.unreleased >= %s THEN 'too_many' ELSE 'bad_level' END,
              r.device, r.attribute, r.place, r.body"""


# --- copying from another engine -----------------------------------------------------------------


def _copy_table(db: Connection, name: str, rows: Iterable[tuple[Any, ...]]) -> int:
    table = TABLES[name]
    names, more = table.columns, tuple[int, ...]()
    if table.per_worker:
        names, more = [*names, "worker"], (0,)
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(name), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    return db.copy(query, ((*row, *more) for row in rows))


def _copy_reports(db: Connection, _: str, rows: Iterable[tuple[Any, ...]]) -> int:
    """Every open round gets its table, also one whose reports were all withdrawn."""
    wanted = db.fetch(
        """SELECT DISTINCT campaign, round FROM tally t WHERE NOT EXISTS
               (SELECT FROM round r WHERE r.campaign = t.campaign AND r.number >= t.round)"""
    )
    for key in wanted:
        make_table(db, *key)
    copied = 0
    for key, members in groupby(rows, key=itemgetter(0, 1)):
        query = sql.SQL("COPY {} (device, attribute, place, body) FROM STDIN")
        places = ((d, a, page * TAGS + tag, body) for _, _, d, a, page, tag, body in members)
        copied += db.copy(query.format(reports_of(*key)), places)
    return copied


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
