"""What one round costs a collector as the fleet grows: `python -m simulation.scaling 1000 10000`.

Every report of a simulated fleet is admitted, committed in groups and sealed, as by the service but
without a broker. Costs are processor seconds, so that other work on the machine counts little.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from collector.data_dir import DeviceKey, open_store
from collector.ingest import OpenCampaigns
from collector.ingest.batch import decide
from collector.links import Message
from collector.records import Candidate
from collector.rounds import sealing
from protocol_spec import DEFAULT_NAMESPACE, Manifest
from simulation.depths import GROUP
from simulation.fleet import Fleet, of_round
from simulation.population import Behaviour, for_dataset, populate

Made = TypeVar("Made")


@dataclass(slots=True)
class Cost:
    """Of one round: processor seconds of each step, and the largest size of the files."""

    devices: int
    making_seconds: float = 0.0
    admitting_seconds: float = 0.0
    committing_seconds: float = 0.0
    sealing_seconds: float = 0.0
    disk_bytes: int = 0

    def spend(self, step: str, work: Callable[[], Made]) -> Made:
        """Do a piece of work and add its time to a step's."""
        began = time.process_time()
        made = work()
        name = f"{step}_seconds"
        setattr(self, name, getattr(self, name) + time.process_time() - began)
        return made

    def row(self) -> str:
        """A line of a Markdown table, per report."""
        cells = [f"{1e6 * seconds / self.devices:.1f}" for seconds in self.steps()]
        return f"| {self.devices:,} | {' | '.join(cells)} | {self.disk_bytes / self.devices:.0f} |"

    def steps(self) -> tuple[float, ...]:
        """Seconds of each step, in order."""
        admitted = (self.making_seconds, self.admitting_seconds)
        return (*admitted, self.committing_seconds, self.sealing_seconds)


def measure(devices: int, directory: Path) -> Cost:
    """One round of a fleet that holds the data set Adult, all of its nine attributes."""
    manifest = Manifest.from_toml(for_dataset("adult", eps_inf=2.0, eps_1=0.6))
    truth = populate(manifest, ["adult"], devices, seed=1).drawn(1)
    messages = of_round(Fleet(manifest, truth, Behaviour(), 1, 1), 0, late=False)
    cost, schedule = Cost(devices), manifest.rounds
    with closing(open_store(directory)) as store:
        campaign = store.open_campaign(manifest, manifest.created)
        key = DeviceKey(directory / "device.key")
        known = OpenCampaigns({campaign.name: campaign}, frozenset(), key, DEFAULT_NAMESPACE)

        def admitted(group: list[tuple[str, bytes]]) -> list[Candidate]:
            messages = [Message(*sent) for sent in group]
            return decide(messages, known, schedule.opens(0)).candidates

        while group := cost.spend("making", lambda: list(islice(messages, GROUP))):
            candidates = cost.spend("admitting", partial(admitted, group))
            cost.spend("committing", partial(store.commit, candidates, []))
        cost.disk_bytes = sum(file.stat().st_size for file in directory.iterdir())
        at = schedule.deadline(0)
        cost.spend("sealing", lambda: sealing.seal(store, campaign, 0, at))
    return cost


def main(sizes: list[int]) -> None:
    """A table with a row for each size."""
    print("| devices | making | admitting | committing | sealing | bytes on disk |")
    print("|---|---|---|---|---|---|")
    for devices in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            print(measure(devices, Path(scratch) / "data").row(), flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
