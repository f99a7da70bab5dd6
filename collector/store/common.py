"""What both engines use: names of tables, counting the reports of a batch, and moving a store.

Counts are stored as little-endian integers of 64 bits.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from collector.errors import CollectorError, UnknownCampaign
from collector.records import (
    FORGOTTEN,
    NO_ROUND,
    Campaign,
    Candidate,
    Counts,
    Refusal,
    RequestOutcome,
    Tally,
    Withdrawal,
)
from protocol_spec import BodyFormat, Manifest, Mechanism, Outcome
from protocol_spec.programs.output import quoted, shown

Row = dict[str, Any]
Round = tuple[int, int]  # campaign, number
OutcomeKey = tuple[int, int, Outcome]  # campaign, round, outcome: the key of an outcome counter
TallyKey = tuple[int, int, int]  # campaign, round, attribute


# --- tables --------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A table that both engines have, its columns and types as PostgreSQL names them."""

    declared: str
    keys: int  # how many of its first columns are the key
    hot: bool = False  # changed with every batch, or as large as the fleet
    per_worker: bool = False  # if several share it: a row for each, so that none waits for another

    @property
    def columns(self) -> list[str]:
        return [column.split()[0] for column in self.declared.split(", ")]

    @property
    def key(self) -> list[str]:
        return self.columns[: self.keys]

    def ddl(self, name: str, *, shared: bool) -> str:
        """The statement that makes it."""
        columns = [
            column if column.endswith(" NULL") else f"{column} NOT NULL"
            for column in self.declared.split(", ")
        ]
        key = self.key
        if shared and self.per_worker:
            columns, key = [*columns, "worker bigint NOT NULL"], [*key, "worker"]
        return f"CREATE TABLE {name} ({', '.join(columns)}, PRIMARY KEY ({', '.join(key)}))"


# Times are Unix seconds; counts are little-endian 64-bit integers, as `records.Tally` has them.
# Other tools may read `result`, `tally` and `outcome`, see docs/results.md and docs/postgresql.md.
TABLES: Final = {
    "campaign": Table(
        "id integer, name text UNIQUE, manifest bytea, opened bigint, closed bigint NULL", 1
    ),
    "signature": Table("campaign integer, signature bytea", 1),
    "revoked": Table("device text, at bigint", 1),
    # Public labels that devices got when they were enrolled; never changed.
    "label": Table("device text, name text, value text", 2),
    "setting": Table("name text, value bytea", 1),
    "request": Table("name text, n bigint", 1),
    "round": Table(
        "campaign integer, number integer, sealed bigint NULL, "
        "receipts_cleared boolean DEFAULT false",
        2,
    ),
    # Devices of sealed rounds: in how many rounds that were released, in how many others, and in
    # how many that their group was released in. `device` is a keyed hash; the key is not in the
    # database. Where devices are counted by their latest reports (nested), that report and its
    # level minus its round. `attribute` is here, as for reports and tallies, a cell (`Campaign`).
    "device": Table(
        "campaign integer, device bigint, attribute smallint, rounds integer DEFAULT 0, "
        "unreleased integer DEFAULT 0, grouped integer DEFAULT 0, lead integer DEFAULT 0, "
        "latest bytea DEFAULT ''",
        2,
        hot=True,
    ),
    "tally": Table(
        "campaign integer, round integer, attribute smallint, n bigint, counts bytea",
        3,
        hot=True,
        per_worker=True,
    ),
    "outcome": Table(
        "campaign integer, round integer, name text, n bigint", 3, hot=True, per_worker=True
    ),
    # Running totals, so that nothing reads all earlier rounds (F6).
    "outcome_total": Table("campaign integer, name text, n bigint", 2, hot=True, per_worker=True),
    # Rounds that are not released by themselves are kept only together.
    "round_sum": Table(
        "campaign integer, attribute smallint, released boolean, first integer, last integer, "
        "rounds integer, n bigint, counts bytea",
        3,
    ),
    "released_total": Table(
        "campaign integer, attribute smallint, first integer, last integer, rounds integer, "
        "n bigint, counts bytea",
        2,
    ),
    # Results, and which of them no broker has taken yet.
    "result": Table("campaign integer, attribute smallint, round integer, message bytea", 3),
    "group_result": Table("campaign integer, attribute smallint, round integer, message bytea", 3),
    "unpublished": Table("campaign integer, round integer, attribute smallint", 3),
}
# Workers, who leads, and what the leader has to put on receipt pages and to answer. With a file
# they are in memory: its only worker needs them no longer than it runs. Worker 0 stands for stores
# that never enlisted, and for sums of sealed rounds; a place is page * 2^32 + tag, big-endian.
WORKER_TABLES: Final = """
    CREATE TABLE worker (
        number bigserial PRIMARY KEY, name text NOT NULL, started double precision NOT NULL,
        seen double precision NOT NULL, drained double precision NOT NULL DEFAULT 0,
        fenced boolean NOT NULL DEFAULT false, received bigint NOT NULL DEFAULT 0
    );
    INSERT INTO worker (number, name, started, seen) VALUES (0, 'nobody', 0, 0);
    CREATE TABLE lease (
        holder bigint NOT NULL, epoch bigint NOT NULL, until double precision NOT NULL
    );
    INSERT INTO lease VALUES (0, 0, 0);
    CREATE TABLE receipt_feed (
        sequence bigserial PRIMARY KEY, worker bigint NOT NULL, kind smallint NOT NULL,
        campaign integer NOT NULL, round integer NOT NULL, places bytea NOT NULL
    );
    CREATE TABLE answer (number bigserial PRIMARY KEY, topic text NOT NULL, payload bytea NOT NULL);
"""
INDEX: Final = (
    "CREATE INDEX round_with_receipts ON round (campaign, number) "
    "WHERE sealed IS NOT NULL AND NOT receipts_cleared"
)

TAGS: Final = 2**32  # a place on receipt pages is a page times this, plus a tag
MOST_ANSWERS: Final = 4000  # that wait: a device waits for its answer only for seconds
KEPT_SECONDS: Final = 86_400.0  # how long a fenced worker is still listed
FENCED: Final = (
    "the other workers no longer wait for this one, because they did not hear from it for too long "
    "or its connection broke. Nothing of the batch was counted or acknowledged; it enlists again "
    "and takes the batch once more"
)
NOT_LEADING: Final = "another worker leads now; nothing was changed, and it does what is due"
_ROUND: Final = itemgetter(0, 1)  # of a `Candidate`
_ATTRIBUTE: Final = itemgetter(3)
_BODY: Final = itemgetter(6)


class Tables(Protocol):
    """Operations on the tables named in `TABLES`, which people and the leader change now and then.

    Conditions are columns and their values; a `range` stands for all values in it. SQL is what both
    engines understand, with `?` for each value.
    """

    lost: int  # how often the connection broke

    def rows(
        self, table: str, where: Mapping[str, object] = ..., *, limit: int | None = None
    ) -> Iterator[Row]:
        """Rows that match, ordered by their key."""

    def add(self, table: str, row: Row) -> None:
        """Insert a row, unless its key is there."""

    def put(self, table: str, row: Row) -> None:
        """Insert a row, or replace the one with its key."""

    def update(self, table: str, key: Mapping[str, object], values: Mapping[str, object]) -> None:
        """Change some columns of one row."""

    def delete(self, table: str, where: Mapping[str, object]) -> None:
        """Delete the rows that match."""

    def query(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Run one statement; its rows, if it has any."""

    def stream(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement, of which there may be many."""


def condition(where: Mapping[str, object]) -> tuple[str, list[object]]:
    """SQL for `Tables`' conditions, and its values."""
    parts, values = ["true"], list[object]()
    for column, value in where.items():
        if isinstance(value, range):
            parts.append(f"{column} >= ? AND {column} < ?")
            values += [value.start, value.stop]
        else:
            parts.append(f"{column} = ?")
            values.append(value)
    return " AND ".join(parts), values


Statement = tuple[str, tuple[object, ...]]  # SQL that both engines understand, and its values


def insertion(table: str, row: Row, then: str) -> Statement:
    marks = ", ".join("?" * len(row))
    columns = ", ".join(row)
    sql = f"INSERT INTO {table} ({columns}) VALUES ({marks}) {then}"  # noqa: S608 - names of ours
    return sql, (*row.values(),)


def replacement(table: str, key: Row, values: Row) -> Statement:
    """Insert a row, or change the one with its key."""
    changed = ", ".join(f"{column} = excluded.{column}" for column in values)
    then = f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed}"
    return insertion(table, key | values, then)


def increase(table: str, key: Row, n: int) -> Statement:
    """Add to the counter of a row, which is inserted if it is missing."""
    then = f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET n = {table}.n + excluded.n"
    return insertion(table, key | {"n": n}, then)


# --- counting ------------------------------------------------------------------------------------


def by_round(candidates: Sequence[Candidate]) -> Mapping[Round, Sequence[int]]:
    """Positions in a batch by campaign and round, in the order in which these appear."""
    keys: list[Round] = list(map(_ROUND, candidates))
    if len(set(keys)) == 1:  # nearly always
        return {keys[0]: range(len(keys))}
    rounds: dict[Round, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        rounds[key].append(i)
    return rounds


def of_rounds(candidates: Sequence[Candidate]) -> Iterator[tuple[Round, Sequence[Candidate]]]:
    """The candidates of each round."""
    for key, members in by_round(candidates).items():
        whole = len(members) == len(candidates)
        yield key, candidates if whole else [candidates[i] for i in members]


def bodies_by_tally(reports: Sequence[Candidate]) -> dict[TallyKey, list[bytes]]:
    """The bodies to add to each tally."""
    groups: dict[TallyKey, list[bytes]] = {}
    for key, mine in of_rounds(reports):
        attributes = set(map(_ATTRIBUTE, mine))
        if len(attributes) == 1:  # nearly always
            groups[(*key, attributes.pop())] = list(map(_BODY, mine))
        for attribute in attributes:
            groups[(*key, attribute)] = [c.body for c in mine if c.attribute == attribute]
    return groups


# --- what a device may report --------------------------------------------------------------------

ANY_NUMBER: Final = 2**31 - 1
UNKNOWN: Final = -2  # in place of the attribute of a device that has not reported


class Limits(NamedTuple):
    """What the mechanism of a campaign allows a device, by its earlier reports."""

    reports: int  # in how many rounds at most
    levels: bool  # reports have levels, and these rise by one a round at most


class Past(NamedTuple):
    """What is known of a device from other rounds.

    `lead` is the level of its latest report minus the round. It never rises: a device that reports
    in every round keeps it, until it is at the last level; one that misses a round loses one.
    """

    attribute: int = UNKNOWN
    reports: int = 0
    lead: int = ANY_NUMBER


Stored = tuple[int, bytes]  # attribute and body of a report


def limits_of(manifest: Manifest) -> Limits:
    rules = manifest.mechanisms[0].rules
    return Limits(manifest.rounds.each if rules.draws_rounds else ANY_NUMBER, rules.has_levels)


def highest_lead(bodies: Iterable[bytes], number: int, limits: Limits) -> int:
    """Of reports of a round: only devices with a smaller lead can be refused for it."""
    return max(body[0] for body in bodies) - number if limits.levels else -ANY_NUMBER


def judge(
    batch: Iterable[Candidate],
    limits: Limits,
    past: Mapping[int, Past],
    stored: Mapping[int, Stored],
    here: Mapping[tuple[int, int], list[int]],
) -> list[Outcome]:
    """Outcomes of reports of one open round, in order; the first of a device that may be counted
    is. By device, `past` is known from other rounds, and `stored` are reports of this one; `here`
    are the attributes under which a (campaign, device) was counted in other rounds of this batch.
    """
    taken, nobody, nowhere = dict(stored), Past(), list[int]()
    outcomes = []
    for c in batch:
        known, elsewhere = past.get(c.device, nobody), here.get((c.campaign, c.device), nowhere)
        if known.attribute == FORGOTTEN:
            outcome = Outcome.FORGOTTEN
        elif {known.attribute, *elsewhere} - {UNKNOWN, c.attribute}:
            outcome = Outcome.ATTRIBUTE_CHANGED
        elif c.device in taken:
            same = taken[c.device] == (c.attribute, c.body)
            outcome = Outcome.DUPLICATE if same else Outcome.CONFLICT
        elif known.reports + len(elsewhere) >= limits.reports:
            outcome = Outcome.TOO_MANY
        elif limits.levels and c.body[0] - c.round > known.lead:
            outcome = Outcome.BAD_LEVEL
        else:
            outcome = Outcome.ACCEPTED
            taken[c.device] = c.attribute, c.body
        outcomes.append(outcome)
    return outcomes


# Of the statement that counts a round for its devices: one that has a row. A device whose latest
# report is the same again has nothing that is not released.
COUNT_AGAIN: Final = """rounds = device.rounds + excluded.rounds,
    unreleased = device.unreleased + CASE
        WHEN length(excluded.latest) > 0 AND excluded.latest = device.latest THEN 0
        ELSE excluded.unreleased END,
    grouped = device.grouped + excluded.grouped,
    lead = excluded.lead, latest = excluded.latest"""


# --- counts --------------------------------------------------------------------------------------


def count_bodies(bodies: Sequence[bytes], body_format: BodyFormat) -> Counts:
    """How many of these reports support each value."""
    table = np.frombuffer(b"".join(bodies), dtype=np.uint8).reshape(len(bodies), body_format.length)
    if body_format.unary:
        bits: Counts = np.unpackbits(table, axis=1, count=body_format.k).sum(axis=0, dtype=np.int64)
        return bits
    values = np.zeros(len(bodies), dtype=np.int64)
    for column in range(body_format.length):
        values = values << 8 | table[:, column]
    counts: Counts = np.bincount(values, minlength=body_format.k).astype(np.int64)
    return counts


def count_reports(bodies: Sequence[bytes], mechanism: Mechanism) -> Counts:
    """What these reports add to a tally: how many support each value.

    Where a mechanism has several channels, a body begins with the number of its channel, and the
    row is the number of reports and then the counts, channel after channel.
    """
    if len(mechanism.channels) == 1:
        return count_bodies(bodies, mechanism.counted)
    rows = np.zeros((len(mechanism.channels), mechanism.k + 1), dtype=np.int64)
    for channel in {body[0] for body in bodies}:
        mine = [body[1:] for body in bodies if body[0] == channel]
        rows[channel] = len(mine), *count_bodies(mine, mechanism.counted)
    return rows.ravel()


def changed_tally(
    old: Tally | None, bodies: Sequence[bytes], sign: int, mechanism: Mechanism
) -> tuple[int, bytes]:
    """n and counts, as stored, of a tally to which reports are added or from which they go."""
    n, counts = sign * len(bodies), sign * count_reports(bodies, mechanism)
    if old is not None:
        n, counts = n + old.n, counts + old.counts
    return n, stored_counts(counts)


def read_tally(n: int, counts: bytes) -> Tally:
    return Tally(n, np.frombuffer(counts, dtype="<i8").astype(np.int64))


def stored_counts(counts: Counts) -> bytes:
    return counts.astype("<i8").tobytes()


def count_outcomes(
    candidates: Sequence[Candidate], outcomes: Sequence[Outcome], refusals: Sequence[Refusal]
) -> Counter[OutcomeKey]:
    """How much each counter rises for a batch.

    A late report is not counted at its round: nothing of a sealed round changes, its counters
    included.
    """
    counted: Counter[OutcomeKey] = Counter()
    if outcomes.count(Outcome.ACCEPTED) == len(outcomes):  # nearly always
        for key, members in by_round(candidates).items():
            counted[(*key, Outcome.ACCEPTED)] = len(members)
    else:
        counted.update(
            (c.campaign, NO_ROUND if o is Outcome.LATE else c.round, o)
            for c, o in zip(candidates, outcomes)
        )
    counted.update((r.campaign, r.round, r.outcome) for r in refusals)
    return counted


def count_requests(
    done: Sequence[Withdrawal], repeated: int, invalid: int
) -> dict[RequestOutcome, int]:
    """How much each counter rises for a batch of requests to be forgotten."""
    again = sum(withdrawal.repeated for withdrawal in done)
    counted = {
        RequestOutcome.DONE: len(done) - again,
        RequestOutcome.REPEATED: again + repeated,
        RequestOutcome.INVALID: invalid,
    }
    return {outcome: n for outcome, n in counted.items() if n}


# --- campaigns -----------------------------------------------------------------------------------


def require_same(stored: bytes, manifest: Manifest) -> None:
    """A name is only the beginning of a digest: the campaign opened first keeps it (P3)."""
    if stored != manifest.to_bytes():
        raise CollectorError(
            f"{manifest.campaign} is the name of a campaign that was opened before, with digest "
            f"{hashlib.sha256(stored).hexdigest()}; this manifest's is {manifest.digest.hex()}. "
            "Nothing was opened or changed. Change something in the manifest, and its name changes "
            "too"
        )


def find_campaign(known: Sequence[Campaign], name: str | None) -> Campaign:
    """The campaign with that name or the only one that begins so; without a name the only one."""
    found = [c for c in known if name is None or c.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(c.name for c in known) or "none"
    if name is not None:
        several = f"{quoted(name)} matches several campaigns"
        what = several if found else f"unknown campaign {quoted(name)}"
        raise UnknownCampaign(f"{what}; known campaigns: {shown(names, 600)}")
    if found:
        raise UnknownCampaign(f"there are several campaigns; name one of them: {names}")
    raise UnknownCampaign("there is no campaign here; open one first")


# --- moving to another engine --------------------------------------------------------------------

REPORT: Final = "report"  # its rows are those of `records.Candidate`, round by round
MOVED: Final = tuple(table for table in TABLES if table != "setting")


class Portion(NamedTuple):
    """The rows of one table; they can be read once."""

    table: str
    rows: Iterable[tuple[Any, ...]]
