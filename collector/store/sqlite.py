"""The SQLite engine: one file, one worker that writes, any number of readers.

The hot path appends the reports of a batch, round by round; `DeviceIndex` says which are new (I8).
Counts are kept in one row for each round and attribute, so that estimating and sealing never read
reports again.

Of a device that was forgotten its number stays until the end of retention, in a row of `device`
without an attribute. Counting looks at that row in any case, for the device's attribute (A4).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import compress, islice
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from collector.errors import NewerSchema
from collector.records import Campaign, Candidate, Refusal
from collector.store import (
    Later,
    ReceiptKind,
    Sealing,
    Store,
)
from collector.store.common import (
    MOVED,
    REPORT,
    Limits,
    Past,
    Portion,
    Round,
    Row,
    Stored,
    TallyKey,
    by_round,
    count_outcomes,
    highest_lead,
    judge,
    limits_of,
)
from collector.store.sqlite_database import (
    VERSION,
    Connect,
    SqliteDatabase,
    ids_of_round,
    report_id,
)
from protocol_spec import Outcome

Numbers = npt.NDArray[np.int64]

CHUNK: Final = 500  # devices that one statement asks for
MOST_ANSWERS: Final = 4000
_DEVICE: Final = itemgetter(2)  # of a `Candidate`
_ATTRIBUTE: Final = itemgetter(3)
_BODY: Final = itemgetter(6)


class SqliteStore(Store):
    """The collector's database in one file.

    `connect` makes the connection, `chunk` is how many devices one statement asks for, and `now` is
    the time of day.
    """

    _level: ClassVar = "coalesce(unicode(CAST(substr(body, 1, 1) AS TEXT)), 0)"  # counted from 0

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        connect: Connect = sqlite3.connect,
        chunk: int = CHUNK,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._db = SqliteDatabase(path, read_only=read_only, connect=connect, now=now)
        super().__init__(self._db)
        self.path = path
        self._chunk = chunk
        self._seen: int | None = None  # `changed_elsewhere` when memory was read from the file
        self._open: dict[int, set[int]] = {}  # rounds that may hold reports, by campaign
        self._devices: dict[Round, DeviceIndex] = {}

    def _transaction(self, *, whole_tables: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002
        return self._db.transaction()

    _changing = _transaction  # other processes notice by the file

    def wipe_log(self, *, deleted: bool = False) -> None:
        self._db.wipe_log(deleted=deleted)

    def close(self) -> None:
        self._db.close()

    # --- reading ---------------------------------------------------------------------------------

    def changed_elsewhere(self) -> int:
        if self._db.execute("PRAGMA user_version").fetchone()[0] > VERSION:
            raise NewerSchema(self.path)
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def _reports(self, campaign: int, number: int) -> str:
        first, last = ids_of_round(campaign, number)
        return f"(SELECT * FROM report WHERE id BETWEEN {first} AND {last}) AS r"  # noqa: S608

    def contents(self) -> Iterator[Portion]:
        """All that the file holds, table by table, to move it to another engine."""
        for table in MOVED:
            yield Portion(table, (tuple(row.values()) for row in self._db.rows(table)))
        reports = """SELECT id >> 48, id >> 32 & 65535, device, attribute, page, tag, body
                     FROM report ORDER BY 1, 2, 3"""
        yield Portion(REPORT, self._db.execute(reports))

    # --- counting --------------------------------------------------------------------------------

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        with self._changing_reports():
            self._take(len(candidates) + len(refusals))
            outcomes = self._insert_new(candidates)
            accepted = candidates
            if outcomes.count(Outcome.ACCEPTED) < len(candidates):
                accepted = [c for c, o in zip(candidates, outcomes) if o is Outcome.ACCEPTED]
                again = [c for c, o in zip(candidates, outcomes) if o is Outcome.DUPLICATE]
                self._feed(ReceiptKind.REPEATED, again)
            self._feed(ReceiptKind.COUNTED, accepted)
            self._add_counts(accepted, +1)
            self._add_outcomes(count_outcomes(candidates, outcomes, refusals))
        return outcomes

    @contextmanager
    def _changing_reports(self) -> Iterator[None]:
        """A transaction in which memory is what the file is; if it fails, memory is read again."""
        try:
            with self._db.transaction():
                if self._seen != (seen := self.changed_elsewhere()):
                    self._open.clear()
                    self._devices.clear()
                    self._seen = seen
                yield
        except BaseException:
            self._open.clear()
            self._devices.clear()
            raise

    _withdrawing = _changing_reports

    def _insert_new(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Insert what is new; the outcome of every candidate."""
        outcomes = [Outcome.ACCEPTED] * len(candidates)
        for key, members in by_round(candidates).items():
            whole = len(members) == len(candidates)
            mine = candidates if whole else [candidates[i] for i in members]
            sealed = "SELECT 1 FROM round WHERE campaign = ? AND number = ?"
            if self._db.execute(sealed, key).fetchone() is not None:
                found = [Outcome.LATE] * len(mine)
            else:
                found = self._insert_round(*key, mine)
            if whole:
                return found
            for i, outcome in zip(members, found):
                outcomes[i] = outcome
        return outcomes

    def _insert_round(
        self, campaign: int, number: int, batch: Sequence[Candidate]
    ) -> list[Outcome]:
        """Insert reports of one round."""
        devices = np.fromiter(map(_DEVICE, batch), np.int64, len(batch))
        attributes = np.fromiter(map(_ATTRIBUTE, batch), np.int64, len(batch))
        limits = limits_of(self._known(campaign).manifest)
        past = self._past(campaign, number, batch, devices, attributes, limits)
        index = self._index(campaign, number)
        entries = index.find(devices)
        outcomes, new = [Outcome.ACCEPTED] * len(batch), np.arange(len(batch))
        if past or entries.max() != ABSENT or len(np.unique(devices)) < len(batch):
            there = np.flatnonzero(entries != ABSENT)
            stored = {int(devices[i]): self._report(campaign, number, entries[i]) for i in there}
            outcomes = judge(batch, limits, past, stored, {})
            kept = [outcome is Outcome.ACCEPTED for outcome in outcomes]
            batch, new = list(compress(batch, kept)), np.flatnonzero(kept)
        places = index.add(devices[new], attributes[new])
        first = report_id(campaign, number, places.start)
        self._db.executemany(
            "INSERT INTO report (id, device, attribute, page, tag, body) VALUES (?, ?, ?, ?, ?, ?)",
            zip(range(first, first + len(batch)), *islice(zip(*batch), 2, None)),
        )
        self._open_in(campaign).add(number)
        return outcomes

    def _report(self, campaign: int, number: int, entry: int) -> Stored:
        """A report of an open round."""
        place = report_id(campaign, number, place_of(int(entry)))
        row = self._db.execute("SELECT attribute, body FROM report WHERE id = ?", (place,))
        attribute, body = row.fetchone()
        return attribute, body

    def _past(
        self,
        campaign: int,
        number: int,
        batch: Sequence[Candidate],
        devices: Numbers,
        attributes: Numbers,
        limits: Limits,
    ) -> dict[int, Past]:
        """What is known from other rounds of those devices that may not report, or not this."""
        reports = np.zeros(len(devices), dtype=np.int64)
        elsewhere = attributes.copy()
        for other in self._open_in(campaign) - {number}:
            entries = self._index(campaign, other).find(devices)
            there = entries != ABSENT
            elsewhere[there] = attributes_of(entries[there])
            reports += there
        wrong = (elsewhere != attributes) | (reports >= limits.reports)
        found = {
            int(devices[i]): Past(int(elsewhere[i]), int(reports[i])) for i in np.flatnonzero(wrong)
        }
        some = self._db.execute("SELECT 1 FROM device WHERE campaign = ? LIMIT 1", (campaign,))
        if some.fetchone() is None:
            return found
        least = limits.reports - int(reports.max()), highest_lead(map(_BODY, batch), number, limits)
        rows = [
            row
            for attribute in np.unique(attributes).tolist()
            for row in self._sealed(campaign, devices[attributes == attribute], (attribute, *least))
        ]
        in_open = dict(zip(devices.tolist(), reports.tolist())) if rows else {}
        for device, attribute, rounds, lead in rows:
            found[device] = Past(attribute, rounds + in_open[device], lead)
        return found

    def _sealed(
        self, campaign: int, devices: Numbers, expected: tuple[int, int, int]
    ) -> Iterator[tuple[int, int, int, int]]:
        """Those of these devices that are known from sealed rounds with another attribute, with so
        many reports, or with a smaller lead.

        Chunks are filled up with the last device, so that there are few different statements.
        """
        for start in range(0, len(devices), self._chunk):
            asked = devices[start : start + self._chunk].tolist()
            asked += [asked[-1]] * (-len(asked) % min(self._chunk, 50))
            marks = ",".join("?" * len(asked))
            yield from self._db.execute(
                f"""SELECT device, attribute, rounds + unreleased, lead FROM device
                    WHERE campaign = ? AND device IN ({marks})
                    AND (attribute <> ? OR rounds + unreleased >= ? OR lead < ?)""",  # noqa: S608
                (campaign, *asked, *expected),
            )

    def _index(self, campaign: int, number: int) -> DeviceIndex:
        key = (campaign, number)
        if key not in self._devices:
            rows = self._db.execute(
                f"""SELECT device, (id & 0xFFFFFFFF) << {ATTRIBUTE_BITS} | attribute
                    FROM report WHERE id BETWEEN ? AND ?""",  # noqa: S608 - a number of ours
                ids_of_round(campaign, number),
            )
            self._devices[key] = DeviceIndex(rows)
        return self._devices[key]

    def _open_in(self, campaign: int) -> set[int]:
        """Rounds that may hold reports; kept in memory, because every batch asks."""
        if campaign not in self._open:
            self._open[campaign] = set(self.open_rounds(campaign))
        return self._open[campaign]

    def _own(self) -> Row:
        return {}

    def _ask_tallies(self, keys: Collection[TallyKey]) -> Later:
        query = "SELECT * FROM tally WHERE campaign = ? AND round = ? AND attribute = ?"
        rows = [row for key in keys for row in self._db.execute(query, key)]
        return lambda: rows

    def _delete_reports(self, campaign: int, device: int) -> Iterator[Candidate]:
        for number in self._open_in(campaign):
            index = self._index(campaign, number)
            (entry,) = index.find(np.array([device])).tolist()
            if entry != ABSENT:
                index.remove(device)
                (row,) = self._db.execute(
                    """DELETE FROM report WHERE id = ?
                       RETURNING campaign, round, device, attribute, page, tag, body""",
                    (report_id(campaign, number, place_of(entry)),),
                ).fetchall()
                yield Candidate(*row)

    # --- sealing ---------------------------------------------------------------------------------

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[Sealing | None]:
        key = (campaign.id, number)
        with self._changing_reports():
            added = self._db.execute(
                "INSERT OR IGNORE INTO round (campaign, number, sealed) VALUES (?, ?, ?)",
                (*key, at),
            )
            if added.rowcount == 0:
                yield None
                return
            yield self._begin_sealing(campaign, number)
        self._open.get(campaign.id, set()).discard(number)
        self._devices.pop(key, None)
        self.wipe_log(deleted=True)

    def _refused(
        self, campaign: int, number: int, limits: Limits
    ) -> Iterable[tuple[Outcome, Candidate]]:
        """Only levels: counting looks at other open rounds for everything else."""
        if not limits.levels:
            return []
        rows = self._db.execute(
            f"""DELETE FROM report WHERE id BETWEEN ? AND ? AND EXISTS (
                    SELECT 1 FROM device d WHERE d.campaign = report.campaign
                    AND d.device = report.device AND {self._level} - report.round > d.lead)
                RETURNING campaign, round, device, attribute, page, tag, body""",  # noqa: S608
            ids_of_round(campaign, number),
        )
        return [(Outcome.BAD_LEVEL, Candidate(*row)) for row in rows]

    def _drop_reports(self, campaign: int, number: int) -> None:
        query = "DELETE FROM report WHERE id BETWEEN ? AND ?"
        self._db.execute(query, ids_of_round(campaign, number))


# --- which devices an open round has -------------------------------------------------------------

ATTRIBUTE_BITS: Final = 13  # enough for the cells of `MAX_ATTRIBUTES` and `MAX_GROUPS`
ABSENT: Final = -1
LONGEST_RUN: Final = 1 << 18  # so that merging runs needs little memory
_ROW: Final = np.dtype([("device", np.int64), ("entry", np.int64)])


class DeviceIndex:
    """Devices with a report in an open round, in memory: the unique key of the table of reports.

    Device numbers are random, so a unique index in the file would touch another page for nearly
    every report, and write all of it: kilobytes for a report of some thirty bytes. Reports are
    appended instead, and this says which are new. It is read from the file when a round is first
    needed, and again after any failure and whenever another connection has written, inside the
    transaction; so it never differs from the file (I8). It takes 16 bytes a report, until the round
    is sealed.

    It maps a device to an entry: its place in the round and its attribute, as one number. Entries
    are in sorted runs, each at least twice as long as the next; a look-up searches each run.
    """

    def __init__(self, rows: Iterable[tuple[int, int]] = ()) -> None:
        """From (device, entry) as they are stored."""
        read = np.fromiter(rows, _ROW)
        self._runs: list[tuple[Numbers, Numbers]] = []
        self.next_place = int(read["entry"].max() >> ATTRIBUTE_BITS) + 1 if len(read) else 0
        for start in range(0, len(read), LONGEST_RUN):
            part = read[start : start + LONGEST_RUN]
            self._add_run(part["device"], part["entry"])

    def find(self, devices: Numbers) -> Numbers:
        """The entry of each device, or `ABSENT`."""
        found = np.full(len(devices), ABSENT)
        for keys, entries in self._runs:
            at = np.minimum(np.searchsorted(keys, devices), len(keys) - 1)
            np.maximum(found, np.where(keys[at] == devices, entries[at], ABSENT), out=found)
        return found

    def add(self, devices: Numbers, attributes: Numbers) -> range:
        """Add devices that are absent; the places that they get."""
        first = self.next_place
        self.next_place += len(devices)
        places = range(first, self.next_place)
        if places:
            self._add_run(devices, np.arange(first, places.stop) << ATTRIBUTE_BITS | attributes)
        return places

    def remove(self, device: int) -> None:
        for keys, entries in self._runs:
            at = int(np.searchsorted(keys, device))
            if at < len(keys) and keys[at] == device:
                entries[at] = ABSENT

    def _add_run(self, keys: Numbers, entries: Numbers) -> None:
        runs = [(keys, entries)]
        length = len(keys)
        while self._runs and len(self._runs[-1][0]) < min(2 * length, LONGEST_RUN):
            runs.insert(0, self._runs.pop())
            length += len(runs[0][0])
        # One run made of several, with as little memory at a time as possible.
        keys = np.concatenate([part for part, _ in runs])
        entries = np.concatenate([part for _, part in runs])
        runs.clear()
        order = np.argsort(keys, kind="stable")  # which is fast where parts are sorted already
        keys = keys[order]
        self._runs.append((keys, entries[order]))


def place_of(entry: int) -> int:
    return entry >> ATTRIBUTE_BITS


def attributes_of(entries: Numbers) -> Numbers:
    """Attributes of entries; those of absent ones mean nothing."""
    attributes: Numbers = entries & ((1 << ATTRIBUTE_BITS) - 1)
    return attributes
