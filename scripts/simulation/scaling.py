"""What one round costs a collector as the fleet grows: `python -m simulation.scaling 1000 10000`.

Every report of a simulated fleet is admitted, committed in groups and sealed, as by the service but
without a broker. Costs are processor seconds, so that other work on the machine counts little.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path

from collector.data_dir import DeviceKey, open_store
from collector.ingest import OpenCampaigns
from collector.ingest.batch import decide
from collector.links import Message
from collector.rounds import sealing
from protocol_spec import DEFAULT_NAMESPACE, Manifest
from simulation.depths import GROUP
from simulation.fleet import Fleet
from simulation.population import Behaviour, for_dataset, populate

STEPS = ("making", "admitting", "committing", "sealing")


def measure(devices: int, directory: Path) -> dict[str, float]:
    """One round of a fleet that holds the data set Adult, all of its nine attributes: microseconds
    of a report in each step, and its bytes on disk at the most."""
    manifest = Manifest.from_toml(for_dataset("adult", eps_inf=2.0, eps_1=0.6))
    truth = populate(manifest, ["adult"], devices, seed=1).drawn(1)
    messages = Fleet(manifest, truth, Behaviour(), 1, 1).messages(0, late=False)
    schedule, spent, before = manifest.rounds, Counter[str](), time.process_time()

    def done(step: str) -> None:
        nonlocal before
        now = time.process_time()
        spent[step] += now - before  # type: ignore[assignment]
        before = now

    with closing(open_store(directory)) as store:
        campaign = store.open_campaign(manifest, manifest.created)
        key = DeviceKey(directory / "device.key")
        known = OpenCampaigns({campaign.name: campaign}, frozenset(), key, DEFAULT_NAMESPACE)
        while group := [Message(*sent) for sent in islice(messages, GROUP)]:
            done("making")
            candidates = decide(group, known, schedule.opens(0)).candidates
            done("admitting")
            store.commit(candidates, [])
            done("committing")
        size = sum(file.stat().st_size for file in directory.iterdir())
        done("making")
        sealing.seal(store, campaign, 0, schedule.deadline(0))
        done("sealing")
    return {**{step: 1e6 * spent[step] / devices for step in STEPS}, "disk": size / devices}


if __name__ == "__main__":
    print("| devices | making | admitting | committing | sealing | bytes on disk |")
    print("|---|---|---|---|---|---|")
    for number in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as scratch:
            cost = measure(number, Path(scratch) / "data")
        cells = [f"{cost[step]:.1f}" for step in STEPS]
        print(f"| {number:,} | {' | '.join(cells)} | {cost['disk']:.0f} |", flush=True)
