"""What can be read from the dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from collector.records import (
    NO_CAMPAIGN,
    Campaign,
    RoundSum,
    Tally,
    UnpublishedResult,
)
from collector.store.memory.tables import MemoryDatabase
from collector.store.shared import find_campaign, read_result
from protocol_spec import Outcome, Result


class MemoryReading:
    """Everything that changes nothing."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()
        self._tables = self.database.tables
        self._own_writes = 0

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
        return self._tables.outcome_totals.total()

    def outcomes(
        self, campaign: int | None = None, number: int | None = None
    ) -> dict[Outcome, int]:
        """Outcome counters of a campaign, of one of its rounds, or of everything received."""
        found: Counter[Outcome] = Counter()
        if number is None:
            for (of, outcome), n in self._tables.outcome_totals.items():
                found[outcome] += n if campaign in (None, of) else 0
        else:
            everywhere = [NO_CAMPAIGN, *self._tables.campaigns]
            where = everywhere if campaign is None else [campaign]
            for place in product(where, [number], Outcome):
                found[place[2]] += self._tables.outcomes[place]
        return {outcome: n for outcome, n in found.items() if n}

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round, open or sealed."""
        tallies = self._tables.tallies
        known = self._tables.campaigns.get(campaign)
        attributes = len(known.manifest.attributes) if known else 0
        keys = [(campaign, number, attribute) for attribute in range(attributes)]
        return {key[2]: tallies[key] for key in keys if key in tallies}

    def receipt_tags(self, campaign: int, number: int) -> Iterator[tuple[int, int]]:
        """(page, tag) of every report of an open round."""
        for report in list(self._tables.reports.get((campaign, number), {}).values()):
            yield report.page, report.tag

    def open_rounds(self, campaign: int) -> list[int]:
        """Rounds that hold reports and are not sealed."""
        tables = self._tables
        return sorted(r for c, r in tables.reports if c == campaign and (c, r) not in tables.sealed)

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""
        return self._tables.last_sealed.get(campaign)

    def released(self, campaign: int, attribute: int) -> RoundSum | None:
        """All sealed rounds that were released, by themselves or together with others."""
        return self._tables.released_totals.get((campaign, attribute))

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
