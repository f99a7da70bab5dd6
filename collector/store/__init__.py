"""The collector's storage: `Store`, and an engine for each database.

    sqlite, sqlite_database         one file that one worker writes, and any number of readers
    postgres, postgres_connection   one database that several workers share
    common                          what both engines use

Claims that every engine must keep:
  I6   `commit` returns only when everything in the batch is durable
  I8   a (campaign, round, device) is counted at most once, by a unique key inside the transaction
  I9   a second report with other bits changes nothing: the first stays
  I10  once a round is sealed, nothing of it changes
  I11  a device's attribute in a campaign never changes
  I12  every message of a batch adds one to exactly one outcome counter
  A4   a device that was forgotten is not counted again in that campaign
  W1   a worker's number is never used again, and a fenced worker commits nothing more
  W2   at most one worker leads at any time of the database; its epoch only grows, and whatever only
       a leader may write fails under an old epoch, inside the transaction that would write it
  W3   time is the database's: the clocks of workers do not matter
Every write is atomic: it happens as a whole, or raises `StorageFailure` and changes nothing.

A worker is a service that enlisted. One worker at a time leads: it seals rounds and publishes for
all. A SQLite file has one worker, whose lease nobody contests; its clock is the machine's. The
same SQL serves both; a file keeps workers, lease and queues in memory.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import reduce
from itertools import islice
from operator import add, itemgetter
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.errors import Fenced, NotLeading
from collector.records import (
    FORGOTTEN,
    NO_COUNTS,
    Campaign,
    Candidate,
    Refusal,
    RequestOutcome,
    RoundSum,
    Tally,
    UnpublishedResult,
    Withdrawal,
)
from collector.store.common import (
    COUNT_AGAIN,
    FENCED,
    KEPT_SECONDS,
    MOST_ANSWERS,
    NOT_LEADING,
    TABLES,
    TAGS,
    Limits,
    OutcomeKey,
    Row,
    Statement,
    Tables,
    TallyKey,
    bodies_by_tally,
    changed_tally,
    count_reports,
    count_requests,
    find_campaign,
    increase,
    limits_of,
    of_rounds,
    read_tally,
    replacement,
    require_same,
    stored_counts,
)
from protocol_spec import Manifest, Outcome, Result, decode_result

Numbers = npt.NDArray[np.uint32]
Later = Callable[[], Iterable[tuple[Any, ...]]]  # rows of a query that may not be answered yet
FeedRow = tuple[int, int, int, bytes]  # kind, campaign, round, places as `feed_rows` writes them

CHUNK: Final = 20_000  # rows that are read at a time
NO_ATTRIBUTE: Final = -9
ROW: Final = "FOR NO KEY UPDATE"  # keeps others from changing it

_PAGE: Final = itemgetter(4)  # of a `Candidate`
_TAG: Final = itemgetter(5)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, as the others see it; times are the database's, in Unix seconds."""

    number: int
    name: str
    started: float
    seen: float  # its last sign of life, a beat or a batch
    drained: float  # all that the broker took for it before then is committed
    leads: bool
    fenced: bool
    received: int  # messages since it enlisted


WORKER: Final = (int, str, float, float, float, bool, bool, int)  # SQLite has no truth values


class QueuedAnswer(NamedTuple):
    """An answer to a device that the leader has to publish."""

    number: int
    topic: str
    payload: bytes


class Store(ABC):
    """What the collector asks of its storage. Only `data_dir` chooses the engine.

    While a worker is enlisted, these need the lease, and raise `NotLeading` without it: `sealing`,
    `mark_published`, `publish_again`, `mark_receipts_cleared`, `drop_devices`, `drop_unreleased`,
    `fence`, `fresh_receipts` and `drop_answers`. A store that never enlisted may do all of this
    while nobody leads.

    While `commit` waits for the database it may call `meanwhile`, which must not use the store.
    """

    _clock: ClassVar = "now()"  # SQL for the time, seconds since 1970
    _level: ClassVar[str]  # SQL for the level in a body, counted from 0
    _current: ClassVar = ""  # SQL that holds while no newer version changed the tables

    def __init__(self, tables: Tables) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        self.epoch = 0
        self._tables = tables
        self._campaigns: dict[int, Campaign] = {}
        self._number: int | None = None  # of this worker; None: never enlisted
        self._lost = tables.lost  # when it enlisted
        self._read_epoch = 0  # in which receipts were last read
        self._returned: list[int] = []  # of these, those that were returned

    # --- transactions ----------------------------------------------------------------------------

    @abstractmethod
    def _transaction(self, *, whole_tables: bool = False) -> AbstractContextManager[None]:
        """All that is written inside is durable afterwards, or none of it is.

        `whole_tables`: its statements read many rows of a table, and not a few by their keys.
        """

    @abstractmethod
    def _changing(self) -> AbstractContextManager[None]:
        """A transaction that other processes notice by `changed_elsewhere`."""

    @contextmanager
    def _leading(self, *, whole_tables: bool = False) -> Iterator[None]:
        """A transaction of the leader; raises `NotLeading` if another worker leads (W2). Nobody
        else can lead until it ends."""
        with self._transaction(whole_tables=whole_tables):
            self._check_leading()
            yield

    def _check_leading(self) -> None:
        held, values = f"until <= {self._clock}", tuple[int, ...]()
        if self._number is not None:
            held, values = "holder = ? AND epoch = ?", (self._own_number(), self.epoch)
        query = f"SELECT 1 FROM lease WHERE {held} {self._lock('FOR SHARE')}"  # noqa: S608
        if not self._tables.query(query, values):
            raise NotLeading(NOT_LEADING)

    def _lock(self, how: str) -> str:  # noqa: ARG002
        """What ends a SELECT that locks its rows; a transaction on a file locks all of it."""
        return ""

    @abstractmethod
    def _withdrawing(self) -> AbstractContextManager[None]:
        """A transaction between the batches of all workers."""

    @abstractmethod
    def wipe_log(self, *, deleted: bool = False) -> None:
        """Remove deleted reports from a log, as far as readers allow it now; `deleted`: something
        has just been deleted."""

    @abstractmethod
    def close(self) -> None: ...

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
        """One campaign by its name or the beginning of it; the only one when not named."""
        return find_campaign(self.campaigns(), name)

    def _known(self, campaign: int) -> Campaign:
        """A campaign by its number, also one that another process has just opened."""
        if campaign not in self._campaigns:
            self.campaigns()
        return self._campaigns[campaign]

    def open_campaign(self, manifest: Manifest, at: int, signature: bytes = b"") -> Campaign:
        """Add a campaign, with its operator's signature; opening it again changes nothing else.

        Raises `CollectorError`, and changes nothing, where another manifest has its name.
        """
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
        """Take no more reports; the first time counts."""
        with self._changing():
            self._tables.query(
                "UPDATE campaign SET closed = ? WHERE id = ? AND closed IS NULL", (at, campaign.id)
            )

    def signature(self, campaign: int) -> bytes:
        """The operator's signature of a campaign's manifest; empty where it has none."""
        found = [row["signature"] for row in self._tables.rows("signature", {"campaign": campaign})]
        return found[0] if found else b""

    def revoke(self, device: str, at: int) -> None:
        """Take no more reports from a device."""
        with self._changing():
            self._tables.add("revoked", {"device": device, "at": at})

    def reinstate(self, device: str) -> None:
        """Take a device's reports again."""
        with self._changing():
            self._tables.delete("revoked", {"device": device})

    def revoked(self) -> frozenset[str]:
        """Names of devices whose reports are no longer taken."""
        return frozenset(row["device"] for row in self._tables.rows("revoked"))

    def label(self, devices: Iterable[str], labels: Mapping[str, str]) -> None:
        """Keep the public labels of new devices; those of known ones stay as they are."""
        with self._changing():
            for device in devices:
                for name, value in labels.items():
                    self._tables.add("label", {"device": device, "name": name, "value": value})

    def labelled(self, name: str) -> dict[str, str]:
        """The value of a label by device, of those that have it."""
        rows = self._tables.query("SELECT device, value FROM label WHERE name = ?", (name,))
        return dict(rows)

    @abstractmethod
    def changed_elsewhere(self) -> int:
        """A number that changes when another process opened a campaign, revoked a device, ..."""

    # --- counting and forgetting -----------------------------------------------------------------

    @abstractmethod
    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch durably, in one transaction; the outcome of each candidate, in order."""

    def withdraw(
        self, asked: Sequence[tuple[int, int]], *, repeated: int = 0, invalid: int = 0
    ) -> list[Withdrawal]:
        """Forget devices, each a (campaign, device), in one transaction, and count the requests.

        Their reports leave every open round, and none of them is counted again: the device's
        number stays as that of a forgotten one until `drop_devices`. Sealed sums still include its
        reports, and their variance depends on how many reports one device sent: the number of
        rounds stays, under a random number that no device can have. What a device costs are its own
        rows (A2).

        `repeated` and `invalid` are further requests that are only counted.
        """
        with self._withdrawing():
            done = [self._withdraw(*each) for each in asked]
            gone = [report for each in done for report in each.reports]
            self._add_counts(gone, -1)
            self._feed(ReceiptKind.WITHDRAWN, gone)
            for outcome, n in count_requests(done, repeated, invalid).items():
                self._tables.query(*increase("request", {"name": str(outcome)}, n))
        self.wipe_log(deleted=not all(each.repeated for each in done))
        return done

    def _withdraw(self, campaign: int, device: int) -> Withdrawal:
        """The number of rounds stays under a random number, and the device's number stays without
        rounds."""
        has_latest = self._known(campaign).manifest.mechanisms[0].analysis.combined == "latest"
        if has_latest:
            self.lock_latest(campaign)
        known = self._mark_forgotten(campaign, device)
        if known is not None and known[0] == FORGOTTEN:
            return Withdrawal(campaign, device, (), repeated=True)
        reports = tuple(self._delete_reports(campaign, device))
        if known is not None:
            key: Row = {"campaign": campaign, "device": device}
            if has_latest:
                self._uncount_latest(campaign, *known)
                self._tables.delete("device", key)
            else:
                self._tables.query(
                    "UPDATE device SET device = ? WHERE campaign = ? AND device = ?",
                    (-1 - secrets.randbits(63), campaign, device),
                )
            self._mark_forgotten(campaign, device)
        return Withdrawal(campaign, device, reports, repeated=False)

    def _mark_forgotten(self, campaign: int, device: int) -> tuple[int, bytes] | None:
        """Mark a device, unless it has a row: then attribute and latest report there are returned.
        If the row is just being made, because a round with it is sealed, this waits for that."""
        added = self._tables.query(
            """INSERT INTO device (campaign, device, attribute) VALUES (?, ?, ?)
               ON CONFLICT DO NOTHING RETURNING attribute""",
            (campaign, device, FORGOTTEN),
        )
        rows = added or self._tables.query(
            f"""SELECT attribute, latest FROM device
                WHERE campaign = ? AND device = ? {self._lock(ROW)}""",  # noqa: S608
            (campaign, device),
        )
        return None if added or not rows else rows[0]

    @abstractmethod
    def _delete_reports(self, campaign: int, device: int) -> Iterable[Candidate]:
        """Delete the reports of a device from open rounds, and return them."""

    def _own(self) -> Row:
        """What the key of this worker's rows has besides, where each worker has its own."""
        return {}

    @abstractmethod
    def _ask_tallies(self, keys: Collection[TallyKey]) -> Later:
        """This worker's rows, which nobody else changes; they may be read later."""

    def _add_counts(self, reports: Sequence[Candidate], sign: int) -> None:
        """Add reports to their tallies, or subtract them."""
        tallies = bodies_by_tally(reports)
        self._write_counts(tallies, sign, self._ask_tallies(tallies.keys()))

    def _write_counts(
        self, tallies: Mapping[TallyKey, Sequence[bytes]], sign: int, asked: Later
    ) -> None:
        old = {(c, r, a): read_tally(n, counts) for c, r, a, n, counts in asked()}
        for key, bodies in tallies.items():
            mechanism = self._known(key[0]).mechanism(key[2])
            n, counts = changed_tally(old.get(key), bodies, sign, mechanism)
            row = dict(zip(TABLES["tally"].key, key)) | self._own()
            self._tables.query(*replacement("tally", row, {"n": n, "counts": counts}))

    def _add_outcomes(self, counted: Mapping[OutcomeKey, int]) -> None:
        """Add to outcome counters, those of rounds and the totals."""
        totals: Counter[tuple[int, str]] = Counter()
        for (campaign, number, outcome), n in counted.items():
            key: Row = {"campaign": campaign, "round": number, "name": str(outcome), **self._own()}
            self._tables.query(*increase("outcome", key, n))
            totals[campaign, str(outcome)] += n
        for (campaign, name), n in totals.items():
            key = {"campaign": campaign, "name": name, **self._own()}
            self._tables.query(*increase("outcome_total", key, n))

    def _feed(self, kind: ReceiptKind, reports: Sequence[Candidate]) -> None:
        """Keep, for `fresh_receipts`, what happened to these in the current transaction."""
        self._feed_rows(feed_rows(kind, reports))

    def _feed_rows(self, rows: Iterable[FeedRow]) -> None:
        """Without workers nobody reads them."""
        for row in rows if self._number is not None else ():
            self._tables.query(
                """INSERT INTO receipt_feed (worker, kind, campaign, round, places)
                   VALUES (?, ?, ?, ?, ?)""",
                (self._number, *row),
            )

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part, at the end of the manifest's retention."""
        where = {"campaign": campaign}
        return self._drop("device", where, lambda: self._tables.delete("device", where))

    def drop_unreleased(self, campaign: int) -> bool:
        """Delete the counts that were not released, when no round can be added to them."""
        where = {"campaign": campaign, "released": False}
        return self._drop("round_sum", where, lambda: self.delete_unreleased(campaign))

    def _drop(self, table: str, where: Mapping[str, object], delete: Callable[[], None]) -> bool:
        with self._leading(whole_tables=True):
            if not list(self._tables.rows(table, where, limit=1)):
                return False
            delete()
        self.wipe_log(deleted=True)
        return True

    def delete_unreleased(self, campaign: int) -> None:
        """Inside a transaction: delete all that was not released of a campaign, and the latest
        reports of its devices."""
        self._tables.delete("round_sum", {"campaign": campaign, "released": False})
        self._tables.query(
            """UPDATE device SET unreleased = 0, latest = ?
               WHERE campaign = ? AND (unreleased > 0 OR length(latest) > 0)""",
            (b"", campaign),
        )

    # --- counts ----------------------------------------------------------------------------------

    def received(self) -> int:
        """Messages received, ever; always the sum of all outcomes."""
        return sum(row["n"] for row in self._tables.rows("outcome_total"))

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        """Outcome counters of a campaign, of one of its rounds, or of everything received."""
        asked = {"campaign": campaign, "round": number}
        where = {column: value for column, value in asked.items() if value is not None}
        counted: Counter[str] = Counter()
        for row in self._tables.rows("outcome_total" if number is None else "outcome", where):
            counted[row["name"]] += row["n"]
        return {Outcome(name): n for name, n in counted.items()}

    def requests(self) -> dict[RequestOutcome, int]:
        """Requests to be forgotten, ever, by their outcome."""
        return {RequestOutcome(row["name"]): row["n"] for row in self._tables.rows("request")}

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by cell of one round, open or sealed, over all workers; n alone if they were
        not released."""
        total: dict[int, Tally] = {}
        for row in self._tables.rows("tally", {"campaign": campaign, "round": number}):
            tally, old = read_tally(row["n"], row["counts"]), total.get(row["attribute"])
            total[row["attribute"]] = tally if old is None else old + tally
        return total

    @abstractmethod
    def _reports(self, campaign: int, number: int) -> str | None:
        """SQL for the reports of an open round (device, attribute, page, tag, body), named r; None
        if there are none."""

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        """(page, tag) of every report of an open round."""
        reports = self._reports(campaign, number)
        if reports is not None:
            yield from self._tables.stream(f"SELECT page, tag FROM {reports}", ())  # noqa: S608

    # --- rounds ----------------------------------------------------------------------------------

    @abstractmethod
    def sealing(
        self, campaign: Campaign, number: int, at: int
    ) -> AbstractContextManager[Sealing | None]:
        """Close a round for ever when the block ends well; None if it was sealed before.

        No batch is committed meanwhile: each is wholly before the sealing or wholly after it.
        """

    def _begin_sealing(self, campaign: Campaign, number: int) -> Sealing:
        """Inside the transaction that seals a round: take out what another round forbids."""
        limits = limits_of(campaign.manifest)
        refused = list(self._refused(campaign.id, number, limits))
        if refused:
            outcomes = Counter((campaign.id, number, outcome) for outcome, _ in refused)
            outcomes[campaign.id, number, Outcome.ACCEPTED] = -len(refused)
            self._add_counts([report for _, report in refused], -1)
            self._add_outcomes(outcomes)
        counted = self.tallies(campaign.id, number), self.outcomes(campaign.id, number)
        return Sealing(*counted, campaign, number, self, self._tables)

    @abstractmethod
    def _refused(
        self, campaign: int, number: int, limits: Limits
    ) -> Iterable[tuple[Outcome, Candidate]]:
        """Delete, and return, reports of a round that was counted together with an earlier one,
        which is sealed now: with both known, they would have been refused."""

    def end_reports(
        self,
        campaign: int,
        number: int,
        released: Sequence[int],
        aside: Sequence[int],
        grouped: Sequence[int] = (),
        *,
        keep: bool = False,
    ) -> None:
        """Inside a sealing: count the round for each device that took part in it, as released for
        those of some cells and as not released for those of others, and as released with its group
        for `grouped`; `keep` its report as the device's latest; delete the reports."""
        reports = self._reports(campaign, number)
        if reports is None:
            return
        cells = (released, aside, grouped)
        lists = (", ".join(map(str, (NO_ATTRIBUTE, *each))) for each in cells)
        counts = ", ".join(f"CASE WHEN r.attribute IN ({each}) THEN 1 ELSE 0 END" for each in lists)
        lead = f"{self._level} - {number:d}" if keep else "0"
        latest, empty = ("body", ()) if keep else ("?", (b"",))
        self._tables.query(
            f"""INSERT INTO device
                SELECT {campaign:d}, device, attribute, {counts}, {lead}, {latest}
                FROM {reports} WHERE true ORDER BY device
                ON CONFLICT (campaign, device) DO UPDATE SET {COUNT_AGAIN}
                WHERE device.attribute = excluded.attribute""",  # noqa: S608 - whole numbers
            empty,
        )
        if not keep:
            self._count_forgotten(campaign, f"{counts} FROM {reports}")
        self._drop_reports(campaign, number)

    @abstractmethod
    def _drop_reports(self, campaign: int, number: int) -> None: ...

    def _count_forgotten(self, campaign: int, counted: str) -> None:  # noqa: B027 - not on a file
        """Count devices of the round that were forgotten while it was being sealed."""

    def latest_changes(
        self, campaign: int, number: int
    ) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Inside a sealing: attribute, report and earlier latest report of each device in a round
        that was not forgotten."""
        reports = self._reports(campaign, number)
        if reports is not None:
            yield from self._tables.stream(
                f"""SELECT r.attribute, r.body, d.latest FROM {reports}
                    LEFT JOIN device d ON d.campaign = ? AND d.device = r.device
                    WHERE d.attribute IS NULL OR d.attribute <> ?""",  # noqa: S608
                (campaign, FORGOTTEN),
            )

    def lock_latest(self, campaign: int) -> None:
        """Inside a transaction: nobody else changes latest reports and their counts meanwhile."""
        locked = f"SELECT id FROM campaign WHERE id = ? {self._lock(ROW)}"  # noqa: S608
        self._tables.query(locked, (campaign,))

    def _uncount_latest(self, campaign: int, attribute: int, latest: bytes) -> None:
        """Take the latest report of one device out of the counts of all."""
        known = self._known(campaign)
        for place in {attribute, known.attribute_of(attribute)} if latest else ():
            key: Row = {"campaign": campaign, "attribute": place, "released": False}
            total = self.find_sum("round_sum", key)
            if total is not None:
                less = Tally(-1, -count_reports([latest], known.mechanism(place)))
                self.add_sum("round_sum", key, RoundSum(total.first, total.last, 0, less))

    def open_rounds(self, campaign: int) -> list[int]:
        """Rounds that hold reports and are not sealed."""
        last = self.last_sealed(campaign)
        rows = self._tables.query(
            "SELECT DISTINCT round FROM tally WHERE campaign = ? AND round > ? ORDER BY round",
            (campaign, -1 if last is None else last),
        )
        return [number for (number,) in rows]

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""
        rows = self._tables.query(
            """SELECT number FROM round WHERE campaign = ? AND sealed IS NOT NULL
               ORDER BY number DESC LIMIT 1""",
            (campaign,),
        )
        return rows[0][0] if rows else None

    def released(self, campaign: int, attribute: int) -> RoundSum | None:
        """All sealed rounds that were released, by themselves or together with others."""
        return self.find_sum("released_total", {"campaign": campaign, "attribute": attribute})

    def unreleased(self, campaign: int, attribute: int) -> RoundSum | None:
        """The sealed rounds that were not released so far, together: that is all that is kept."""
        key = {"campaign": campaign, "attribute": attribute, "released": False}
        return self.find_sum("round_sum", key)

    def find_sum(self, table: str, key: Mapping[str, object]) -> RoundSum | None:
        """Rounds that are kept together."""
        for row in self._tables.rows(table, key):
            tally = read_tally(row["n"], row["counts"])
            return RoundSum(row["first"], row["last"], row["rounds"], tally)
        return None

    def add_sum(self, table: str, key: Mapping[str, object], added: RoundSum) -> None:
        """Inside a transaction: add rounds to those that are kept together."""
        old = self.find_sum(table, key)
        if old is not None:
            ends = min(old.first, added.first), max(old.last, added.last)
            added = RoundSum(*ends, old.rounds + added.rounds, old.tally + added.tally)
        self.put_sum(table, key, added)

    def put_sum(self, table: str, key: Mapping[str, object], kept: RoundSum) -> None:
        row: Row = {
            **key,
            "first": kept.first,
            "last": kept.last,
            "rounds": kept.rounds,
            "n": kept.tally.n,
            "counts": stored_counts(kept.tally.counts),
        }
        self._tables.put(table, row)

    def participation(
        self, campaign: int, attribute: int, *, released: bool = True
    ) -> tuple[list[int], list[int]]:
        """Numbers of released rounds (or of the others), and for each of these numbers how many
        devices of an attribute, or of one of its cells, reported in that many rounds."""
        known = self._known(campaign)
        of_all = known.attribute_of(attribute) == attribute
        column = "unreleased" if not released else "rounds" if of_all else "grouped"
        cells = ",".join(map(str, known.cells(attribute)))
        rows = self._tables.query(
            f"""SELECT {column}, count(*) FROM device
                WHERE campaign = ? AND attribute IN ({cells}) AND {column} > 0
                GROUP BY {column} ORDER BY {column}""",  # noqa: S608 - names and numbers of ours
            (campaign,),
        )
        return [rounds for rounds, _ in rows], [devices for _, devices in rows]

    def heard(self, campaign: int) -> dict[int, int]:
        """Devices of sealed rounds by cell, without those that were forgotten."""
        rows = self._tables.query(
            """SELECT attribute, count(*) FROM device
               WHERE campaign = ? AND device >= 0 AND attribute >= 0 GROUP BY attribute""",
            (campaign,),
        )
        return dict(rows)

    # --- results and receipts at the broker ------------------------------------------------------

    def results(
        self, campaign: int, attribute: int | None = None, rounds: range | None = None
    ) -> list[Result]:
        """Stored results, rounds in order and the pooled one, whose number is `POOLED`, first.

        Of all rounds unless some are named: others are not read, so that they cost no memory.
        """
        asked = {"campaign": campaign, "attribute": attribute, "round": rounds}
        where = {column: value for column, value in asked.items() if value is not None}
        return [read_result(row["message"]) for row in self._tables.rows("result", where)]

    def group_results(self, campaign: int, cell: int, number: int) -> list[Result]:
        """The result of a group in a round, or under `POOLED`, if there is one."""
        key = {"campaign": campaign, "attribute": cell, "round": number}
        return [read_result(row["message"]) for row in self._tables.rows("group_result", key)]

    def unpublished(self, limit: int = 100) -> list[UnpublishedResult]:
        """Results that no broker has accepted yet, the oldest rounds first."""
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
        """The broker has accepted this result; a newer pooled one stays to be published."""
        key = {"campaign": result.campaign, "attribute": result.attribute, "round": result.round}
        with self._leading():
            for row in list(self._tables.rows("result", key)):
                if row["message"] == result.message:
                    self._tables.delete("unpublished", key)

    def publish_again(self) -> None:
        """Publish every result once more, to a broker that may have lost them."""
        with self._leading(whole_tables=True):
            self._tables.query(
                """INSERT INTO unpublished SELECT campaign, round, attribute FROM result
                   WHERE true ON CONFLICT DO NOTHING""",
                (),
            )

    def clearable_receipts(self, campaign: int) -> list[int]:
        """Sealed rounds whose receipt pages are still at the broker."""
        rows = self._tables.query(
            """SELECT number FROM round WHERE campaign = ? AND sealed IS NOT NULL
               AND NOT receipts_cleared ORDER BY number""",
            (campaign,),
        )
        return [number for (number,) in rows]

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""
        with self._leading():
            self._tables.update(
                "round", {"campaign": campaign, "number": number}, {"receipts_cleared": True}
            )

    # --- what all workers agree on ---------------------------------------------------------------

    def leader_session(self) -> str:
        """The client id with which the leader connects to the broker: random, and made once.

        A broker allows one connection per client id, so that a new leader cuts off the old one.
        """
        return self._agree("leader session", secrets.token_hex(16).encode()).decode()

    def agree_on_key(self, fingerprint: bytes) -> bytes:
        """The fingerprint of the device key that all workers use: the first one given.

        With an empty one, only asks; empty if none was given before.
        """
        return self._agree("device key", fingerprint)

    def _agree(self, name: str, value: bytes) -> bytes:
        """The value that was given first."""
        if value:
            with self._transaction():
                self._tables.add("setting", {"name": name, "value": value})
        found = [row["value"] for row in self._tables.rows("setting", {"name": name})]
        return bytes(found[0]) if found else b""

    # --- workers ---------------------------------------------------------------------------------
    # While a worker writes it holds its row of `worker`: the row says that it may write (W1).

    def now(self) -> float:
        """The database's clock, seconds since 1970."""
        ((now,),) = self._tables.query(f"SELECT {self._clock}", ())
        return float(now)

    def workers(self) -> list[Worker]:
        """Those that enlisted and did not retire, by number. Other processes do not see the only
        worker of a file."""
        rows = self._tables.query(
            f"""SELECT number, name, started, seen, drained,
                       holder = number AND until > {self._clock}, fenced, received
                FROM worker CROSS JOIN lease WHERE number > 0 ORDER BY number""",  # noqa: S608
            (),
        )
        return [Worker(*(kind(cell) for kind, cell in zip(WORKER, row))) for row in rows]

    def enlist(self, name: str) -> int:
        """Become a worker with a new number: at start, and whenever `Fenced` was raised."""
        self.changed_elsewhere()  # a newer schema fences workers of this version
        self.resign()
        with self._transaction():
            self._delete_worker()
            ((number,),) = self._tables.query(
                f"""INSERT INTO worker (name, started, seen)
                    SELECT ?, t, t FROM (SELECT {self._clock} AS t) AS clock
                    RETURNING number""",  # noqa: S608
                (name,),
            )
        self._number, self._lost, self.epoch = int(number), self._tables.lost, 0
        return int(number)

    def _delete_worker(self) -> None:
        self._tables.query("DELETE FROM worker WHERE number = ? AND number > 0", (self._number,))

    def beat(self, drained: float) -> float:
        """Report that this worker lives, and that all messages which the broker accepted for it
        before `drained` are committed. Returns the database's time; raises `Fenced` if the others
        no longer wait for this worker.
        """
        rows = self._tables.query(
            f"""UPDATE worker SET seen = {self._clock},
                                  drained = CASE WHEN drained < ? THEN ? ELSE drained END
                WHERE number = ? AND number > 0 AND NOT fenced {self._current}
                RETURNING seen""",  # noqa: S608
            (drained, drained, self._own_number()),
        )
        if not rows:
            raise Fenced(FENCED)
        return float(rows[0][0])

    def retire(self) -> None:
        """Stop being a worker: nobody has to wait for this one, and another may lead."""
        self.resign()
        self._delete_worker()
        self._number = -1  # no worker has it: enlist again

    def _own_number(self) -> int:
        """The number under which this store writes; after a lost connection it has none."""
        if self._number is None:
            return 0
        if self._lost != self._tables.lost:
            raise Fenced(FENCED)
        return self._number

    def _sign_of_life(self, received: int) -> Statement:
        return (
            f"""UPDATE worker SET seen = {self._clock}, received = received + ?
                WHERE number = ? AND NOT fenced {self._current} RETURNING number""",  # noqa: S608
            (received, self._own_number()),
        )

    def _take(self, received: int = 0) -> None:
        """Hold this worker's row until the transaction ends, as a sign of life."""
        if not self._tables.query(*self._sign_of_life(received)):
            raise Fenced(FENCED)

    # --- the leader ------------------------------------------------------------------------------

    def lead(self, seconds: float) -> int | None:
        """Take or renew the lease for that time; the epoch, or None while another leads."""
        if self._number is None:
            raise Fenced(FENCED)
        free = f"SELECT 1 FROM lease WHERE holder = ? OR until <= {self._clock}"  # noqa: S608
        with self._transaction():
            self._take()
            own = self._own_number()
            # A leader that seals holds the lease's row: this does not wait for it.
            if not self._tables.query(f"{free} {self._lock('FOR UPDATE SKIP LOCKED')}", (own,)):
                return None
            ((epoch,),) = self._tables.query(
                f"""UPDATE lease SET epoch = epoch + CASE WHEN holder = ? THEN 0 ELSE 1 END,
                                     holder = ?, until = {self._clock} + ?
                    RETURNING epoch""",  # noqa: S608
                (own, own, seconds),
            )
        self.epoch = int(epoch)
        return self.epoch

    def resign(self) -> None:
        """Give up the lease, if this worker holds it."""
        if self.epoch:
            self._tables.query(
                "UPDATE lease SET holder = 0, until = 0 WHERE holder = ? AND epoch = ?",
                (self._number, self.epoch),
            )
        self.epoch = 0

    def fence(self, silent_seconds: float) -> list[Worker]:
        """Shut out workers that were silent for that long; returns those shut out now.

        What they committed stays; they commit nothing more. Workers that were fenced a day ago are
        no longer listed.
        """
        silent = f"seen < {self._clock} - ?"
        with self._leading():
            found = self._tables.query(
                f"""SELECT number FROM worker WHERE number > 0 AND number <> ? AND NOT fenced
                    AND {silent} ORDER BY number""",  # noqa: S608
                (self._own_number(), silent_seconds),
            )
            fence = f"""UPDATE worker SET fenced = true WHERE number = ? AND {silent}
                        RETURNING number"""  # noqa: S608
            fenced = []
            for (number,) in found:
                self._end_batch(number)
                fenced += self._tables.query(fence, (number, silent_seconds))
            self._tables.query(
                f"DELETE FROM worker WHERE fenced AND {silent}",  # noqa: S608
                (KEPT_SECONDS,),
            )
        shut_out = {number for (number,) in fenced}
        return [worker for worker in self.workers() if worker.number in shut_out]

    def _end_batch(self, worker: int) -> None:  # noqa: B027 - a file's only worker holds up nobody
        """End the transaction of a worker that stopped in the middle of it: it holds rows."""

    def fresh_receipts(self) -> list[ReceiptBatch]:
        """Reports that workers counted, saw again or withdrew since the last call, in order.

        The first call in a new epoch discards what is older and returns nothing: make it before
        building pages from `receipt_tags`. What a call returns, the next call discards.
        """
        with self._leading():
            if self._read_epoch != self.epoch:
                self._tables.query("DELETE FROM receipt_feed", ())
                self._read_epoch, self._returned = self.epoch, []
                return []
            self._delete_numbered("receipt_feed", "sequence", self._returned)
            rows = self._tables.query(
                "SELECT sequence, kind, campaign, round, places FROM receipt_feed", ()
            )
        self._returned = [row[0] for row in rows]
        return receipt_batches(row[1:] for row in rows)

    def _delete_numbered(self, table: str, column: str, numbers: Iterable[int]) -> None:
        if listed := ", ".join(map(str, numbers)):
            self._tables.query(
                f"DELETE FROM {table} WHERE {column} IN ({listed})",  # noqa: S608 - whole numbers
                (),
            )

    def queue_answers(self, answers: Sequence[tuple[str, bytes]]) -> None:
        """Queue answers to devices, each a topic and a payload, for the leader to publish: at most
        `MOST_ANSWERS`, the latest."""
        with self._transaction():
            for answer in answers:
                self._tables.query("INSERT INTO answer (topic, payload) VALUES (?, ?)", answer)
            self._tables.query(
                "DELETE FROM answer WHERE number <= (SELECT max(number) FROM answer) - ?",
                (MOST_ANSWERS,),
            )

    def queued_answers(self, limit: int) -> list[QueuedAnswer]:
        """The oldest answers that wait to be published."""
        rows = self._tables.query(
            "SELECT number, topic, payload FROM answer ORDER BY number LIMIT ?", (limit,)
        )
        return [QueuedAnswer(*row) for row in rows]

    def drop_answers(self, numbers: Sequence[int]) -> None:
        """Remove answers that the broker has accepted."""
        with self._leading():
            self._delete_numbered("answer", "number", numbers)


# --- sealing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sealing:
    """A round while it is being sealed, inside one transaction: all of it is kept, or nothing.

    `tallies`, by cell, and `outcomes` are its final counts. Where there are groups, an attribute's
    own number stands for the devices of all groups together.
    """

    tallies: Mapping[int, Tally]
    outcomes: Mapping[Outcome, int]
    campaign: Campaign
    number: int
    store: Store
    tables: Tables

    def tally(self, place: int) -> Tally:
        """Of a cell, or of an attribute over all groups; nothing where no report was counted."""
        found = [self.tallies[c] for c in self.campaign.cells(place) if c in self.tallies]
        return reduce(add, found) if found else Tally(0, NO_COUNTS)

    def end_reports(
        self, released: Set[int], set_aside: Set[int], grouped: Set[int] = frozenset()
    ) -> None:
        """Count the round for each device that took part in it, and delete its reports.

        It counts as released for devices of the first attributes, whose counts are added to what
        was released, and as unreleased for those of the second. `grouped` are the cells that are
        released by themselves, too; counts of others are deleted.
        """
        cells = self.campaign.cells
        counted = [c for attribute in sorted(released) for c in cells(attribute)]
        aside = [c for attribute in sorted(set_aside) for c in cells(attribute)]
        self.store.end_reports(self.campaign.id, self.number, counted, aside, sorted(grouped))
        for place in (*released, *grouped):
            self.store.add_sum("released_total", self._key(place), self._alone(place))
        for attribute in released if self.campaign.manifest.groups else ():
            self._erase({*cells(attribute)} - grouped)

    def keep_latest(self) -> None:
        """Count all devices heard so far by their latest reports, those of this round included;
        delete the round's reports and counts."""
        key, campaign = (self.campaign.id, self.number), self.campaign
        self.store.lock_latest(campaign.id)
        changes = self.store.latest_changes(*key)
        while part := list(islice(changes, CHUNK)):
            for cell in {row[0] for row in part}:
                new = [body for of, body, _ in part if of == cell]
                old = [body for of, _, body in part if of == cell and body]
                counts = count_reports(new, campaign.mechanism(cell))
                counts -= count_reports(old, campaign.mechanism(cell))
                more = RoundSum(self.number, self.number, 0, Tally(len(new) - len(old), counts))
                for place in {cell, campaign.attribute_of(cell)}:
                    self._add_unreleased(place, more)
        self.store.end_reports(*key, (), sorted(self.tallies), keep=True)
        for place in {*self.tallies, *map(campaign.attribute_of, self.tallies)}:
            alone = self._alone(place)
            if alone.tally.n:
                self._add_unreleased(place, replace(alone, tally=alone.tally - alone.tally))
        self._erase(self.tallies)

    def set_aside(self, attribute: int, *, by_group: bool = False) -> None:
        """Add the round's counts to the unreleased ones; of the round itself n stays."""
        cells = self.tallies.keys() & self.campaign.cells(attribute)
        for place in {attribute, *(cells if by_group else ())}:
            self._add_unreleased(place, self._alone(place))
        self._erase(cells)

    def _add_unreleased(self, place: int, rounds: RoundSum) -> None:
        self.store.add_sum("round_sum", self._key(place, released=False), rounds)

    def _erase(self, cells: Iterable[int]) -> None:
        """Delete the round's counts; n stays."""
        for cell in self.tallies.keys() & cells:
            key = {**self._key(cell), "round": self.number}
            self.tables.update("tally", key, {"counts": b""})

    def release(self, attribute: int, grouped: Set[int] = frozenset()) -> None:
        """Release all that was unreleased, for devices and counts alike; of the groups, those of
        `grouped` by themselves, too. Counts of the others are deleted."""
        cells = self.campaign.cells(attribute)
        for place in (attribute, *grouped):
            rounds = self.store.unreleased(self.campaign.id, place)
            if rounds is not None:
                self.store.add_sum("round_sum", self._key(place, released=True), rounds)
                self.store.add_sum("released_total", self._key(place), rounds)
        for place in {attribute, *cells}:
            self.tables.delete("round_sum", self._key(place, released=False))
        for cell in cells:
            self.release_devices(cell, grouped=cell in grouped)

    def release_latest(self, place: int, total: RoundSum) -> None:
        """Release counts of devices' latest reports, in place of those released before."""
        self.store.put_sum("released_total", self._key(place), total)

    def release_devices(self, cell: int, *, grouped: bool = False) -> None:
        self.tables.query(
            """UPDATE device SET rounds = rounds + unreleased, unreleased = 0,
                                 grouped = grouped + unreleased * ?
               WHERE campaign = ? AND attribute = ? AND unreleased > 0""",
            (int(grouped), self.campaign.id, cell),
        )

    def drop_unreleased(self) -> None:
        """Delete what was not released of any attribute: no further round can be added to it."""
        self.store.delete_unreleased(self.campaign.id)

    def write(self, results: Mapping[int, Result], number: int) -> None:
        """Store results of the round, or under `POOLED`; those of attributes are published."""
        for place, result in results.items():
            key: Row = {**self._key(place), "round": number}
            of_all = self.campaign.attribute_of(place) == place
            table = "result" if of_all else "group_result"
            self.tables.put(table, {**key, "message": result.encode()})
            if of_all:
                self.tables.add("unpublished", key)

    def _key(self, attribute: int, **more: bool) -> dict[str, object]:
        return {"campaign": self.campaign.id, "attribute": attribute, **more}

    def _alone(self, place: int) -> RoundSum:
        return RoundSum(self.number, self.number, 1, self.tally(place))


def read_result(message: bytes) -> Result:
    """A stored result; one that does not decode was not stored by us."""
    result = decode_result(message)
    if not isinstance(result, Result):
        raise AssertionError("a stored result does not decode")
    return result


# --- receipts ------------------------------------------------------------------------------------


class ReceiptKind(IntEnum):
    COUNTED = 0
    REPEATED = 1  # it was counted before and came again: its device has not seen the receipt
    WITHDRAWN = 2


@dataclass(frozen=True, slots=True)
class ReceiptBatch:
    """Pages and tags of the reports of one round to which the same happened."""

    kind: ReceiptKind
    campaign: int
    round: int
    pages: Numbers
    tags: Numbers


def feed_rows(kind: ReceiptKind, reports: Sequence[Candidate]) -> Iterator[FeedRow]:
    """Places of reports, eight bytes each, big-endian, round by round."""
    for (campaign, number), mine in of_rounds(reports):
        places = np.fromiter(map(_PAGE, mine), np.uint64, len(mine)) * np.uint64(TAGS)
        places += np.fromiter(map(_TAG, mine), np.uint64, len(mine))
        yield int(kind), campaign, number, places.astype(">u8").tobytes()


def receipt_batches(rows: Iterable[FeedRow]) -> list[ReceiptBatch]:
    """Withdrawn ones last: none of them can be counted again."""
    groups: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)
    for kind, campaign, number, joined in rows:
        groups[kind, campaign, number].append(joined)
    found = []
    for kind, campaign, number in sorted(groups):
        places = np.frombuffer(b"".join(groups[kind, campaign, number]), dtype=">u8")
        pages, tags = (places >> np.uint64(32)).astype("u4"), places.astype("u4")
        found.append(ReceiptBatch(ReceiptKind(kind), campaign, number, pages, tags))
    return found
