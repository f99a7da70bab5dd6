"""Depths that run in real time: reports through a broker, and real agents."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np

from protocol_spec import Attribute, Manifest
from simulation.collected import Simulated
from simulation.collecting import held
from simulation.fleet import Fleet
from simulation.population import Population
from simulation.publisher import publish
from simulation.stage import Stage, StageFailure
from simulation.sufficient import Counts
from simulation.wire import of_round

Progress = Callable[[int], None]
Holdings = Mapping[str, int]  # of one device: by attribute, which of its values


def reports_through_broker(stage: Stage, fleet: Fleet, progress: Progress) -> Simulated:
    """Every report as a message to a broker, in the round it belongs to; late ones after it."""
    schedule, sent = fleet.manifest.rounds, 0
    for t in range(fleet.rounds):
        time.sleep(max(0.0, schedule.opens(t) - time.time()))
        sent += publish(stage.url, of_round(fleet, t, late=False), progress)
        if fleet.behaviour.late:
            stage.wait_until_sealed(t)
            sent += publish(stage.url, of_round(fleet, t, late=True), progress)
    stage.wait_until_sealed(fleet.rounds - 1)
    stage.wait("the last messages", lambda: stage.received() >= sent)
    return stage.simulated(held(fleet))


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
    stage: Stage, devices: list[Holdings], processes: int, progress: Progress
) -> Simulated:
    """Real agents in some processes; each draws its attribute itself, so the truth is theirs."""
    children = [
        _start_agents(stage, range(i, len(devices), processes), devices, i)
        for i in range(processes)
    ]
    drawn: dict[int, str] = {}
    for number, child in enumerate(children):
        line = child.stdout.readline() if child.stdout else b""
        if not line:
            log = stage.directory / f"agents-{number}.log"
            raise StageFailure(f"a process of agents ended; nothing was simulated. See {log}")
        drawn.update({int(device): name for device, name in json.loads(line).items()})
        progress(0)
    for t in range(stage.manifest.rounds.count):
        stage.wait_until_sealed(t)
        progress(len(drawn))
    for child in children:
        child.send_signal(signal.SIGTERM)
    for child in children:
        child.wait(60)
    return stage.simulated(_truth(stage.manifest, devices, drawn))


def _start_agents(
    stage: Stage, mine: range, devices: list[Holdings], number: int
) -> subprocess.Popen[bytes]:
    readings = {
        device: {a.name: reading(a, devices[device][a.name]) for a in stage.manifest.attributes}
        for device in mine
    }
    values = stage.directory / f"devices-{number}.json"
    values.write_text(json.dumps(readings, ensure_ascii=False), encoding="utf-8")
    manifest = stage.directory / "manifest"
    manifest.write_bytes(stage.manifest.to_bytes())
    root = stage.directory / "devices"
    command = [sys.executable, "-m", "simulation.agents", str(root), str(manifest), stage.url]
    return stage.spawn([*command, str(values)], f"agents-{number}")


def reading(attribute: Attribute, place: int) -> str | float:
    """What a source would say: the value's name, or a number in its bin."""
    if attribute.edges is None:
        return attribute.values[place]
    low, high = attribute.edges[place : place + 2]
    return low if math.isfinite(low) else math.nextafter(high, -math.inf)


def _truth(manifest: Manifest, devices: list[Holdings], drawn: Mapping[int, str]) -> list[Counts]:
    truth = []
    for attribute in manifest.attributes:
        own = [devices[d][attribute.name] for d, name in drawn.items() if name == attribute.name]
        counts = np.bincount(np.asarray(own, dtype=np.int64), minlength=attribute.k)
        truth.append(np.tile(counts.astype(np.int64), (manifest.rounds.count, 1)))
    return truth
