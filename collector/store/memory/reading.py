"""What can be read from the dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from collector.records import Campaign, RoundSum, Tally, UnpublishedResult
from collector.store.memory.tables import MemoryDatabase, Tables
from collector.store.shared import find_campaign, read_result, together
from protocol_spec import Outcome, Result


class MemoryReading:
    """Everything that changes nothing."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()
        self._own_writes = 0

    @property
    def _tables(self) -> Tables:
        return self.database.tables

    def close(self) -> None:
        """Nothing to release: the database lives on with whoever holds it."""

    def campaigns(self) -> list[Campaign]:
        """Every campaign, open and closed, oldest first."""
        return list(self._tables.campaigns.values())

    def campaign(self, name: str | None) -> Campaign:
        """One campaign by its name or the beginning of it; the only one when not named."""
        return find_campaign(self.campaigns(), name)

    def revoked(self) -> frozenset[str]:
        """Names of devices whose reports are no longer taken."""
        return frozenset(self._tables.revoked)

    def changed_elsewhere(self) -> int:
        """A number that changes when another store on the same database wrote."""
        return self.database.writes - self._own_writes

    def received(self) -> int:
        """Messages received, ever; always the sum of all outcomes."""
        return self._tables.outcomes.total()

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        """Outcome counters of a campaign, of one of its rounds, or of everything received."""
        found: Counter[Outcome] = Counter()
        for (where, of_round, outcome), n in self._tables.outcomes.items():
            if campaign in (None, where) and number in (None, of_round):
                found[outcome] += n
        return dict(found)

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round, open or sealed."""
        tables = self._tables.tallies
        return {a: tally for (c, r, a), tally in tables.items() if (c, r) == (campaign, number)}

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        """(page, tag) of every report of an open round."""
        for report in list(self._tables.reports.get((campaign, number), {}).values()):
            yield report.page, report.tag

    def open_rounds(self, campaign: int) -> list[int]:
        """Rounds that hold reports and are not sealed."""
        counted = {(c, r) for c, r, _ in self._tables.tallies if c == campaign}
        return sorted(number for _, number in counted - self._tables.sealed.keys())

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""
        return max((number for c, number in self._tables.sealed if c == campaign), default=None)

    def released(self, campaign: int, attribute: int) -> RoundSum | None:
        """All sealed rounds that were released, by themselves or together with others."""
        parts = [
            RoundSum(r, r, 1, tally)
            for (c, r, a), tally in self._tables.tallies.items()
            if (c, a) == (campaign, attribute)
            and tally.n
            and tally.counts.size
            and (c, r) in self._tables.sealed
        ]
        others = self._tables.sums.get((campaign, attribute, True))
        return together([*parts, others] if others else parts)

    def unreleased(self, campaign: int, attribute: int) -> RoundSum | None:
        """The sealed rounds that were not released so far, together."""
        return self._tables.sums.get((campaign, attribute, False))

    def participation(
        self, campaign: int, attribute: int, *, released: bool = True
    ) -> tuple[list[int], list[int]]:
        """How many devices reported in how many of the released rounds, or of the others."""
        found = Counter(
            known.released if released else known.unreleased
            for (c, _), known in self._tables.devices.items()
            if (c, known.attribute) == (campaign, attribute)
        )
        rounds = sorted(found.keys() - {0})
        return rounds, [found[m] for m in rounds]

    def results(
        self, campaign: int, attribute: int | None = None, rounds: range | None = None
    ) -> list[Result]:
        """Stored results, rounds in order and the pooled one first; of all rounds or of these."""
        stored = sorted(self._tables.results, key=lambda key: (key[2], key[1]))
        return [
            read_result(self._tables.results[c, r, a])
            for c, r, a in stored
            if c == campaign and attribute in (None, a) and (rounds is None or r in rounds)
        ]

    def unpublished(self, limit: int = 100) -> list[UnpublishedResult]:
        """Results that no broker has taken yet, the oldest rounds first."""
        waiting = sorted(self._tables.results.keys() - self._tables.published)
        return [
            UnpublishedResult(c, a, r, self._tables.results[c, r, a]) for c, r, a in waiting[:limit]
        ]

    def clearable_receipts(self, campaign: int) -> list[int]:
        """Sealed rounds whose receipt pages still stand at the broker."""
        standing = self._tables.sealed.keys() - self._tables.cleared
        return sorted(number for c, number in standing if c == campaign)
