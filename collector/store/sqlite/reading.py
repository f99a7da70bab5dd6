"""What can be read from the tables, by the service and by anybody beside it."""

from __future__ import annotations

from collections.abc import Iterator

from collector.records import Campaign, RoundSum, Tally, UnpublishedResult
from collector.store.rows import read_sum, read_tally
from collector.store.shared import find_campaign, read_result
from collector.store.sqlite.connection import Connection
from collector.store.sqlite.schema import places_of_round
from protocol_spec import Manifest, Outcome, Result


class Reading:
    """Everything that changes nothing."""

    def __init__(self, connection: Connection) -> None:
        self._db = connection
        self._campaigns: dict[int, Campaign] = {}

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def campaigns(self) -> list[Campaign]:
        """Every campaign, open and closed, oldest first."""
        rows = self._db.execute("SELECT id, manifest, opened, closed FROM campaign ORDER BY id")
        return [self._campaign(*row) for row in rows]

    def campaign(self, name: str | None) -> Campaign:
        """One campaign by its name or the beginning of it; the only one when not named."""
        return find_campaign(self.campaigns(), name)

    def _campaign(self, key: int, manifest: bytes, opened: int, closed: int | None) -> Campaign:
        """A manifest is parsed once: it never changes."""
        known = self._campaigns.get(key)
        if known is None or known.closed != closed:
            known = Campaign(key, Manifest.from_bytes(manifest), opened, closed)
            self._campaigns[key] = known
        return known

    def revoked(self) -> frozenset[str]:
        """Names of devices whose reports are no longer taken."""
        return frozenset(name for (name,) in self._db.execute("SELECT device FROM revoked"))

    def changed_elsewhere(self) -> int:
        """A number that changes when another process wrote: a campaign opened, a device revoked."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    # --- counts ------------------------------------------------------------------------------

    def received(self) -> int:
        """Messages received, ever; always the sum of all outcomes."""
        row = self._db.execute("SELECT n FROM counter WHERE name = 'received'").fetchone()
        return int(row[0]) if row else 0

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        """Outcome counters of a campaign, of one of its rounds, or of everything received."""
        table = "outcome_total" if number is None else "outcome"
        asked = {"campaign": campaign, "round": number}
        where = " AND ".join(f"{name} = :{name}" for name, key in asked.items() if key is not None)
        rows = self._db.execute(
            f"SELECT name, sum(n) FROM {table} WHERE {where or 'true'} GROUP BY name",  # noqa: S608
            asked,
        )
        return {Outcome(name): n for name, n in rows}

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round, open or sealed."""
        rows = self._db.execute(
            "SELECT attribute, n, counts FROM tally WHERE campaign = ? AND round = ?",
            (campaign, number),
        )
        return {attribute: read_tally(n, counts) for attribute, n, counts in rows}

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        """(page, tag) of every report of an open round."""
        yield from self._db.execute(
            "SELECT page, tag FROM report WHERE id BETWEEN ? AND ?",
            places_of_round(campaign, number),
        )

    # --- rounds ------------------------------------------------------------------------------

    def open_rounds(self, campaign: int) -> list[int]:
        """Rounds that hold reports and are not sealed."""
        rows = self._db.execute(
            """SELECT DISTINCT round FROM tally WHERE campaign = ?1 AND round >
                   (SELECT coalesce(max(number), -1) FROM round WHERE campaign = ?1)
               ORDER BY round""",
            (campaign,),
        )
        return [number for (number,) in rows]

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""
        row = self._db.execute("SELECT max(number) FROM round WHERE campaign = ?", (campaign,))
        found: int | None = row.fetchone()[0]
        return found

    def released(self, campaign: int, attribute: int) -> RoundSum | None:
        """All sealed rounds that were released, by themselves or together with others."""
        row = self._db.execute(
            """SELECT first, last, rounds, n, counts FROM released_total
               WHERE campaign = ? AND attribute = ?""",
            (campaign, attribute),
        ).fetchone()
        return read_sum(*row) if row else None

    def unreleased(self, campaign: int, attribute: int) -> RoundSum | None:
        """The sealed rounds that were not released so far, together."""
        return self.find_sum(campaign, attribute, released=False)

    def find_sum(self, campaign: int, attribute: int, *, released: bool) -> RoundSum | None:
        """Rounds that are kept together, of one kind."""
        row = self._db.execute(
            """SELECT first, last, rounds, n, counts FROM round_sum
               WHERE campaign = ? AND attribute = ? AND released = ?""",
            (campaign, attribute, released),
        ).fetchone()
        return read_sum(*row) if row else None

    def participation(
        self, campaign: int, attribute: int, *, released: bool = True
    ) -> tuple[list[int], list[int]]:
        """How many devices reported in how many of the released rounds, or of the others."""
        rows = self._db.execute(
            """SELECT iif(?3, rounds, unreleased) AS m, count(*) FROM device
               WHERE campaign = ?1 AND attribute = ?2 AND m > 0 GROUP BY m ORDER BY m""",
            (campaign, attribute, released),
        ).fetchall()
        return [rounds for rounds, _ in rows], [devices for _, devices in rows]

    # --- at the broker -----------------------------------------------------------------------

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
        return [read_result(message) for (message,) in rows]

    def unpublished(self, limit: int = 100) -> list[UnpublishedResult]:
        """Results that no broker has taken yet, the oldest rounds first."""
        rows = self._db.execute(
            """SELECT campaign, attribute, round, message
               FROM unpublished CROSS JOIN result USING (campaign, attribute, round)
               ORDER BY campaign, round, attribute LIMIT ?""",
            (limit,),
        )
        return [UnpublishedResult(*row) for row in rows]

    def clearable_receipts(self, campaign: int) -> list[int]:
        """Sealed rounds whose receipt pages still stand at the broker."""
        rows = self._db.execute(
            """SELECT number FROM round INDEXED BY round_with_receipts
               WHERE campaign = ? AND receipts_cleared = 0 ORDER BY number""",
            (campaign,),
        )
        return [number for (number,) in rows]
