"""The PostgreSQL engine: one database that any number of workers share.

A round is sealed in two steps. It is ended between the batches of all workers, in a moment: from
then on its reports are late. Then it is made final in one transaction, however long that takes,
while workers count for other rounds. If that fails the round is open again; if the leader dies
meanwhile, the next leader seals it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Final

from psycopg import sql

from collector.errors import CollectorError, Fenced, NewerSchema, NotLeading, StorageFailure
from collector.records import FORGOTTEN, Campaign, Candidate, Refusal
from collector.settings import StoreAddress
from collector.store import (
    QueuedAnswer,
    ReceiptBatch,
    ReceiptKind,
    Sealing,
    Store,
    Worker,
    feed_rows,
    receipt_batches,
)
from collector.store.common import (
    ANY_NUMBER,
    COUNT_AGAIN,
    FENCED,
    KEPT_SECONDS,
    MOVED,
    NOT_LEADING,
    REPORT,
    TABLES,
    TAGS,
    Limits,
    OutcomeKey,
    Portion,
    Round,
    compare,
    stored_counts,
)
from collector.store.postgres_connection import VERSION, Connection, bigints
from collector.store.postgres_counting import Counting, WorkerRows, make_table, reports_of
from protocol_spec import Outcome

CHUNK: Final = 20_000  # rows that are read at a time


class PostgresStore(Store):
    """The collector's database in PostgreSQL."""

    _row_lock: ClassVar = "FOR NO KEY UPDATE"

    def __init__(self, address: StoreAddress, *, read_only: bool = False) -> None:
        self._db = Connection(address, read_only=read_only)
        super().__init__(self._db)
        self.epoch = 0
        self._worker = WorkerRows(self._db, self._known)
        self._counting = Counting(self._db, self._worker, self._known)
        self._own_changes = 0
        self._read_epoch = 0
        self._returned: list[int] = []

    def _transaction(self) -> AbstractContextManager[None]:
        return self._db.transaction()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One row is held until the end: campaigns are opened one after the other."""
        with self._db.transaction():
            self._db.execute("UPDATE allomfree SET changes = changes + 1")
            yield
        self._own_changes += 1

    @contextmanager
    def _leading(self, *, whole_tables: bool = False) -> Iterator[None]:
        with self._db.transaction(whole_tables=whole_tables):
            self.check_leading()
            yield

    def check_leading(self) -> None:
        """Inside a transaction: fail unless this worker leads, and let nobody lead meanwhile."""
        held, values = "until <= extract(epoch FROM clock_timestamp())", tuple[int, ...]()
        if self._worker.number is not None:
            held, values = "holder = ? AND epoch = ?", (self._worker.own(), self.epoch)
        if not self._db.query(f"SELECT 1 FROM lease WHERE {held} FOR SHARE", values):  # noqa: S608
            raise NotLeading(NOT_LEADING)

    @contextmanager
    def _withdrawing(self) -> Iterator[None]:
        with self._db.transaction():
            self._worker.take_all()
            self._worker.take()
            yield

    def wipe_log(self, *, deleted: bool = False) -> None:
        """The server's log is its own; docs/postgresql.md says how long it keeps deleted rows."""

    def close(self) -> None:
        self._db.close()

    # --- reading ---------------------------------------------------------------------------------

    def now(self) -> float:
        ((now,),) = self._db.fetch("SELECT extract(epoch FROM clock_timestamp())::double precision")
        return float(now)

    def changed_elsewhere(self) -> int:
        ((version, changes),) = self._db.fetch("SELECT version, changes FROM allomfree")
        if version > VERSION:
            raise NewerSchema(self._db.address)
        return int(changes) - self._own_changes

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        has_reports = self._db.fetch_one(
            """SELECT 1 FROM round WHERE campaign = %s AND number = %s
               AND stored AND sealed IS NULL""",
            (campaign, number),
        )
        if has_reports is None:
            return
        query = sql.SQL(
            "SELECT device, place FROM {} WHERE device > %s ORDER BY device LIMIT %s"
        ).format(reports_of(campaign, number))
        rows = self._db.fetch(query, (-1, CHUNK))
        while rows:
            yield from (divmod(place, TAGS) for _, place in rows)
            rows = self._db.fetch(query, (rows[-1][0], CHUNK))

    def clearable_receipts(self, campaign: int) -> list[int]:
        rows = self._db.fetch(
            """SELECT number FROM round WHERE campaign = %s AND sealed IS NOT NULL
               AND NOT receipts_cleared ORDER BY number""",
            (campaign,),
        )
        return [number for (number,) in rows]

    # --- counting and forgetting -----------------------------------------------------------------

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        return self._counting.commit(candidates, refusals, self.meanwhile)

    def _delete_reports(self, campaign: int, device: int) -> Iterator[Candidate]:
        for _, number in sorted(self._counting.ask_open([campaign]).fetchall()):
            query = sql.SQL("DELETE FROM {} WHERE device = %s RETURNING attribute, place, body")
            rows = self._db.fetch(query.format(reports_of(campaign, number)), (device,))
            for attribute, place, body in rows:
                page, tag = divmod(place, TAGS)
                yield Candidate(campaign, number, device, attribute, page, tag, body)

    def _add_counts(self, reports: Sequence[Candidate], sign: int) -> None:
        self._worker.add_counts(reports, sign)

    def _add_outcomes(self, counted: Mapping[OutcomeKey, int]) -> None:
        self._worker.add_outcomes(counted)

    def _feed(self, kind: ReceiptKind, reports: Sequence[Candidate]) -> None:
        self._worker.feed(feed_rows(kind, reports))

    # --- sealing ---------------------------------------------------------------------------------

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[Sealing | None]:
        key = (campaign.id, number)
        with self._leading():  # from now on no batch counts for this round
            self._worker.take_all()
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
        self._counting.stored.discard(key)

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
        reports = self._stored_reports(campaign, number)
        if reports is None:
            return []
        lead = _lead(number) if limits.levels else sql.Literal(-ANY_NUMBER)
        query = sql.SQL(_TAKE_OUT).format(reports=reports, lead=lead)
        rows = self._db.fetch(query, (campaign, FORGOTTEN, limits.reports, limits.reports))
        if rows:
            self._worker.take()
        return [
            (Outcome(why), Candidate(campaign, number, d, a, place // TAGS, place % TAGS, body))
            for why, d, a, place, body in rows
        ]

    def _stored_reports(self, campaign: int, number: int) -> sql.Identifier | None:
        """The table of a round, if it has one."""
        query = "SELECT 1 FROM round WHERE campaign = %s AND number = %s AND stored"
        found = self._db.fetch_one(query, (campaign, number))
        return None if found is None else reports_of(campaign, number)

    def _add_up_workers(self, key: Round) -> None:
        """The rows of all workers become one."""
        tallies, outcomes = self.tallies(*key), self.outcomes(*key)
        self._db.execute("DELETE FROM tally WHERE campaign = %s AND round = %s", key)
        for attribute, tally in tallies.items():
            self._db.execute(
                "INSERT INTO tally VALUES (%s, %s, %s, 0, %s, %s)",
                (*key, attribute, tally.n, stored_counts(tally.counts)),
            )
        self._db.execute("DELETE FROM outcome WHERE campaign = %s AND round = %s", key)
        for outcome, n in outcomes.items():
            self._db.execute(
                "INSERT INTO outcome VALUES (%s, %s, %s, 0, %s)", (*key, str(outcome), n)
            )

    def latest_changes(
        self, campaign: int, number: int
    ) -> Iterator[tuple[int, bytes, bytes | None]]:
        reports = self._stored_reports(campaign, number)
        if reports is not None:
            query = sql.SQL(_LATEST).format(reports=reports)
            yield from self._db.stream(query, (campaign, FORGOTTEN))

    def end_reports(
        self,
        campaign: int,
        number: int,
        released: Sequence[int],
        aside: Sequence[int],
        *,
        keep: bool = False,
    ) -> None:
        reports = self._stored_reports(campaign, number)
        if reports is None:
            return
        values = (campaign, list(released), list(aside))
        query = sql.SQL(_COUNT_DEVICES).format(
            reports=reports,
            lead=_lead(number) if keep else sql.Literal(0),
            latest=sql.SQL("body" if keep else "''::bytea"),
        )
        self._db.execute(query, values)
        if not keep:
            forgotten = sql.SQL(_COUNT_FORGOTTEN).format(reports=reports)
            self._db.execute(forgotten, (*values, campaign, FORGOTTEN))
        self._db.execute(sql.SQL("DROP TABLE {}").format(reports))

    # --- workers ---------------------------------------------------------------------------------

    def enlist(self, name: str) -> int:
        self.changed_elsewhere()  # a newer schema fences workers of this version
        with self._db.transaction():
            self._delete_worker()
            ((number,),) = self._db.fetch(
                """INSERT INTO worker (number, name, started, seen)
                   SELECT nextval('worker_number'), %s, t, t
                   FROM (SELECT extract(epoch FROM clock_timestamp()) AS t) AS now
                   RETURNING number""",
                (name,),
            )
        self._db.execute("SELECT set_config('application_name', %s, false)", (_session(number),))
        self._worker.number, self._worker.lost, self.epoch = int(number), self._db.lost, 0
        return int(number)

    def _delete_worker(self) -> None:
        self._db.execute(
            "DELETE FROM worker WHERE number = %s AND number > 0", (self._worker.number,)
        )

    def beat(self, drained: float) -> float:
        row = self._db.fetch_one(
            """UPDATE worker SET seen = extract(epoch FROM clock_timestamp()),
                                 drained = greatest(drained, %s)
               WHERE number = %s AND number > 0 AND NOT fenced
               AND (SELECT version FROM allomfree) <= %s RETURNING seen""",
            (drained, self._worker.own(), VERSION),
        )
        if row is None:
            raise Fenced(FENCED)
        return float(row[0])

    def retire(self) -> None:
        self.resign()
        self._delete_worker()
        self._worker.number = -1  # no worker has it: enlist again

    def workers(self) -> list[Worker]:
        rows = self._db.fetch(
            """SELECT number, name, started, seen, drained,
                      holder = number AND until > extract(epoch FROM clock_timestamp()),
                      fenced, received
               FROM worker CROSS JOIN lease WHERE number > 0 ORDER BY number"""
        )
        return [Worker(*row) for row in rows]

    # --- the leader ------------------------------------------------------------------------------

    def lead(self, seconds: float) -> int | None:
        with self._db.transaction():
            self._worker.take()
            # A leader that seals holds the lease's row: this does not wait for it.
            free = self._db.fetch_one(
                """SELECT 1 FROM lease WHERE holder = %s
                   OR until <= extract(epoch FROM clock_timestamp()) FOR UPDATE SKIP LOCKED""",
                (self._worker.own(),),
            )
            if free is None:
                return None
            ((epoch,),) = self._db.fetch(
                """UPDATE lease SET holder = %s, epoch = epoch + (holder <> %s)::integer,
                                    until = extract(epoch FROM clock_timestamp()) + %s
                   RETURNING epoch""",
                (self._worker.own(), self._worker.own(), seconds),
            )
        self.epoch = int(epoch)
        return self.epoch

    def resign(self) -> None:
        if self.epoch:
            self._db.execute(
                "UPDATE lease SET holder = 0, until = 0 WHERE holder = %s AND epoch = %s",
                (self._worker.number, self.epoch),
            )
        self.epoch = 0

    def fence(self, silent_seconds: float) -> list[Worker]:
        with self._leading():
            silent = self._db.fetch(
                """SELECT number FROM worker WHERE number > 0 AND number <> %s AND NOT fenced
                   AND seen < extract(epoch FROM clock_timestamp()) - %s ORDER BY number""",
                (self._worker.own(), silent_seconds),
            )
            for (number,) in silent:  # one that stopped in the middle of a batch holds rows
                self._db.execute(
                    """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE application_name = %s AND usename = current_user
                       AND datname = current_database() AND state LIKE 'idle in transaction%%'""",
                    (_session(number),),
                )
            rows = self._db.fetch(
                """UPDATE worker SET fenced = true WHERE number = ANY(%s)
                   AND seen < extract(epoch FROM clock_timestamp()) - %s RETURNING number""",
                (bigints([number for (number,) in silent]), silent_seconds),
            )
            self._db.execute(
                """DELETE FROM worker
                   WHERE fenced AND seen < extract(epoch FROM clock_timestamp()) - %s""",
                (KEPT_SECONDS,),
            )
        shut_out = {number for (number,) in rows}
        return [worker for worker in self.workers() if worker.number in shut_out]

    def fresh_receipts(self) -> list[ReceiptBatch]:
        with self._leading():
            if self._read_epoch != self.epoch:
                self._db.execute("DELETE FROM receipt_feed")
                self._read_epoch, self._returned = self.epoch, []
                return []
            self._db.execute(
                "DELETE FROM receipt_feed WHERE sequence = ANY(%s)", (bigints(self._returned),)
            )
            rows = self._db.fetch(
                "SELECT sequence, kind, campaign, round, places FROM receipt_feed"
            )
        self._returned = [row[0] for row in rows]
        return receipt_batches(row[1:] for row in rows)

    def queue_answers(self, answers: Sequence[tuple[str, bytes]]) -> None:
        with self._db.transaction():
            for answer in answers:
                self._db.execute("INSERT INTO answer (topic, payload) VALUES (%s, %s)", answer)

    def queued_answers(self, limit: int) -> list[QueuedAnswer]:
        rows = self._db.fetch(
            "SELECT number, topic, payload FROM answer ORDER BY number LIMIT %s", (limit,)
        )
        return [QueuedAnswer(*row) for row in rows]

    def drop_answers(self, numbers: Sequence[int]) -> None:
        with self._leading():
            self._db.execute("DELETE FROM answer WHERE number = ANY(%s)", (bigints(numbers),))

    # --- moving from another engine --------------------------------------------------------------

    def take_over(self, contents: Callable[[], Iterable[Portion]]) -> dict[str, int]:
        """Copy all that another store holds in one transaction, and compare the copy before that
        ends; returns the number of rows by table.

        If something differs, or this database holds campaigns, nothing is changed.
        """
        with self._db.transaction(whole_tables=True):
            self._db.execute("UPDATE allomfree SET changes = changes + 1")
            if self._db.fetch_one("SELECT 1 FROM campaign LIMIT 1") is not None:
                raise CollectorError(
                    f"{self._db.address} holds campaigns already; nothing was changed. Name an "
                    "empty database"
                )
            for portion in contents():
                if portion.table == REPORT:
                    _copy_reports(self._db, portion.rows)
                else:
                    _copy_table(self._db, portion)
            return compare(contents(), _contents(self._db))


def _session(number: int) -> str:
    """The name under which the server shows a worker's connection."""
    return f"allomfree worker {number}"


def _lead(number: int) -> sql.Composed:
    """The level of a report minus its round."""
    return sql.SQL("get_byte(body, 0) - {}").format(sql.Literal(number))


_COUNT_DEVICES: Final = f"""
    INSERT INTO device
    SELECT %s, device, attribute, (attribute = ANY(%s::smallint[]))::integer,
           (attribute = ANY(%s::smallint[]))::integer, {{lead}}, {{latest}}
    FROM {{reports}}
    ON CONFLICT (campaign, device) DO UPDATE SET {COUNT_AGAIN}
    WHERE device.attribute = excluded.attribute"""  # noqa: S608 - a text of ours
_LATEST: Final = """
    SELECT r.attribute, r.body, d.latest FROM {reports} r
    LEFT JOIN device d ON d.campaign = %s AND d.device = r.device
    WHERE d.attribute IS DISTINCT FROM %s"""
_TAKE_OUT: Final = """
    DELETE FROM {reports} r USING device d
    WHERE d.campaign = %s AND d.device = r.device AND d.attribute <> %s
    AND (d.attribute <> r.attribute OR d.rounds + d.unreleased >= %s OR {lead} > d.lead)
    RETURNING CASE WHEN d.attribute <> r.attribute THEN 'attribute_changed'
                   WHEN d.rounds + d.unreleased >= %s THEN 'too_many' ELSE 'bad_level' END,
              r.device, r.attribute, r.place, r.body"""
# A device that was forgotten while the round was being sealed is counted under a random number.
_COUNT_FORGOTTEN: Final = """
    INSERT INTO device (campaign, device, attribute, rounds, unreleased)
    SELECT %s, -1 - floor(random() * 9e18)::bigint, r.attribute,
           (r.attribute = ANY(%s::smallint[]))::integer,
           (r.attribute = ANY(%s::smallint[]))::integer
    FROM {reports} r JOIN device d USING (device)
    WHERE d.campaign = %s AND d.attribute = %s"""


# --- copying from another engine, and reading it again -------------------------------------------

PER_WORKER: Final = ("tally", "outcome", "outcome_total")


def _copy_table(db: Connection, portion: Portion) -> None:
    columns, _ = TABLES[portion.table]
    names, more = [*columns], tuple[int, ...]()
    if portion.table in PER_WORKER:
        names, more = [*columns, "worker"], (0,)
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(portion.table), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    db.copy(query, ((*row, *more) for row in portion.rows))


def _copy_reports(db: Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Every open round gets its table, also one whose reports were all withdrawn."""
    wanted = db.fetch(
        """SELECT DISTINCT campaign, round FROM tally t WHERE NOT EXISTS
               (SELECT FROM round r WHERE r.campaign = t.campaign AND r.number >= t.round)"""
    )
    for key in wanted:
        make_table(db, *key)
    for key, members in groupby(rows, key=itemgetter(0, 1)):
        reports = reports_of(*key)
        query = sql.SQL("COPY {} (device, attribute, place, body) FROM STDIN").format(reports)
        db.copy(query, ((d, a, page * TAGS + tag, body) for _, _, d, a, page, tag, body in members))


def _contents(db: Connection) -> Iterator[Portion]:
    """What was copied, as it was given: texts in the order of their bytes, whatever the database's
    language is."""
    for table in MOVED:
        columns, keys = TABLES[table]
        order = [
            sql.Identifier(column)
            + sql.SQL(' COLLATE "C"' if column == "name" or table == "revoked" else "")
            for column in columns[:keys]
        ]
        query = sql.SQL("SELECT {} FROM {} {} ORDER BY {}").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.Identifier(table),
            sql.SQL("WHERE sealed IS NOT NULL" if table == "round" else ""),
            sql.SQL(", ").join(order),
        )
        yield Portion(table, db.stream(query, ()))
    yield Portion(REPORT, _reports(db))


def _reports(db: Connection) -> Iterator[tuple[Any, ...]]:
    rounds = db.fetch("SELECT campaign, number FROM round WHERE stored ORDER BY 1, 2")
    query = sql.SQL("SELECT device, attribute, place, body FROM {} ORDER BY device")
    for key in rounds:
        for device, attribute, place, body in db.stream(query.format(reports_of(*key)), ()):
            yield *key, device, attribute, *divmod(place, TAGS), body
