"""The memory engine: dictionaries, for tests, notebooks and simulations without a disk.

It keeps every claim of the port but one: what it counts is as durable as its process. Several
stores over one `MemoryDatabase` behave as several processes over one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

from collector.records import (
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
from collector.store.memory.counting import changed_tallies, outcomes_of, withdraw
from collector.store.memory.reading import MemoryReading
from collector.store.memory.tables import KnownDevice, MemoryDatabase, Tables
from collector.store.shared import (
    attribute_index,
    count_outcomes,
    count_requests,
    require_same,
    together,
)
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

    def end_reports(self, released: Set[int], set_aside: Set[int]) -> None:
        """Count the round for each device that took part in it, and delete its reports."""
        devices = self._tables.devices
        for report in self._tables.reports.pop((self._campaign.id, self._number), {}).values():
            key = (self._campaign.id, report.device)
            known = devices.get(key) or KnownDevice(report.attribute)
            devices[key] = known._replace(
                released=known.released + (report.attribute in released),
                unreleased=known.unreleased + (report.attribute in set_aside),
            )
        for attribute in released:
            self._add_released(attribute, self._alone(attribute))

    def set_aside(self, attribute: int) -> None:
        """Add the round's counts to the unreleased ones; of the round itself n stays."""
        self._add(attribute, False, self._alone(attribute))
        self.erase(attribute)

    def _alone(self, attribute: int) -> RoundSum:
        return RoundSum(self._number, self._number, 1, self.tallies[attribute])

    def erase(self, attribute: int) -> None:
        """Delete the round's counts; n stays."""
        key = (self._campaign.id, self._number, attribute)
        self._tables.tallies[key] = Tally(self._tables.tallies[key].n, NO_COUNTS)

    def release(self, attribute: int) -> None:
        """All that was unreleased is released, for devices and counts alike."""
        waited = self._tables.sums.pop((self._campaign.id, attribute, False))
        self._add(attribute, True, waited)
        self._add_released(attribute, waited)
        for key, known in self._tables.devices.items():
            if (key[0], known.attribute) == (self._campaign.id, attribute):
                rounds = known.released + known.unreleased
                self._tables.devices[key] = KnownDevice(attribute, rounds)

    def drop_unreleased(self) -> None:
        """Delete what was not released of any attribute."""
        drop_unreleased(self._tables, self._campaign.id)

    def _add(self, attribute: int, released: bool, rounds: RoundSum) -> None:
        key = (self._campaign.id, attribute, released)
        known = self._tables.sums.get(key)
        self._tables.sums[key] = together([known, rounds] if known else [rounds])

    def _add_released(self, attribute: int, rounds: RoundSum) -> None:
        totals, key = self._tables.released_totals, (self._campaign.id, attribute)
        totals[key] = together([totals[key], rounds] if key in totals else [rounds])

    def write(self, results: Sequence[Result], number: int) -> None:
        """Store results of the round, or under `POOLED`, to be published."""
        for result in results:
            key = (self._campaign.id, number, attribute_index(self._campaign, result))
            self._tables.results[key] = result.encode()
            self._tables.published.discard(key)


def drop_unreleased(tables: Tables, campaign: int) -> bool:
    """Delete the counts of a campaign that were not released; whether there were any."""
    gone = [key for key in tables.sums if key[0] == campaign and not key[2]]
    for key in gone:
        del tables.sums[key]
    for device, known in tables.devices.items():
        if device[0] == campaign and known.unreleased:
            tables.devices[device] = known._replace(unreleased=0)
    return bool(gone)


class MemoryStore(MemoryReading):
    """The collector's memory in this process."""

    def open_campaign(self, manifest: Manifest, at: int, signature: bytes = b"") -> Campaign:
        """Add a campaign, with its operator's signature; opening it again changes nothing else."""
        with self._writing() as tables:
            known = {c.name: c for c in tables.campaigns.values()}
            new = Campaign(len(known) + 1, manifest, at, None)
            opened = known.get(manifest.campaign, new)
            require_same(opened.manifest.to_bytes(), manifest)
            tables.campaigns[opened.id] = opened
            if signature:
                tables.signatures[opened.id] = signature
        return self.campaign(manifest.campaign)

    def signature(self, campaign: int) -> bytes:
        """The operator's signature of a campaign's manifest; empty where it has none."""
        return self._tables.signatures.get(campaign, b"")

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
            counted = count_outcomes(candidates, outcomes, refusals)
            tables.outcomes.update(counted)
            for (campaign, _, outcome), n in counted.items():
                tables.outcome_totals[campaign, outcome] += n
        return outcomes

    def withdraw(
        self, asked: Sequence[tuple[int, int]], *, repeated: int = 0, invalid: int = 0
    ) -> list[Withdrawal]:
        """Forget devices, and count the requests."""
        with self._writing() as tables:
            done = [withdraw(tables, campaign, device) for campaign, device in asked]
            gone = [report for each in done for report in each.reports]
            tables.tallies |= changed_tallies(tables, gone, -1)
            tables.requests += count_requests(done, repeated, invalid)
        return done

    def requests(self) -> dict[RequestOutcome, int]:
        """Requests to be forgotten, ever, by what became of them."""
        return {outcome: n for outcome, n in self.database.tables.requests.items() if n}

    @contextmanager
    def sealing(self, campaign: Campaign, number: int, at: int) -> Iterator[MemorySealing | None]:
        """Close a round for ever when the block ends well; None if it was sealed before."""
        key = (campaign.id, number)
        with self.database.transaction() as tables, self._writing():
            begun = key not in tables.sealed
            tables.sealed.setdefault(key, at)
            if begun:
                tables.last_sealed[campaign.id] = number
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

    def drop_unreleased(self, campaign: int) -> bool:
        """Delete the counts that were not released, when no round can be added to them."""
        with self._writing() as tables:
            return drop_unreleased(tables, campaign)

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
