"""A cluster in a run: nodes, workers and the database fail."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collector.store import Store
from edge_client.records import Timing
from faults.bulk import BulkDevices, Receipts
from faults.bulk_run import BulkRun
from faults.campaigns import bulk_manifest
from faults.course import Say
from faults.many import ManySite, faults_of_many
from faults.oracle import Verdict

LEAD_SECONDS: Final = 8
# As patient as agents. Of so many that lost their connection some always try again soon.
TIMING: Final = Timing(reconnect_longest=4.0)


@dataclass(frozen=True, slots=True)
class ManySize:
    """How many devices are in each of how many campaigns, how many rounds, and how long one is."""

    devices: int = 2_000
    campaigns: int = 17
    rounds: int = 3
    period_seconds: int = 60


class ManyRun(BulkRun[ManySite]):
    """A cluster, its campaigns and its devices."""

    recover_seconds = 300.0

    def __init__(self, site: ManySite, size: ManySize, seed: int, say: Say) -> None:
        super().__init__(site, seed, say)
        self._size = size

    def open(self, receipts: Receipts) -> None:
        """Campaigns that are all alike."""
        size, first = self._size, int(time.time()) + LEAD_SECONDS
        for number in range(size.campaigns):
            made = bulk_manifest(
                f"many-{number}", size.devices, first, size.period_seconds, size.rounds
            )
            bulk = BulkDevices(made, size.devices, receipts, TIMING)
            self.bulk.append((self.site.open(made), bulk))
        total = size.devices * size.campaigns
        self.say(f"{size.campaigns} campaigns, {total:,} devices, {size.rounds} rounds")

    def store(self) -> AbstractContextManager[Store]:
        """Everybody's database."""
        return self.site.cluster.workers[0].store()

    def compare(self) -> Verdict:
        """Every message has an outcome, too."""
        found = super().compare()
        with self.store() as store:
            total, received = sum(store.outcomes().values()), store.received()
        if total != received:
            found.faults.append(f"{received} messages received, and {total} outcomes")
        if self.site.hung:
            self.say(f"nodes that did not come up in time: {self.site.hung}, killed again")
        return found


def run_many(work: Path, size: ManySize, seed: int, say: Say) -> tuple[Counter[str], Verdict]:
    """A cluster of its own for one seed: what happened to it, and what was found."""
    with ManySite(work) as site:
        made, cluster = ManyRun(site, size, seed, say), site.cluster
        receipts = Receipts(cluster.port, str(cluster.authority))
        urls = [node.url for node in cluster.nodes]
        return made.course.happened, made.judge(receipts, urls, faults_of_many())
