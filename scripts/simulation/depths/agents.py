"""Real agents, a real broker and a real collector, in real time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from protocol_spec import Attribute, Manifest
from simulation.collected import Progress, Simulated
from simulation.depths.live import LiveCampaign
from simulation.model.counts import Counts
from simulation.model.population import Population
from testbed.agents import AgentProcesses, Readings

Holdings = Mapping[str, int]  # of one device: by attribute, which of its values


def holdings(manifest: Manifest, population: Population, seed: int) -> list[Holdings]:
    """What each device holds of every attribute, shuffled for each of them."""
    columns = []
    for index, attribute in enumerate(manifest.attributes):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(5, index)))
        places = np.repeat(np.arange(attribute.k), population.counts[index])
        columns.append(rng.permutation(places).tolist())
    names = [attribute.name for attribute in manifest.attributes]
    return [dict(zip(names, places)) for places in zip(*columns)]


def real_agents(
    live: LiveCampaign, devices: list[Holdings], processes: int, progress: Progress
) -> Simulated:
    """Real agents in some processes; each draws its attribute itself, so the truth is theirs."""
    manifest, broker = live.manifest, live.collector.broker_url
    readings = {device: _readings(manifest, held) for device, held in enumerate(devices)}
    root = live.directory / "devices"
    with AgentProcesses(root, manifest, broker, readings, processes) as agents:
        for t in range(manifest.rounds.count):
            live.wait_until_sealed(t)
            progress(len(agents.drawn))
        agents.stop()
    return live.simulated(_truth(manifest, devices, agents.drawn))


def reading(attribute: Attribute, place: int) -> str | float:
    """What a source would say: the value's name, or a number in its bin."""
    if attribute.edges is None or place == attribute.otherwise:
        return attribute.values[place]
    low, high = attribute.edges[place : place + 2]
    return low if math.isfinite(low) else math.nextafter(high, -math.inf)


def _readings(manifest: Manifest, held: Holdings) -> Readings:
    return {a.name: reading(a, held[a.name]) for a in manifest.attributes}


def _truth(manifest: Manifest, devices: list[Holdings], drawn: Mapping[int, str]) -> list[Counts]:
    truth = []
    for attribute in manifest.attributes:
        own = [devices[d][attribute.name] for d, name in drawn.items() if name == attribute.name]
        counts = np.bincount(np.asarray(own, dtype=np.int64), minlength=attribute.k)
        truth.append(np.tile(counts.astype(np.int64), (manifest.rounds.count, 1)))
    return truth
