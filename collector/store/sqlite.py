"""The SQLite engine: one writer, one file, write-ahead log with `synchronous=FULL`.

The hot path inserts in chunks with `ON CONFLICT DO NOTHING RETURNING`, so that the unique key
itself says which reports are new; counts are kept per round and attribute, one row each, so that
estimating and sealing never read reports again.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
from sqlite_utils import Database

from collector.errors import StorageFailure, UnknownCampaign
from collector.records import NO_ROUND, POOLED, Campaign, Candidate, Counts, Refusal, Tally
from collector.store.schema import is_newer, migrations
from protocol_spec import BodyFormat, Manifest, Outcome, Result, decode_result

CHUNK: Final = 200
_ROW: Final = "(?,?,?,?,?,?,?)"


class SqliteStore:
    """The collector's memory in one file."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._campaigns: dict[int, Campaign] = {}
        self._holding: dict[int, set[int]] = {}
        self._unwiped = not read_only  # the log of a process that was killed may hold reports
        try:
            self._db = self._open()
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageFailure(
                f"{path} cannot be used: {reason}. Nothing was changed; check the disk, or choose "
                "another directory with --data-dir"
            ) from None

    def _open(self) -> sqlite3.Connection:
        if self.read_only:
            address = f"{self.path.absolute().as_uri()}?mode=ro"
            db = sqlite3.connect(address, uri=True, isolation_level=None)
        else:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            db = sqlite3.connect(self.path, isolation_level=None, timeout=30.0)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA secure_delete = ON")
            db.execute("PRAGMA cache_size = -65536")
            db.execute("PRAGMA wal_autocheckpoint = 32000")
            wrapped = Database(db, execute_plugins=False)
            if is_newer(wrapped):
                raise sqlite3.DatabaseError("a newer version of this program made it")
            migrations.apply(wrapped)
        db.execute("PRAGMA busy_timeout = 30000")
        return db

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    # --- campaigns ---------------------------------------------------------------------------

    def campaigns(self) -> list[Campaign]:
        """Every campaign, open and closed, oldest first."""
        rows = self._db.execute("SELECT id, manifest, opened, closed FROM campaign ORDER BY id")
        return [self._campaign(*row) for row in rows]

    def _campaign(self, key: int, manifest: bytes, opened: int, closed: int | None) -> Campaign:
        known = self._campaigns.get(key)
        if known is None or known.closed != closed:
            known = Campaign(key, Manifest.from_bytes(manifest), opened, closed)
            self._campaigns[key] = known
        return known

    def campaign(self, name: str | None) -> Campaign:
        """One campaign by its name or the beginning of it; the only one when not named."""
        known = self.campaigns()
        found = [c for c in known if name is None or c.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(c.name for c in known) or "none"
        what = "is no campaign here" if not found else "could be several campaigns"
        raise UnknownCampaign(f"{name or 'no name'} {what}; known are: {names}")

    def open_campaign(self, manifest: Manifest, at: int) -> Campaign:
        """Add a campaign; opening it again changes nothing."""
        with self._transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO campaign (name, manifest, opened) VALUES (?, ?, ?)",
                (manifest.campaign, manifest.to_bytes(), at),
            )
        return self.campaign(manifest.campaign)

    def close_campaign(self, campaign: Campaign, at: int) -> None:
        """Take no more reports."""
        with self._transaction():
            self._db.execute(
                "UPDATE campaign SET closed = ? WHERE id = ? AND closed IS NULL", (at, campaign.id)
            )

    def changed_elsewhere(self) -> int:
        """A number that changes when another process wrote: a campaign opened, a device revoked."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    # --- counting ----------------------------------------------------------------------------

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch in one transaction; when this returns it is on disk."""
        with self._transaction():
            outcomes = self._admit(candidates)
            accepted = [c for c, o in zip(candidates, outcomes) if o is Outcome.ACCEPTED]
            self._add_counts(accepted, +1)
            counted = Counter(
                # Not the round's own: nothing of a sealed round changes, its counters included.
                (c.campaign, NO_ROUND if o is Outcome.LATE else c.round, o)
                for c, o in zip(candidates, outcomes)
            )
            counted.update((r.campaign, r.round, r.outcome) for r in refusals)
            self._add_outcomes(counted)
            received = len(candidates) + len(refusals)
            self._db.execute(
                """INSERT INTO counter VALUES ('received', ?)
                   ON CONFLICT (name) DO UPDATE SET n = n + excluded.n""",
                (received,),
            )
        return outcomes

    def _admit(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Insert what is new and say of every candidate what became of it."""
        outcomes = [Outcome.LATE] * len(candidates)
        rounds: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, c in enumerate(candidates):
            rounds[c.campaign, c.round].append(i)
        for key, members in rounds.items():
            if not self._is_sealed(*key):
                self._open_rounds(key[0]).add(key[1])
                for start in range(0, len(members), CHUNK):
                    self._admit_chunk(candidates, members[start : start + CHUNK], outcomes)
        return outcomes

    def _admit_chunk(
        self, candidates: Sequence[Candidate], members: Sequence[int], outcomes: list[Outcome]
    ) -> None:
        """One chunk of one round: a device keeps its attribute, and is counted once."""
        first = candidates[members[0]]
        known = self._attributes(
            first.campaign, first.round, [candidates[i].device for i in members]
        )
        kept = []
        for i in members:
            c = candidates[i]
            if known.get(c.device, c.attribute) == c.attribute:
                kept.append(i)
            else:
                outcomes[i] = Outcome.ATTRIBUTE_CHANGED
        inserted = self._insert([candidates[i] for i in kept]) if kept else set()
        for i in kept:
            if candidates[i].device in inserted:
                inserted.remove(candidates[i].device)  # a second copy in the chunk is a repetition
                outcomes[i] = Outcome.ACCEPTED
            else:
                outcomes[i] = self._repeated(candidates[i])

    def _attributes(self, campaign: int, number: int, devices: Sequence[int]) -> dict[int, int]:
        """The attributes these devices reported before, in sealed and in other open rounds."""
        marks = ",".join("?" * len(devices))
        known: dict[int, int] = {}
        for other in self._open_rounds(campaign) - {number}:
            known.update(
                self._db.execute(
                    f"""SELECT device, attribute FROM report
                        WHERE campaign = ? AND round = ? AND device IN ({marks})""",  # noqa: S608
                    (campaign, other, *devices),
                )
            )
        known.update(
            self._db.execute(
                f"""SELECT device, attribute FROM device
                    WHERE campaign = ? AND device IN ({marks})""",  # noqa: S608
                (campaign, *devices),
            )
        )
        return known

    def _insert(self, chunk: Sequence[Candidate]) -> set[int]:
        """Insert a chunk of one round; the devices that were not there before."""
        values = ",".join([_ROW] * len(chunk))
        flat = [
            x
            for c in chunk
            for x in (c.campaign, c.round, c.device, c.attribute, c.page, c.tag, c.body)
        ]
        rows = self._db.execute(
            f"""INSERT INTO report VALUES {values}
                ON CONFLICT DO NOTHING RETURNING device""",  # noqa: S608
            flat,
        )
        return {device for (device,) in rows.fetchall()}

    def _is_sealed(self, campaign: int, number: int) -> bool:
        row = self._db.execute(
            "SELECT 1 FROM round WHERE campaign = ? AND number = ?", (campaign, number)
        )
        return row.fetchone() is not None

    def _open_rounds(self, campaign: int) -> set[int]:
        """Rounds that may hold reports; kept in memory, because every chunk asks."""
        if campaign not in self._holding:
            self._holding[campaign] = set(self.open_rounds(campaign))
        return self._holding[campaign]

    def _repeated(self, c: Candidate) -> Outcome:
        row = self._db.execute(
            """SELECT attribute, body FROM report
               WHERE campaign = ? AND round = ? AND device = ?""",
            (c.campaign, c.round, c.device),
        ).fetchone()
        return Outcome.DUPLICATE if row == (c.attribute, c.body) else Outcome.CONFLICT

    def _add_counts(self, reports: Sequence[Candidate], sign: int) -> None:
        groups: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)
        for c in reports:
            groups[c.campaign, c.round, c.attribute].append(c.body)
        for (campaign, number, attribute), bodies in groups.items():
            manifest = self._known(campaign).manifest
            added = sign * count_bodies(bodies, manifest.body_formats[attribute])
            old = self._tally(campaign, number, attribute)
            total = added if old is None else old.counts + added
            n = sign * len(bodies) + (0 if old is None else old.n)
            self._db.execute(
                "INSERT OR REPLACE INTO tally VALUES (?, ?, ?, ?, ?)",
                (campaign, number, attribute, n, total.astype("<i8").tobytes()),
            )

    def _known(self, campaign: int) -> Campaign:
        if campaign not in self._campaigns:
            self.campaigns()
        return self._campaigns[campaign]

    def _add_outcomes(self, counted: Mapping[tuple[int, int, Outcome], int]) -> None:
        self._db.executemany(
            """INSERT INTO outcome VALUES (?, ?, ?, ?)
               ON CONFLICT (campaign, round, name) DO UPDATE SET n = n + excluded.n""",
            [(c, r, str(o), n) for (c, r, o), n in counted.items()],
        )

    # --- reading -----------------------------------------------------------------------------

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""
        row = self._db.execute("SELECT max(number) FROM round WHERE campaign = ?", (campaign,))
        found: int | None = row.fetchone()[0]
        return found

    def open_rounds(self, campaign: int) -> list[int]:
        """Rounds that hold reports and are not sealed."""
        rows = self._db.execute(
            """SELECT DISTINCT round FROM tally t WHERE campaign = ?1 AND NOT EXISTS
                   (SELECT 1 FROM round WHERE campaign = ?1 AND number = t.round)
               ORDER BY round""",
            (campaign,),
        )
        return [number for (number,) in rows]

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round, open or sealed."""
        rows = self._db.execute(
            "SELECT attribute, n, counts FROM tally WHERE campaign = ? AND round = ?",
            (campaign, number),
        )
        return {attribute: _tally(n, counts) for attribute, n, counts in rows}

    def _tally(self, campaign: int, number: int, attribute: int) -> Tally | None:
        row = self._db.execute(
            "SELECT n, counts FROM tally WHERE campaign = ? AND round = ? AND attribute = ?",
            (campaign, number, attribute),
        ).fetchone()
        return _tally(*row) if row else None

    def sealed_total(self, campaign: int, attribute: int) -> tuple[int, Tally | None]:
        """Number of sealed rounds with reports, and all their counts together."""
        rows = self._db.execute(
            """SELECT n, counts FROM tally WHERE campaign = ?1 AND attribute = ?2 AND n > 0
               AND round IN (SELECT number FROM round WHERE campaign = ?1)""",
            (campaign, attribute),
        ).fetchall()
        if not rows:
            return 0, None
        parts = [_tally(*row) for row in rows]
        total = np.sum([part.counts for part in parts], axis=0)
        return len(parts), Tally(sum(part.n for part in parts), total)

    def participation(self, campaign: int, attribute: int) -> tuple[list[int], list[int]]:
        """How many devices reported in how many sealed rounds: (rounds, devices)."""
        rows = self._db.execute(
            """SELECT rounds, count(*) FROM device WHERE campaign = ? AND attribute = ?
               GROUP BY rounds ORDER BY rounds""",
            (campaign, attribute),
        ).fetchall()
        return [rounds for rounds, _ in rows], [devices for _, devices in rows]

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        """Outcome counters of a campaign, of one of its rounds, or of everything received."""
        rows = self._db.execute(
            """SELECT name, sum(n) FROM outcome
               WHERE (?1 IS NULL OR campaign = ?1) AND (?2 IS NULL OR round = ?2) GROUP BY name""",
            (campaign, number),
        )
        return {Outcome(name): n for name, n in rows}

    def received(self) -> int:
        """Messages received, ever; always the sum of all outcomes."""
        row = self._db.execute("SELECT n FROM counter WHERE name = 'received'").fetchone()
        return int(row[0]) if row else 0

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        """(page, tag) of every report of an open round."""
        yield from self._db.execute(
            "SELECT page, tag FROM report WHERE campaign = ? AND round = ?", (campaign, number)
        )

    # --- results -----------------------------------------------------------------------------

    def results(
        self, campaign: int, attribute: int | None = None, rounds: range | None = None
    ) -> list[Result]:
        """Stored results, rounds in order and the pooled one first; of all rounds or of these."""
        first, end = (None, None) if rounds is None else (rounds.start, rounds.stop)
        rows = self._db.execute(
            """SELECT message FROM result WHERE campaign = ?1
               AND (?2 IS NULL OR attribute = ?2) AND (?3 IS NULL OR round >= ?3 AND round < ?4)
               ORDER BY attribute, round""",
            (campaign, attribute, first, end),
        )
        return [_result(message) for (message,) in rows]

    def unpublished(self, limit: int = 100) -> list[tuple[int, int, int, bytes]]:
        """(campaign, attribute, round, message) of results that no broker has taken yet."""
        return self._db.execute(
            """SELECT campaign, attribute, round, message FROM result WHERE published = 0
               ORDER BY campaign, round, attribute LIMIT ?""",
            (limit,),
        ).fetchall()

    def mark_published(self, campaign: int, attribute: int, number: int, message: bytes) -> None:
        """The broker has taken this result; a newer pooled one stays to be published."""
        with self._transaction():
            self._db.execute(
                """UPDATE result SET published = 1
                   WHERE campaign = ? AND attribute = ? AND round = ? AND message = ?""",
                (campaign, attribute, number, message),
            )

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""
        with self._transaction():
            self._db.execute("UPDATE result SET published = 0")

    # --- sealing and forgetting --------------------------------------------------------------

    def seal(
        self,
        campaign: Campaign,
        number: int,
        at: int,
        results: Callable[[Mapping[int, Tally], Mapping[Outcome, int]], list[Result]],
        pooled: Callable[[], list[Result]],
    ) -> list[Result]:
        """Close a round for ever, atomically: results, participation, and the reports deleted."""
        key = (campaign.id, number)
        with self._transaction():
            done = self._db.execute(
                "INSERT OR IGNORE INTO round (campaign, number, sealed) VALUES (?, ?, ?)",
                (*key, at),
            )
            if done.rowcount == 0:
                return []
            of_round = results(self.tallies(*key), self.outcomes(*key))
            self._store_results(campaign, of_round, number)
            self._db.execute(
                """INSERT INTO device SELECT campaign, device, attribute, 1 FROM report
                   WHERE campaign = ? AND round = ?
                   ON CONFLICT (campaign, device) DO UPDATE SET rounds = rounds + 1""",
                key,
            )
            self._db.execute("DELETE FROM report WHERE campaign = ? AND round = ?", key)
            over_all = pooled()
            self._store_results(campaign, over_all, POOLED)
        self._open_rounds(campaign.id).discard(number)
        self._unwiped = True
        self.wipe_log()
        return of_round + over_all

    def _store_results(self, campaign: Campaign, results: Sequence[Result], number: int) -> None:
        names = [attribute.name for attribute in campaign.manifest.attributes]
        self._db.executemany(
            "INSERT OR REPLACE INTO result VALUES (?, ?, ?, ?, 0)",
            [(campaign.id, names.index(r.attribute), number, r.encode()) for r in results],
        )

    def wipe_log(self) -> None:
        """Empty the write-ahead log, if deleted reports are left in it.

        A reader in the way is not waited for: call it again later.
        """
        if not self._unwiped:
            return
        self._db.execute("PRAGMA busy_timeout = 0")
        with suppress(sqlite3.OperationalError):
            busy, *_ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._unwiped = bool(busy)
        self._db.execute("PRAGMA busy_timeout = 30000")

    def withdraw(self, campaign: Campaign, device: int) -> int:
        """Take a device's reports out of every open round and forget the device.

        Sealed sums still hold its reports, and their variance needs to know that someone sent so
        many: the number of rounds stays, under a random number that no device can have.
        """
        with self._transaction():
            rows = [
                row
                for number in self._open_rounds(campaign.id)
                for row in self._db.execute(
                    """DELETE FROM report WHERE campaign = ? AND round = ? AND device = ?
                       RETURNING campaign, round, device, attribute, page, tag, body""",
                    (campaign.id, number, device),
                ).fetchall()
            ]
            self._add_counts([Candidate(*row) for row in rows], -1)
            self._db.execute(
                "UPDATE device SET device = ? WHERE campaign = ? AND device = ?",
                (-1 - secrets.randbits(63), campaign.id, device),
            )
        self._unwiped = True
        self.wipe_log()
        return len(rows)

    def clearable_receipts(self, campaign: int) -> list[int]:
        """Sealed rounds whose receipt pages still stand at the broker."""
        rows = self._db.execute(
            "SELECT number FROM round WHERE campaign = ? AND receipts_cleared = 0", (campaign,)
        )
        return [number for (number,) in rows]

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""
        with self._transaction():
            self._db.execute(
                "UPDATE round SET receipts_cleared = 1 WHERE campaign = ? AND number = ?",
                (campaign, number),
            )

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part, at the end of the manifest's retention."""
        some = self._db.execute("SELECT 1 FROM device WHERE campaign = ? LIMIT 1", (campaign,))
        if some.fetchone() is None:
            return False
        with self._transaction():
            self._db.execute("DELETE FROM device WHERE campaign = ?", (campaign,))
        self._unwiped = True
        self.wipe_log()
        return True

    # --- revocation --------------------------------------------------------------------------

    def revoked(self) -> frozenset[str]:
        """Names of devices whose reports are no longer taken."""
        return frozenset(name for (name,) in self._db.execute("SELECT device FROM revoked"))

    def revoke(self, device: str, at: int) -> None:
        """Take no more reports from a device."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO revoked VALUES (?, ?)", (device, at))

    def reinstate(self, device: str) -> None:
        """Take a device's reports again."""
        with self._transaction():
            self._db.execute("DELETE FROM revoked WHERE device = ?", (device,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise StorageFailure(
                f"{self.path} cannot be written: {error}. Nothing of it was acknowledged; reports "
                "wait at the broker and on the devices. Free some space; no restart is needed"
            ) from None


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


def _tally(n: int, counts: bytes) -> Tally:
    return Tally(n, np.frombuffer(counts, dtype="<i8").astype(np.int64))


def _result(message: bytes) -> Result:
    result = decode_result(message)
    if not isinstance(result, Result):
        raise AssertionError("a stored result does not decode")
    return result
