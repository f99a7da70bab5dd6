"""The memory engine: dictionaries, for tests, notebooks and simulations without a disk.

It keeps every claim of the port but one: what it counts is as durable as its process. Several
stores over one `MemoryDatabase` behave as several processes over one file.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from collector.records import Campaign, Candidate, Refusal, Tally, UnpublishedResult
from collector.store.memory.counting import changed_tallies, outcomes_of
from collector.store.memory.reading import MemoryReading
from collector.store.memory.tables import MemoryDatabase, Tables
from collector.store.shared import attribute_index, count_outcomes
from protocol_spec import Manifest, Outcome, Result

__all__ = ["MemoryDatabase", "MemoryStore"]


@dataclass(frozen=True, slots=True)
class MemorySealing:
    """A round inside the transaction that seals it."""

    tallies: Mapping[int, Tally]
    outcomes: Mapping[Outcome, int]
    _tables: Tables
    _campaign: Campaign
    _number: int

    def end_reports(self) -> None:
        """Count the round for each device that took part in it, and delete its reports."""
        devices = self._tables.devices
        for report in self._tables.reports.pop((self._campaign.id, self._number), {}).values():
            key = (self._campaign.id, report.device)
            attribute, rounds = devices.get(key, (report.attribute, 0))
            devices[key] = attribute, rounds + 1

    def write(self, results: Sequence[Result], number: int) -> None:
        """Store results of the round, or under `POOLED`, to be published."""
        for result in results:
            key = (self._campaign.id, number, attribute_index(self._campaign, result))
            self._tables.results[key] = result.encode()
            self._tables.published.discard(key)


class MemoryStore(MemoryReading):
    """The collector's memory in this process."""

    def open_campaign(self, manifest: Manifest, at: int) -> Campaign:
        """Add a campaign; opening it again changes nothing."""
        with self._writing() as tables:
            if manifest.campaign not in {c.name for c in tables.campaigns.values()}:
                key = len(tables.campaigns) + 1
                tables.campaigns[key] = Campaign(key, manifest, at, None)
        return self.campaign(manifest.campaign)

    def close_campaign(self, campaign: Campaign, at: int) -> None:
        """Take no more reports."""
        with self._writing() as tables:
            known = tables.campaigns[campaign.id]
            closed = at if known.closed is None else known.closed
            tables.campaigns[campaign.id] = replace(known, closed=closed)

    def revoke(self, device: str, at: int) -> None:
        """Take no more reports from a device."""
        with self._writing() as tables:
            tables.revoked.setdefault(device, at)

    def reinstate(self, device: str) -> None:
        """Take a device's reports again."""
        with self._writing() as tables:
            tables.revoked.pop(device, None)

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch: first all that can fail, then the changes."""
        with self._writing() as tables:
            outcomes = outcomes_of(tables, candidates)
            accepted = [c for c, o in zip(candidates, outcomes) if o is Outcome.ACCEPTED]
            tallies = changed_tallies(tables, accepted, +1)
            for c in accepted:
                tables.reports.setdefault((c.campaign, c.round), {})[c.device] = c
            tables.tallies |= tallies
            tables.outcomes += count_outcomes(candidates, outcomes, refusals)
        return outcomes

    def withdraw(self, campaign: Campaign, device: int) -> int:
        """Take a device's reports out of every open round and forget the device."""
        with self._writing() as tables:
            rounds = [r for key, r in tables.reports.items() if key[0] == campaign.id]
            holding = [reports for reports in rounds if device in reports]
            tables.tallies |= changed_tallies(tables, [r[device] for r in holding], -1)
            for reports in holding:
                del reports[device]
            known = tables.devices.pop((campaign.id, device), None)
            if known is not None:
                tables.devices[campaign.id, -1 - secrets.randbits(63)] = known
        return len(holding)

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[MemorySealing | None]:
        """Close a round for ever when the block ends well; None if it was sealed before."""
        key = (campaign.id, number)
        with self.database.transaction() as tables, self._writing():
            begun = key not in tables.sealed
            tables.sealed.setdefault(key, at)
            counted = self.tallies(*key), self.outcomes(*key)
            yield MemorySealing(*counted, tables, campaign, number) if begun else None

    def drop_devices(self, campaign: int) -> bool:
        """Forget which devices took part, at the end of the manifest's retention."""
        gone = [key for key in self.database.tables.devices if key[0] == campaign]
        if gone:
            with self._writing() as tables:
                for key in gone:
                    del tables.devices[key]
        return bool(gone)

    def wipe_log(self) -> None:
        """There is no log."""

    def mark_published(self, result: UnpublishedResult) -> None:
        """The broker has taken this result; a newer pooled one stays to be published."""
        key = (result.campaign, result.round, result.attribute)
        with self._writing() as tables:
            if tables.results.get(key) == result.message:
                tables.published.add(key)

    def publish_again(self) -> None:
        """A broker that may have forgotten gets every result once more."""
        with self._writing() as tables:
            tables.published.clear()

    def mark_receipts_cleared(self, campaign: int, number: int) -> None:
        """The receipt pages of a round are gone from the broker."""
        with self._writing() as tables:
            tables.cleared.add((campaign, number))

    @contextmanager
    def _writing(self) -> Iterator[Tables]:
        """One writer at a time; other stores can notice that something was written."""
        with self.database.lock:
            yield self.database.tables
            self.database.writes += 1
            self._own_writes += 1
