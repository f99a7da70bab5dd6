"""Simulated reports through a real collector without a broker: admission, store and sealing.

The messages, their counting (`ingest.count`) and the database are those of the service; only the
clock is the simulation's, so that a campaign of a year takes as long as its reports need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from collector import ingest
from collector.data_dir import only_service, open_store
from collector.device_key import DeviceKey
from collector.links import BATCH, Message
from collector.records import Campaign
from collector.results.facts import write_truth
from collector.rounds import sealing
from collector.store import Store
from protocol_spec import DEFAULT_NAMESPACE, Manifest
from simulation.collected import Simulated, from_store
from simulation.errors import SimulationError
from simulation.model.counts import Counts
from simulation.model.fleet import Fleet
from simulation.model.messages import Sent, of_round

GROUP: Final = BATCH  # messages of one transaction, as the service takes at most


def into(
    directory: Path, fleet: Fleet, progress: Callable[[int], None] = lambda _: None
) -> Simulated:
    """Collect a whole campaign into a data directory that a collector can show afterwards."""
    with only_service(directory), closing(open_store(directory)) as store:
        return _collect(store, directory, fleet, progress)


def _collect(
    store: Store, directory: Path, fleet: Fleet, progress: Callable[[int], None]
) -> Simulated:
    campaign = empty_campaign(store, fleet.manifest, directory)
    key = DeviceKey(directory / "device.key", make=store.received() == 0)
    campaigns = ingest.OpenCampaigns({campaign.name: campaign}, frozenset(), key, DEFAULT_NAMESPACE)
    schedule = fleet.manifest.rounds
    for t in range(fleet.rounds):
        _take(store, of_round(fleet, t, late=False), campaigns, schedule.opens(t), progress)
        sealing.seal(store, campaign, t, schedule.deadline(t))
        if fleet.behaviour.late:
            _take(store, of_round(fleet, t, late=True), campaigns, schedule.deadline(t), progress)
    made = from_store(store, campaign, fleet.rounds, held(fleet))
    keep_truth(directory, made)
    return made


def empty_campaign(store: Store, manifest: Manifest, directory: Path) -> Campaign:
    """Open the campaign, unless the directory already holds reports of it: they may be real."""
    campaign = store.open_campaign(manifest, manifest.created)
    if store.outcomes(campaign.id) or store.last_sealed(campaign.id) is not None:
        raise SimulationError(
            f"{directory} already holds reports of {campaign.name}; nothing was added. Choose an "
            "empty directory"
        )
    return campaign


def keep_truth(directory: Path, made: Simulated) -> None:
    """Tell the collector's page what is true, so that it can be drawn beside the estimates."""
    names = [attribute.name for attribute in made.manifest.attributes]
    shares = {name: made.true_frequencies(i).tolist() for i, name in enumerate(names)}
    write_truth(directory, made.manifest.campaign, shares)


def held(fleet: Fleet) -> list[Counts]:
    """Who holds what in each round, by attribute."""
    truth = [np.tile(row, (fleet.rounds, 1)) for row in fleet.truth]
    if fleet.behaviour.changes:
        truth = [np.zeros_like(table) for table in truth]
        for batch in fleet.batches():
            for t in range(fleet.rounds):
                batch.reports(only_state=True)
                truth[batch.attribute][t] += batch.held()
    return truth


def _take(
    store: Store,
    sent: Iterable[Sent],
    campaigns: ingest.OpenCampaigns,
    now: float,
    progress: Callable[[int], None],
) -> None:
    arriving = iter(sent)
    while group := list(islice(arriving, GROUP)):
        ingest.count((Message(*message) for message in group), store, campaigns, now)
        progress(len(group))
