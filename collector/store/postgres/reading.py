"""What can be read from the tables, by workers and by anybody beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from psycopg import sql

from collector.records import Campaign, RequestOutcome, RoundSum, Tally, UnpublishedResult
from collector.store.postgres.connection import Connection
from collector.store.rows import read_sum, read_tally
from collector.store.shared import find_campaign, read_result
from protocol_spec import Manifest, Outcome, Result

PORTION: Final = 20_000
TAGS: Final = 2**32  # a place is a page times this, and a tag


class Reading:
    """Everything that changes nothing."""

    def __init__(self, connection: Connection) -> None:
        self._db = connection
        self._campaigns: dict[int, Campaign] = {}
        self._own_changes = 0

    def close(self) -> None:
        """Release the connection."""
        self._db.close()

    def campaigns(self) -> list[Campaign]:
        """Every campaign, open and closed, oldest first."""
        rows = self._db.rows("SELECT id, manifest, opened, closed FROM campaign ORDER BY id")
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

    def signature(self, campaign: int) -> bytes:
        """The operator's signature of a campaign's manifest; empty where it has none."""
        row = self._db.row("SELECT signature FROM signature WHERE campaign = %s", (campaign,))
        return b"" if row is None else bytes(row[0])

    def revoked(self) -> frozenset[str]:
        """Names of devices whose reports are no longer taken."""
        return frozenset(name for (name,) in self._db.rows("SELECT device FROM revoked"))

    def changed_elsewhere(self) -> int:
        """A number that changes when another process wrote: a campaign opened, a device revoked."""
        row = self._db.row("SELECT n FROM version")
        return (int(row[0]) if row else 0) - self._own_changes

    # --- counts ------------------------------------------------------------------------------

    def received(self) -> int:
        """Messages received, ever; always the sum of all outcomes."""
        row = self._db.row("SELECT coalesce(sum(n), 0)::bigint FROM outcome_total")
        return int(row[0]) if row else 0

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        """Outcome counters of a campaign, of one of its rounds, or of everything received."""
        if number is None:
            rows = self._db.rows(
                """SELECT name, sum(n)::bigint FROM outcome_total
                   WHERE %s::integer IS NULL OR campaign = %s::integer GROUP BY name""",
                (campaign, campaign),
            )
        else:
            rows = self._db.rows(
                """SELECT name, sum(n)::bigint FROM outcome
                   WHERE (%s::integer IS NULL OR campaign = %s::integer) AND round = %s
                   GROUP BY name""",
                (campaign, campaign, number),
            )
        return {Outcome(name): n for name, n in rows}

    def requests(self) -> dict[RequestOutcome, int]:
        """Requests to be forgotten, ever, by what became of them."""
        rows = self._db.rows("SELECT name, n FROM request WHERE n > 0")
        return {RequestOutcome(name): n for name, n in rows}

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round, open or sealed: those of all workers."""
        rows = self._db.rows(
            """SELECT attribute, n, counts FROM tally WHERE campaign = %s AND round = %s
               ORDER BY attribute""",
            (campaign, number),
        )
        return added_up((attribute, read_tally(n, counts)) for attribute, n, counts in rows)

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        """(page, tag) of every report of an open round."""
        if not self._has_reports(campaign, number):
            return
        query = sql.SQL(
            "SELECT device, place FROM {} WHERE device > %s ORDER BY device LIMIT %s"
        ).format(reports_of(campaign, number))
        rows = self._db.rows(query, (-1, PORTION))
        while rows:
            yield from (divmod(place, TAGS) for _, place in rows)
            rows = self._db.rows(query, (rows[-1][0], PORTION))

    def _has_reports(self, campaign: int, number: int) -> bool:
        row = self._db.row(
            """SELECT 1 FROM round WHERE campaign = %s AND number = %s
               AND stored AND sealed IS NULL""",
            (campaign, number),
        )
        return row is not None

    # --- rounds ------------------------------------------------------------------------------

    def open_rounds(self, campaign: int) -> list[int]:
        """Rounds that hold reports and are not sealed."""
        rows = self._db.rows(
            """SELECT number FROM round r WHERE campaign = %s AND stored AND sealed IS NULL
               AND EXISTS (SELECT FROM tally t
                           WHERE t.campaign = r.campaign AND t.round = r.number)
               ORDER BY number""",
            (campaign,),
        )
        return [number for (number,) in rows]

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""
        row = self._db.row(
            """SELECT number FROM round WHERE campaign = %s AND sealed IS NOT NULL
               ORDER BY number DESC LIMIT 1""",
            (campaign,),
        )
        return int(row[0]) if row else None

    def released(self, campaign: int, attribute: int) -> RoundSum | None:
        """All sealed rounds that were released, by themselves or together with others."""
        row = self._db.row(
            """SELECT first, last, rounds, n, counts FROM released_total
               WHERE campaign = %s AND attribute = %s""",
            (campaign, attribute),
        )
        return read_sum(*row) if row else None

    def unreleased(self, campaign: int, attribute: int) -> RoundSum | None:
        """The sealed rounds that were not released so far, together."""
        return self.find_sum(campaign, attribute, released=False)

    def find_sum(self, campaign: int, attribute: int, *, released: bool) -> RoundSum | None:
        """Rounds that are kept together, of one kind."""
        row = self._db.row(
            """SELECT first, last, rounds, n, counts FROM round_sum
               WHERE campaign = %s AND attribute = %s AND released = %s""",
            (campaign, attribute, released),
        )
        return read_sum(*row) if row else None

    def participation(
        self, campaign: int, attribute: int, *, released: bool = True
    ) -> tuple[list[int], list[int]]:
        """How many devices reported in how many of the released rounds, or of the others."""
        column = sql.Identifier("rounds" if released else "unreleased")
        rows = self._db.rows(
            sql.SQL(
                """SELECT {0}, count(*) FROM device WHERE campaign = %s AND attribute = %s
                   AND {0} > 0 GROUP BY {0} ORDER BY {0}"""
            ).format(column),
            (campaign, attribute),
        )
        return [rounds for rounds, _ in rows], [devices for _, devices in rows]


class Results(Reading):
    """What was published or has to be."""

    def results(
        self, campaign: int, attribute: int | None = None, rounds: range | None = None
    ) -> list[Result]:
        """Stored results, rounds in order and the pooled one first; of all rounds or of these."""
        first, end = (None, None) if rounds is None else (rounds.start, rounds.stop)
        rows = self._db.rows(
            """SELECT message FROM result WHERE campaign = %s
               AND (%s::integer IS NULL OR attribute = %s::integer)
               AND (%s::integer IS NULL OR (round >= %s::integer AND round < %s::integer))
               ORDER BY attribute, round""",
            (campaign, attribute, attribute, first, first, end),
        )
        return [read_result(message) for (message,) in rows]

    def unpublished(self, limit: int = 100) -> list[UnpublishedResult]:
        """Results that no broker has taken yet, the oldest rounds first."""
        rows = self._db.rows(
            """SELECT campaign, attribute, round, message
               FROM unpublished JOIN result USING (campaign, attribute, round)
               ORDER BY campaign, round, attribute LIMIT %s""",
            (limit,),
        )
        return [UnpublishedResult(*row) for row in rows]

    def clearable_receipts(self, campaign: int) -> list[int]:
        """Sealed rounds whose receipt pages still stand at the broker."""
        rows = self._db.rows(
            """SELECT number FROM round WHERE campaign = %s AND sealed IS NOT NULL
               AND NOT receipts_cleared ORDER BY number""",
            (campaign,),
        )
        return [number for (number,) in rows]

    def known(self, campaign: int) -> Campaign:
        """A campaign by its number, also one that another process opened a moment ago."""
        if campaign not in self._campaigns:
            self.campaigns()
        return self._campaigns[campaign]


def reports_of(campaign: int, number: int) -> sql.Identifier:
    """The table that holds the reports of an open round."""
    return sql.Identifier(f"report_{campaign:d}_{number:d}")


def added_up(parts: Iterable[tuple[int, Tally]]) -> dict[int, Tally]:
    """Tallies by attribute, those of all workers together."""
    total: dict[int, Tally] = {}
    for attribute, tally in parts:
        old = total.get(attribute)
        total[attribute] = (
            tally if old is None else Tally(old.n + tally.n, old.counts + tally.counts)
        )
    return total
