"""What both engines do alike.

Ordinary tables (campaigns, results, sums of rounds, revoked devices) are changed now and then, by
people and by the leader. `TableStore` reads and writes them through `Tables`, a few operations that
each engine has. Counting reports is each engine's own. Counts are stored as little-endian integers
of 64 bits.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from collector.errors import CollectorError, UnknownCampaign
from collector.records import (
    NO_ROUND,
    Campaign,
    Candidate,
    Counts,
    Refusal,
    RequestOutcome,
    RoundSum,
    Tally,
    UnpublishedResult,
    Withdrawal,
)
from protocol_spec import BodyFormat, Manifest, Mechanism, Outcome, Result, decode_result
from protocol_spec.programs.output import quoted, shown

Row = dict[str, Any]
Round = tuple[int, int]  # campaign, number
Place = tuple[int, int, Outcome]  # campaign, round, outcome: the key of an outcome counter
TallyKey = tuple[int, int, int]  # campaign, round, attribute

# Tables, their columns, and how many of these are the key.
TABLES: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "campaign": (("id", "name", "manifest", "opened", "closed"), 1),
    "signature": (("campaign", "signature"), 1),
    "revoked": (("device", "at"), 1),
    "round": (("campaign", "number", "sealed", "receipts_cleared"), 2),
    "device": (("campaign", "device", "attribute", "rounds", "unreleased"), 2),
    "tally": (("campaign", "round", "attribute", "n", "counts"), 3),
    "outcome": (("campaign", "round", "name", "n"), 3),
    "outcome_total": (("campaign", "name", "n"), 2),
    "request": (("name", "n"), 1),
    "round_sum": (
        ("campaign", "attribute", "released", "first", "last", "rounds", "n", "counts"),
        3,
    ),
    "released_total": (("campaign", "attribute", "first", "last", "rounds", "n", "counts"), 2),
    "result": (("campaign", "attribute", "round", "message"), 3),
    "unpublished": (("campaign", "round", "attribute"), 3),
    "setting": (("name", "value"), 1),
}

KEPT_SECONDS: Final = 86_400.0  # how long a fenced worker is still listed
FENCED: Final = (
    "the other workers no longer wait for this one, because they did not hear from it for too long "
    "or its connection broke. Nothing of the batch was counted or acknowledged; it enlists again "
    "and takes the batch once more"
)
NOT_LEADING: Final = "another worker leads now; nothing was changed, and it does what is due"
_ROUND: Final = itemgetter(0, 1)  # of a `Candidate`
_TALLY: Final = itemgetter(0, 1, 3)
_BODY: Final = itemgetter(6)


# --- ordinary tables -----------------------------------------------------------------------------


class Tables(Protocol):
    """Operations on the tables named in `TABLES`.

    Conditions are columns and their values; a `range` stands for all values in it. SQL is what both
    engines understand, with `?` for each value.
    """

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


class TableStore(ABC):
    """The part of a store that is the same with every engine."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._campaigns: dict[int, Campaign] = {}

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """All that is written inside is durable afterwards, or none of it is."""

    @abstractmethod
    def _changing(self) -> AbstractContextManager[None]:
        """A transaction that other processes notice by `changed_elsewhere`."""

    @abstractmethod
    def _leading(self, *, whole_tables: bool = False) -> AbstractContextManager[None]:
        """A transaction of the leader; raises `NotLeading` if another worker leads (W2).

        `whole_tables`: its statements read many rows of a table, and not a few by their keys.
        """

    @abstractmethod
    def _wipe(self) -> None:
        """Something was deleted that must not stay in a log."""

    # --- campaigns and devices -------------------------------------------------------------------

    def campaigns(self) -> list[Campaign]:
        """Every campaign, open and closed, oldest first. A manifest never changes: parsed once."""
        for row in self._tables.rows("campaign"):
            known = self._campaigns.get(row["id"])
            if known is None or known.closed != row["closed"]:
                manifest = Manifest.from_bytes(row["manifest"]) if known is None else known.manifest
                self._campaigns[row["id"]] = Campaign(
                    row["id"], manifest, row["opened"], row["closed"]
                )
        return [self._campaigns[key] for key in sorted(self._campaigns)]

    def campaign(self, name: str | None) -> Campaign:
        return find_campaign(self.campaigns(), name)

    def _known(self, campaign: int) -> Campaign:
        """A campaign by its number, also one that another process has just opened."""
        if campaign not in self._campaigns:
            self.campaigns()
        return self._campaigns[campaign]

    def open_campaign(self, manifest: Manifest, at: int, signature: bytes = b"") -> Campaign:
        with self._changing():
            known = {row["name"]: row for row in self._tables.rows("campaign")}
            row = known.get(manifest.campaign)
            if row is None:
                row = {
                    "id": max((each["id"] for each in known.values()), default=0) + 1,
                    "name": manifest.campaign,
                    "manifest": manifest.to_bytes(),
                    "opened": at,
                    "closed": None,
                }
                self._tables.add("campaign", row)
            require_same(row["manifest"], manifest)
            if signature:
                self._tables.put("signature", {"campaign": row["id"], "signature": signature})
        return self.campaign(manifest.campaign)

    def close_campaign(self, campaign: Campaign, at: int) -> None:
        with self._changing():
            for row in list(self._tables.rows("campaign", {"id": campaign.id})):
                if row["closed"] is None:
                    self._tables.update("campaign", {"id": campaign.id}, {"closed": at})

    def signature(self, campaign: int) -> bytes:
        found = [row["signature"] for row in self._tables.rows("signature", {"campaign": campaign})]
        return found[0] if found else b""

    def revoke(self, device: str, at: int) -> None:
        with self._changing():
            self._tables.add("revoked", {"device": device, "at": at})

    def reinstate(self, device: str) -> None:
        with self._changing():
            self._tables.delete("revoked", {"device": device})

    def revoked(self) -> frozenset[str]:
        return frozenset(row["device"] for row in self._tables.rows("revoked"))

    # --- counts ----------------------------------------------------------------------------------

    def received(self) -> int:
        return sum(row["n"] for row in self._tables.rows("outcome_total"))

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        asked = {"campaign": campaign, "round": number}
        where = {column: value for column, value in asked.items() if value is not None}
        counted: Counter[str] = Counter()
        for row in self._tables.rows("outcome_total" if number is None else "outcome", where):
            counted[row["name"]] += row["n"]
        return {Outcome(name): n for name, n in counted.items()}

    def requests(self) -> dict[RequestOutcome, int]:
        return {RequestOutcome(row["name"]): row["n"] for row in self._tables.rows("request")}

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round; a row for each worker is added up."""
        total: dict[int, Tally] = {}
        for row in self._tables.rows("tally", {"campaign": campaign, "round": number}):
            tally, old = read_tally(row["n"], row["counts"]), total.get(row["attribute"])
            if old is not None:
                tally = Tally(old.n + tally.n, old.counts + tally.counts)
            total[row["attribute"]] = tally
        return total

    # --- rounds ----------------------------------------------------------------------------------

    def released(self, campaign: int, attribute: int) -> RoundSum | None:
        return self.find_sum("released_total", {"campaign": campaign, "attribute": attribute})

    def unreleased(self, campaign: int, attribute: int) -> RoundSum | None:
        key = {"campaign": campaign, "attribute": attribute, "released": False}
        return self.find_sum("round_sum", key)

    def find_sum(self, table: str, key: Mapping[str, object]) -> RoundSum | None:
        """Rounds that are kept together."""
        for row in self._tables.rows(table, key):
            tally = read_tally(row["n"], row["counts"])
            return RoundSum(row["first"], row["last"], row["rounds"], tally)
        return None

    def participation(
        self, campaign: int, attribute: int, *, released: bool = True
    ) -> tuple[list[int], list[int]]:
        rows = self._tables.query(
            _PARTICIPATION_RELEASED if released else _PARTICIPATION_UNRELEASED,
            (campaign, attribute),
        )
        return [rounds for rounds, _ in rows], [devices for _, devices in rows]

    def drop_devices(self, campaign: int) -> bool:
        with self._leading(whole_tables=True):
            if not list(self._tables.rows("device", {"campaign": campaign}, limit=1)):
                return False
            self._tables.delete("device", {"campaign": campaign})
        self._wipe()
        return True

    def drop_unreleased(self, campaign: int) -> bool:
        where = {"campaign": campaign, "released": False}
        with self._leading(whole_tables=True):
            if not list(self._tables.rows("round_sum", where, limit=1)):
                return False
            self.delete_unreleased(campaign)
        self._wipe()
        return True

    def delete_unreleased(self, campaign: int) -> None:
        """Inside a transaction: delete all that was not released of a campaign."""
        self._tables.delete("round_sum", {"campaign": campaign, "released": False})
        self._tables.query(
            "UPDATE device SET unreleased = 0 WHERE campaign = ? AND unreleased > 0", (campaign,)
        )

    # --- results and receipts at the broker ------------------------------------------------------

    def results(
        self, campaign: int, attribute: int | None = None, rounds: range | None = None
    ) -> list[Result]:
        asked = {"campaign": campaign, "attribute": attribute, "round": rounds}
        where = {column: value for column, value in asked.items() if value is not None}
        return [read_result(row["message"]) for row in self._tables.rows("result", where)]

    def unpublished(self, limit: int = 100) -> list[UnpublishedResult]:
        # SQLite keeps the order of a CROSS JOIN: it reads as many results as it returns.
        rows = self._tables.query(
            """SELECT u.campaign, u.attribute, u.round, r.message
               FROM unpublished u CROSS JOIN result r
               WHERE r.campaign = u.campaign AND r.attribute = u.attribute AND r.round = u.round
               ORDER BY u.campaign, u.round, u.attribute LIMIT ?""",
            (limit,),
        )
        return [UnpublishedResult(*row) for row in rows]

    def mark_published(self, result: UnpublishedResult) -> None:
        key = {
            "campaign": result.campaign,
            "attribute": result.attribute,
            "round": result.round,
        }
        with self._leading():
            for row in list(self._tables.rows("result", key)):
                if row["message"] == result.message:
                    self._tables.delete("unpublished", key)

    def publish_again(self) -> None:
        with self._leading(whole_tables=True):
            self._tables.query(
                """INSERT INTO unpublished SELECT campaign, round, attribute FROM result
                   WHERE true ON CONFLICT DO NOTHING""",
                (),
            )

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        with self._leading():
            self._tables.update(
                "round", {"campaign": campaign, "number": number}, {"receipts_cleared": True}
            )

    # --- what all workers agree on ---------------------------------------------------------------

    def leader_session(self) -> str:
        return self._agree("leader session", secrets.token_hex(16).encode()).decode()

    def agree_on_key(self, fingerprint: bytes) -> bytes:
        return self._agree("device key", fingerprint)

    def _agree(self, name: str, value: bytes) -> bytes:
        """The value that was given first."""
        if value:
            with self._transaction():
                self._tables.add("setting", {"name": name, "value": value})
        found = [row["value"] for row in self._tables.rows("setting", {"name": name})]
        return bytes(found[0]) if found else b""


_PARTICIPATION_RELEASED: Final = """SELECT rounds, count(*) FROM device
    WHERE campaign = ? AND attribute = ? AND rounds > 0 GROUP BY rounds ORDER BY rounds"""
_PARTICIPATION_UNRELEASED: Final = """SELECT unreleased, count(*) FROM device
    WHERE campaign = ? AND attribute = ? AND unreleased > 0 GROUP BY unreleased
    ORDER BY unreleased"""


# --- sealing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sealing:
    """A round while it is being sealed, inside one transaction: all of it is kept, or nothing.

    `tallies` and `outcomes` are its final counts. `count_devices` is the engine's part of
    `end_reports`.
    """

    tallies: Mapping[int, Tally]
    outcomes: Mapping[Outcome, int]
    campaign: Campaign
    number: int
    store: TableStore
    tables: Tables
    count_devices: Callable[[Sequence[int], Sequence[int]], None]

    def end_reports(self, released: Set[int], set_aside: Set[int]) -> None:
        """Count the round for each device that took part in it, and delete its reports.

        It counts as released for devices of the first attributes, whose counts are added to what
        was released, and as unreleased for those of the second; other devices are only remembered.
        """
        self.count_devices(sorted(released), sorted(set_aside))
        for attribute in released:
            self._add("released_total", self._key(attribute), self._alone(attribute))

    def set_aside(self, attribute: int) -> None:
        """Add the round's counts to the unreleased ones; of the round itself n stays."""
        self._add("round_sum", self._key(attribute, released=False), self._alone(attribute))
        self.erase(attribute)

    def erase(self, attribute: int) -> None:
        """Delete the round's counts; n stays."""
        self.tables.update("tally", {**self._key(attribute), "round": self.number}, {"counts": b""})

    def release(self, attribute: int) -> None:
        """Release all that was unreleased, for devices and counts alike."""
        rounds = self.store.unreleased(self.campaign.id, attribute)
        if rounds is not None:
            self._add("round_sum", self._key(attribute, released=True), rounds)
            self._add("released_total", self._key(attribute), rounds)
        self.tables.delete("round_sum", self._key(attribute, released=False))
        self.tables.query(
            """UPDATE device SET rounds = rounds + unreleased, unreleased = 0
               WHERE campaign = ? AND attribute = ? AND unreleased > 0""",
            (self.campaign.id, attribute),
        )

    def drop_unreleased(self) -> None:
        """Delete what was not released of any attribute: no further round can be added to it."""
        self.store.delete_unreleased(self.campaign.id)

    def write(self, results: Sequence[Result], number: int) -> None:
        """Store results of the round, or under `POOLED`, to be published."""
        names = [attribute.name for attribute in self.campaign.manifest.attributes]
        for result in results:
            key: Row = {**self._key(names.index(result.attribute)), "round": number}
            self.tables.put("result", {**key, "message": result.encode()})
            self.tables.add("unpublished", key)

    def _key(self, attribute: int, **more: bool) -> dict[str, object]:
        return {"campaign": self.campaign.id, "attribute": attribute, **more}

    def _alone(self, attribute: int) -> RoundSum:
        return RoundSum(self.number, self.number, 1, self.tallies[attribute])

    def _add(self, table: str, key: Mapping[str, object], rounds: RoundSum) -> None:
        known = self.store.find_sum(table, key)
        both = together([known, rounds] if known else [rounds])
        self.tables.put(
            table,
            {
                **key,
                "first": both.first,
                "last": both.last,
                "rounds": both.rounds,
                "n": both.tally.n,
                "counts": stored_counts(both.tally.counts),
            },
        )


def together(parts: Sequence[RoundSum]) -> RoundSum:
    """Several rounds of one attribute, added up."""
    return RoundSum(
        min(part.first for part in parts),
        max(part.last for part in parts),
        sum(part.rounds for part in parts),
        Tally(
            sum(part.tally.n for part in parts),
            np.sum([part.tally.counts for part in parts], axis=0, dtype=np.int64),
        ),
    )


def read_tally(n: int, counts: bytes) -> Tally:
    return Tally(n, np.frombuffer(counts, dtype="<i8").astype(np.int64))


def stored_counts(counts: Counts) -> bytes:
    return counts.astype("<i8").tobytes()


def read_result(message: bytes) -> Result:
    """A stored result; one that does not decode was not stored by us."""
    result = decode_result(message)
    if not isinstance(result, Result):
        raise AssertionError("a stored result does not decode")
    return result


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


def bodies_by_tally(reports: Iterable[Candidate]) -> dict[TallyKey, list[bytes]]:
    """The bodies to add to each tally."""
    reports = list(reports)
    keys: list[TallyKey] = list(map(_TALLY, reports))
    if len(set(keys)) == 1:  # nearly always
        return {keys[0]: list(map(_BODY, reports))}
    groups: dict[TallyKey, list[bytes]] = defaultdict(list)
    for key, c in zip(keys, reports):
        groups[key].append(c.body)
    return groups


def count_bodies(bodies: Sequence[bytes], form: BodyFormat) -> Counts:
    """How many of these reports support each value."""
    table = np.frombuffer(b"".join(bodies), dtype=np.uint8).reshape(len(bodies), form.length)
    if form.unary:
        bits: Counts = np.unpackbits(table, axis=1, count=form.k).sum(axis=0, dtype=np.int64)
        return bits
    values = np.zeros(len(bodies), dtype=np.int64)
    for column in range(form.length):
        values = values << 8 | table[:, column]
    counts: Counts = np.bincount(values, minlength=form.k).astype(np.int64)
    return counts


def count_reports(bodies: Sequence[bytes], way: Mechanism) -> Counts:
    """What these reports add to a tally: how many support each value.

    Where a way has several channels, a body begins with the number of its channel, and the row is
    the number of reports and then the counts, channel after channel.
    """
    if len(way.channels) == 1:
        return count_bodies(bodies, way.counted)
    rows = np.zeros((len(way.channels), way.k + 1), dtype=np.int64)
    for channel in {body[0] for body in bodies}:
        mine = [body[1:] for body in bodies if body[0] == channel]
        rows[channel] = len(mine), *count_bodies(mine, way.counted)
    return rows.ravel()


def count_outcomes(
    candidates: Sequence[Candidate], outcomes: Sequence[Outcome], refusals: Sequence[Refusal]
) -> Counter[Place]:
    """How much each counter rises for a batch.

    A late report is not counted at its round: nothing of a sealed round changes, its counters
    included.
    """
    counted: Counter[Place] = Counter()
    if outcomes.count(Outcome.ACCEPTED) == len(outcomes):  # nearly always
        for (campaign, number), n in Counter(map(_ROUND, candidates)).items():
            counted[campaign, number, Outcome.ACCEPTED] = n
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
    if stored == manifest.to_bytes():
        return
    raise CollectorError(
        f"{manifest.campaign} is the name of a campaign that was opened before, with digest "
        f"{hashlib.sha256(stored).hexdigest()}; this manifest's is {manifest.digest.hex()}. "
        "Nothing was opened or changed. Change something in the manifest, and its name changes too"
    )


def find_campaign(known: Sequence[Campaign], name: str | None) -> Campaign:
    """The campaign with that name or the only one that begins so; without a name the only one."""
    found = [c for c in known if name is None or c.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(c.name for c in known) or "none"
    if name is None and found:
        raise UnknownCampaign(f"there are several campaigns; name one of them: {names}")
    if name is None:
        raise UnknownCampaign("there is no campaign here; open one first")
    what = (
        f"{quoted(name)} matches several campaigns" if found else f"unknown campaign {quoted(name)}"
    )
    raise UnknownCampaign(f"{what}; known campaigns: {shown(names, 600)}")


# --- moving to another engine --------------------------------------------------------------------

REPORT: Final = "report"  # its rows are those of `records.Candidate`, round by round
MOVED: Final = tuple(table for table in TABLES if table != "setting")


class Portion(NamedTuple):
    """The rows of one table, by key; they can be read once."""

    table: str
    rows: Iterable[tuple[Any, ...]]


def compare(left: Iterable[Portion], right: Iterable[Portion]) -> dict[str, int]:
    """How many rows each table has; raises `CollectorError` if a row differs in a single byte."""
    counted = {}
    for ours, theirs in zip(left, right, strict=True):
        number = 0
        for row, other in zip_longest(ours.rows, theirs.rows):
            if row is None or other is None or tuple(row) != tuple(other):
                raise CollectorError(
                    f"the copy differs from the original in row {number} of table {ours.table}; "
                    "the copy was removed, and the original is as it was. Please report this"
                )
            number += 1
        counted[ours.table] = number
    return counted
