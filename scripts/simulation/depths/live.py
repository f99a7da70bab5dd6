"""A real collector on a campaign whose rounds begin soon, for the depths that run in real time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from collector.data_dir import open_store
from collector.records import Campaign
from protocol_spec import Manifest
from simulation.collected import Simulated, from_store
from simulation.depths.collecting import empty_campaign, keep_truth
from simulation.model.counts import Counts
from testbed.collector import CollectorProcess


def retimed(manifest: Manifest, *, rounds: int, period_seconds: int, lead_seconds: int) -> Manifest:
    """The same campaign with short rounds that begin soon. It is another campaign by name."""
    now = int(time.time())
    each = min(manifest.rounds.each, rounds)
    schedule = replace(
        manifest.rounds,
        first=now + lead_seconds,
        period=period_seconds,
        count=rounds,
        grace=period_seconds,
        each=each,
    )
    eps_1 = manifest.eps_inf / each if each else manifest.eps_1
    made = replace(manifest, created=now, expires=schedule.end, rounds=schedule, eps_1=eps_1)
    return Manifest.from_bytes(made.to_bytes())


@dataclass(frozen=True, slots=True)
class LiveCampaign:
    """A campaign and the collector that runs it."""

    campaign: Campaign
    collector: CollectorProcess

    @property
    def manifest(self) -> Manifest:
        """The campaign's."""
        return self.campaign.manifest

    @property
    def directory(self) -> Path:
        """The collector's data directory; other files of the simulation lie there too."""
        return self.collector.data

    def wait_until_sealed(self, number: int) -> None:
        """Until the collector has sealed a round."""
        self.collector.wait_until_sealed(self.campaign, number)

    def simulated(self, truth: list[Counts]) -> Simulated:
        """What the collector has in the end; the truth is kept beside it for its page."""
        with self.collector.store() as store:
            made = from_store(store, self.campaign, self.manifest.rounds.count, truth)
        keep_truth(self.directory, made)
        return made


@contextmanager
def collecting_live(
    directory: Path, manifest: Manifest, broker: str | None = None
) -> Iterator[LiveCampaign]:
    """A collector on an empty campaign, connected to the embedded broker or one at an address."""
    with closing(open_store(directory)) as store:
        campaign = empty_campaign(store, manifest, directory)
    with CollectorProcess(directory, broker=broker) as collector:
        collector.wait_until_connected()
        yield LiveCampaign(campaign, collector)
