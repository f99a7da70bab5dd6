"""One collector and one broker in a run, with real agents beside the bulk devices."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collector.records import Campaign
from collector.store import Store
from faults.agents import TIMING
from faults.bulk import BulkDevices, Receipts
from faults.bulk_run import BulkRun
from faults.campaigns import agents_manifest, bulk_manifest
from faults.course import Say
from faults.kinds import faults_for
from faults.oracle import Verdict, judge_agents
from faults.site import Loss, Site

AGENTS: Final = 6
ODD_AGENTS: Final = 3
LEAD_SECONDS: Final = 6


@dataclass(frozen=True, slots=True)
class Size:
    """How long it goes on, how many bulk devices there are in the larger of two campaigns, and how
    long a round takes."""

    minutes: float = 5.0
    devices: int = 2_000
    period_seconds: int = 12

    @property
    def rounds(self) -> int:
        """So that the last deadline is at the end."""
        return max(2, round(self.minutes * 60 / self.period_seconds) - 1)


class Run(BulkRun[Site]):
    """A site, its campaigns, its devices and its agents."""

    recover_seconds = 240.0  # until every agent has its receipts, too

    def __init__(self, site: Site, size: Size, seed: int, say: Say) -> None:
        super().__init__(site, seed, say)
        self._size = size
        self._agents: Campaign

    def open(self, receipts: Receipts) -> None:
        """Two campaigns of bulk devices, and one of agents."""
        site, size = self.site, self._size
        first = int(time.time()) + LEAD_SECONDS
        for slug, devices in (("many", size.devices), ("few", max(10, size.devices // 10))):
            made = bulk_manifest(slug, devices, first, size.period_seconds, size.rounds)
            self.bulk.append((site.open(made), BulkDevices(made, devices, receipts, TIMING)))
        asked = agents_manifest(first, size.period_seconds, size.rounds)
        self._agents = site.open(asked)
        site.add_agents("agents", asked, [f"agent-{n}" for n in range(AGENTS)])
        site.add_agents("odd", asked, [f"odd-{n}" for n in range(ODD_AGENTS)])
        self.say(f"3 campaigns, {AGENTS + ODD_AGENTS} agents, {size.rounds} rounds")

    def store(self) -> AbstractContextManager[Store]:
        """The collector's own."""
        return self.site.collector.store()

    def is_done(self, store: Store) -> bool:
        """Whether every agent has its receipts, too."""
        return super().is_done(store) and self.site.agents[0].have_delivered

    @property
    def losses(self) -> Sequence[Loss]:
        """One of the faults."""
        return self.site.losses

    def compare(self) -> Verdict:
        """What agents drew, too, byte for byte."""
        found, agents = super().compare(), self.site.agents
        data = self.site.collector.data
        found.add(judge_agents(data, self._agents, agents[:1], agents[1:]))
        return found


def run(
    work: Path, kind: str, size: Size, seed: int, say: Say, *, tls: bool
) -> tuple[Counter[str], Verdict]:
    """A site of its own for one seed: what happened to it, and what was found."""
    with Site(work, kind, tls=tls) as site:
        made = Run(site, size, seed, say)
        receipts = Receipts(site.broker_port, site.authority or None)
        return made.course.happened, made.judge(receipts, [site.devices_url], faults_for(kind))
