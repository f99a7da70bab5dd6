"""How deep a simulation goes; each depth returns a `simulation.results.Simulated`.

as_statistics           counts alone: no device exists
as_reports              every report, counted at once, without admission or database
into                    every report through a real collector's admission, store and sealing, under
                        the simulation's clock: a year takes as long as its reports need
reports_through_broker  every report through a broker to a real collector, in real time
real_agents             real agents, a broker and a collector, in real time
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from collector import ingest
from collector.data_dir import DeviceKey, only_service, open_store
from collector.links import BATCH, Message
from collector.records import Campaign
from collector.results.facts import write_truth
from collector.rounds import sealing
from collector.store import Store
from protocol_spec import DEFAULT_NAMESPACE, Attribute, Manifest, Outcome
from simulation.bulk import bulk
from simulation.counts import Counts, counted_fleet
from simulation.fleet import Fleet
from simulation.population import (
    Behaviour,
    Population,
    SimulationError,
    Weights,
    drifting,
    liars_before,
)
from simulation.results import Collected, Outcomes, Progress, Simulated, from_store
from testbed.agents import AgentProcesses
from testbed.brokers import publish
from testbed.collector import CollectorProcess

Holdings = Mapping[str, int]  # of one device: by attribute, which of its values
GROUP: Final = BATCH  # messages of one transaction, as the service takes at most
_STATISTICS: Final = 2  # stream of random numbers


def as_statistics(
    manifest: Manifest,
    truth: tuple[Counts, ...],
    behaviour: Behaviour,
    *,
    rounds: int,
    seed: int,
    progress: Progress = lambda _: None,
    drift: tuple[Weights, ...] = (),
) -> Simulated:
    """Counts alone: no device exists. `progress` is called for every round of an attribute."""
    for name in ("changes", "late", "duplicates"):
        possible = name == "changes" and manifest.mechanisms[0].rules.draws_rounds
        if getattr(behaviour, name) and not possible:
            raise SimulationError(
                f"--{name} needs single devices, which statistics do not have; use reports"
            )
    made = []
    for index, held in enumerate(truth):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STATISTICS, index)))
        target = drift[index] if drift else held / held.sum()
        made.append(_collected(rng, manifest, index, held, behaviour, target, rounds, progress))
    outcomes = tuple(
        Counter({Outcome.ACCEPTED: sum(int(c.n[t]) for c in made)}) for t in range(rounds)
    )
    return Simulated(manifest, rounds, tuple(made), outcomes)


def _collected(
    rng: np.random.Generator,
    manifest: Manifest,
    index: int,
    held: Counts,
    behaviour: Behaviour,
    target: Weights,
    rounds: int,
    progress: Progress,
) -> Collected:
    """One attribute: a fleet of the honest devices as numbers, and the dishonest added to it."""
    mechanism, total = manifest.mechanisms[index], int(held.sum())
    liars, lie = behaviour.liars(index, total)
    edges = [0, *np.cumsum(held).tolist()]
    lying = np.diff([liars_before(place, total, liars) for place in edges])
    rates = {"churn": behaviour.churn, "changes": behaviour.changes}
    missing = behaviour.missing(index, held.size)
    fleet = counted_fleet(rng, mechanism, held - lying, dropout=missing, **rates)
    made = Collected.empty(rounds, mechanism)
    for t in range(rounds):
        now = drifting(held / total, target, t, manifest.rounds.count)
        made.n_by_channel[t], made.counts_by_channel[t] = fleet.round(now)
        made.truth[t] = fleet.held() + lying
        level = min(t, len(mechanism.channels) - 1)
        made.n_by_channel[t, level] += liars
        made.counts_by_channel[t, level, lie] += liars
        progress(1)
    devices = fleet.participation[: rounds + 1]
    made.participation[: devices.size] = devices
    made.participation[rounds] += liars
    made.participation[0] = 0
    return made


def as_reports(fleet: Fleet, progress: Progress = lambda _: None) -> Simulated:
    """Every report, counted at once. `progress` is called with numbers of reports."""
    mechanisms = fleet.manifest.mechanisms
    made = [Collected.empty(fleet.rounds, mechanism) for mechanism in mechanisms]
    outcomes: tuple[Outcomes, ...] = tuple(Counter() for _ in range(fleet.rounds))
    late = 0
    for batch in fleet.batches():
        mine, counting = made[batch.attribute], bulk(mechanisms[batch.attribute])
        for t in range(fleet.rounds):
            sent = batch.reports()
            in_time = ~sent.late if sent.late.any() else slice(None)
            counted = sent.bodies[in_time]
            n, counts = counting.tally(counted, sent.codes[in_time])
            mine.n_by_channel[t] += n
            mine.counts_by_channel[t] += counts
            mine.truth[t] += batch.held()
            outcomes[t][Outcome.ACCEPTED] += len(counted)
            outcomes[t][Outcome.DUPLICATE] += int((sent.twice & ~sent.late).sum())
            late += int(sent.late.sum() + (sent.twice & sent.late).sum())
            progress(len(sent.bodies))
        mine.participation[1:] += batch.participation()[1:]
    return Simulated(fleet.manifest, fleet.rounds, tuple(made), outcomes, late)


def into(directory: Path, fleet: Fleet, progress: Progress = lambda _: None) -> Simulated:
    """Collect a whole campaign into a data directory that a collector can show afterwards."""
    schedule = fleet.manifest.rounds
    with only_service(directory), closing(open_store(directory)) as store:
        campaign = empty_campaign(store, fleet.manifest, directory)
        key = DeviceKey(directory / "device.key", make=store.received() == 0)
        names = {campaign.name: campaign}
        campaigns = ingest.OpenCampaigns(names, frozenset(), key, DEFAULT_NAMESPACE)
        for t in range(fleet.rounds):
            for late, now in ((False, schedule.opens(t)), (True, schedule.deadline(t))):
                if late:
                    sealing.seal(store, campaign, t, now)
                if not late or fleet.behaviour.late:
                    arriving = fleet.messages(t, late=late)
                    while group := [Message(*sent) for sent in islice(arriving, GROUP)]:
                        ingest.count(group, store, campaigns, now)
                        progress(len(group))
        made = from_store(store, campaign, fleet.rounds, fleet.held())
    write_true_frequencies(directory, made)
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


def write_true_frequencies(directory: Path, made: Simulated) -> None:
    """For the collector's page, which draws them next to the estimates."""
    names = [attribute.name for attribute in made.manifest.attributes]
    shares = {name: made.true_frequencies(i).tolist() for i, name in enumerate(names)}
    write_truth(directory, made.manifest.campaign, shares)


# --- in real time --------------------------------------------------------------------------------


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


class LiveCampaign(NamedTuple):
    """A campaign and the collector that runs it."""

    campaign: Campaign
    collector: CollectorProcess

    def wait_until_sealed(self, number: int) -> None:
        self.collector.wait_until_sealed(self.campaign, number)

    def simulated(self, truth: list[Counts]) -> Simulated:
        """What the collector has in the end; the truth is stored for its page."""
        with self.collector.store() as store:
            rounds = self.campaign.manifest.rounds.count
            made = from_store(store, self.campaign, rounds, truth)
        write_true_frequencies(self.collector.data, made)
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


def reports_through_broker(live: LiveCampaign, fleet: Fleet, progress: Progress) -> Simulated:
    """Every report in the round it belongs to; late ones after it was sealed."""
    schedule, url, sent = fleet.manifest.rounds, live.collector.broker_url, 0
    for t in range(fleet.rounds):
        time.sleep(max(0.0, schedule.opens(t) - time.time()))
        sent += publish(url, fleet.messages(t, late=False), progress)
        if fleet.behaviour.late:
            live.wait_until_sealed(t)
            sent += publish(url, fleet.messages(t, late=True), progress)
    live.wait_until_sealed(fleet.rounds - 1)
    live.collector.wait_until_received(sent)
    return live.simulated(fleet.held())


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
    """Each agent draws its attribute itself, so the truth is theirs."""
    manifest, broker = live.campaign.manifest, live.collector.broker_url
    readings = {
        device: {a.name: reading(a, held[a.name]) for a in manifest.attributes}
        for device, held in enumerate(devices)
    }
    root = live.collector.data / "devices"
    with AgentProcesses(root, manifest, broker, readings, processes) as agents:
        for t in range(manifest.rounds.count):
            live.wait_until_sealed(t)
            progress(len(agents.drawn))
        agents.stop()
    truth = []
    for a in manifest.attributes:
        own = [devices[d][a.name] for d, name in agents.drawn.items() if name == a.name]
        counts = np.bincount(np.asarray(own, dtype=np.int64), minlength=a.k)
        truth.append(np.tile(counts.astype(np.int64), (manifest.rounds.count, 1)))
    return live.simulated(truth)


def reading(attribute: Attribute, place: int) -> str | float:
    """What a source would read: the value's name, or a number in its bin."""
    if attribute.edges is None or place == attribute.otherwise:
        return attribute.values[place]
    low, high = attribute.edges[place : place + 2]
    return low if math.isfinite(low) else math.nextafter(high, -math.inf)
