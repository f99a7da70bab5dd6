"""Which campaigns there are: opened, closed and changed by other processes, and noticed here."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from collector.ingest.admit import OpenCampaigns
from collector.records import Campaign
from collector.rounds.sealing import due
from collector.store import Store


@dataclass(frozen=True, slots=True)
class Change:
    """Campaigns that were opened and closed since the last look."""

    opened: list[Campaign] = field(default_factory=list)
    closed: list[Campaign] = field(default_factory=list)


class CampaignCache:
    """All campaigns of a store, and those that reports are still taken for."""

    def __init__(self, store: Store, known: OpenCampaigns) -> None:
        self.campaigns: dict[int, Campaign] = {}
        self.open: dict[str, Campaign] = {}
        self.admitted = known
        self._store = store
        self._closing: Set[int] = frozenset()
        self._version: int | None = None

    def look(self, now: float) -> Change | None:
        """What another process changed; None if it changed nothing."""
        version = self._store.changed_elsewhere()
        if version == self._version:
            return None
        self._version = version
        self.campaigns = {c.id: c for c in self._store.campaigns()}
        before = self.open
        self.open = {c.name: c for c in self.campaigns.values() if c.closed is None}
        closed = [c for c in self.campaigns.values() if c.closed is not None]
        closing = {c.id for c in closed if next(due(self._store, c, now), None) is not None}
        self._admit(closing, self._store.revoked())
        return Change(
            [self.open[name] for name in self.open.keys() - before.keys()],
            [before[name] for name in before.keys() - self.open.keys()],
        )

    def waiting(self, waiting: Set[int]) -> None:
        """Only these campaigns have a round that is due and not sealed."""
        if not self._closing <= waiting:
            self._admit(self._closing & waiting, self.admitted.revoked)

    def _admit(self, closing: Set[int], revoked: frozenset[str]) -> None:
        """Take reports for open campaigns, and for closed ones until their rounds are sealed: the
        broker may hold what was sent before the closing."""
        self._closing = closing
        still = {c.name: c for c in self.campaigns.values() if c.id in closing}
        self.admitted = replace(self.admitted, by_name=self.open | still, revoked=revoked)
