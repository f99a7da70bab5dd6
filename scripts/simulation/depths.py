"""How deep a simulation goes; each depth gives a `simulation.collected.Simulated`.

statistics      counts alone: no device exists
reports         every report, counted at once
collecting      every report through a real collector's admission, store and sealing
live            a real collector on a campaign whose rounds begin soon
through_broker  every report through a broker to a real collector, in real time
agents          real agents, a broker and a collector, in real time
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
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
from protocol_spec import DEFAULT_NAMESPACE, Attribute, Manifest, Outcome, Way
from protocol_spec.ways import NestedWay, OnceWay
from simulation.bulk import bulk
from simulation.counts import Answers, Counts, Levels, Memos, Round
from simulation.fleet import Fleet, Sent, of_round
from simulation.population import (
    Behaviour,
    Population,
    SimulationError,
    Weights,
    drifting,
    liars_before,
)
from simulation.results import Collected, Progress, Simulated, from_store
from testbed.agents import AgentProcesses, Readings
from testbed.brokers import publish
from testbed.collector import CollectorProcess

# --- A campaign as counts alone: no device exists.


_STATISTICS = 2  # stream of random numbers


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
    _check(manifest, behaviour)
    made = []
    for index, held in enumerate(truth):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STATISTICS, index)))
        target = drift[index] if drift else held / held.sum()
        counted = _Counted(rng, manifest, index, held, behaviour, target)
        made.append(counted.collect(rounds, progress))
    outcomes = tuple(
        Counter({Outcome.ACCEPTED: sum(int(c.n[t]) for c in made)}) for t in range(rounds)
    )
    return Simulated(manifest, rounds, tuple(made), outcomes)


def _check(manifest: Manifest, behaviour: Behaviour) -> None:
    for name in ("changes", "late", "duplicates"):
        possible = name == "changes" and manifest.reporting == "once"
        if getattr(behaviour, name) and not possible:
            raise SimulationError(
                f"--{name} needs single devices, which statistics do not have; use reports"
            )


class _Counted:
    """One attribute's fleet: the honest as numbers, and the dishonest beside them."""

    def __init__(
        self,
        rng: np.random.Generator,
        manifest: Manifest,
        index: int,
        held: Counts,
        behaviour: Behaviour,
        target: Weights,
    ) -> None:
        total = int(held.sum())
        self._liars, self._lie = behaviour.liars(index, total)
        edges = [0, *np.cumsum(held).tolist()]
        before = [liars_before(place, total, self._liars) for place in edges]
        self._lying = np.diff(before)
        self._count, self._held, self._target = manifest.rounds.count, held, target
        self._way = manifest.ways[index]
        self._fleet = _fleet(
            rng,
            self._way,
            held - self._lying,
            behaviour.missing(index, held.size),
            behaviour,
        )

    def collect(self, rounds: int, progress: Progress) -> Collected:
        """So many rounds."""
        made = Collected.empty(rounds, self._held.size, len(self._way.channels))
        for t in range(rounds):
            n, counts = self._round(t)
            made.n_by_channel[t], made.counts_by_channel[t] = n, counts
            channel = min(t, len(self._way.channels) - 1)
            made.n_by_channel[t, channel] += self._liars
            made.counts_by_channel[t, channel, self._lie] += self._liars
            made.truth[t] = self._truth()
            progress(1)
        told = self._fleet.participation
        made.participation[: min(told.size, rounds + 1)] = told[: rounds + 1]
        made.participation[rounds] += self._liars
        made.participation[0] = 0
        return made

    def _round(self, number: int) -> Round:
        if isinstance(self._fleet, Answers):
            start = self._held / self._held.sum()
            return self._fleet.round(drifting(start, self._target, number, self._count))
        return self._fleet.round()

    def _truth(self) -> Counts:
        return self._fleet.held() + self._lying if isinstance(self._fleet, Answers) else self._held


def _fleet(
    rng: np.random.Generator, way: Way, held: Counts, missing: Weights, behaviour: Behaviour
) -> Memos | Answers | Levels:
    if isinstance(way, OnceWay):
        rates = {"churn": behaviour.churn, "changes": behaviour.changes}
        return Answers(rng, way, held, dropout=missing, **rates)
    if isinstance(way, NestedWay):
        return Levels(rng, way, held, dropout=missing, churn=behaviour.churn)
    return Memos(rng, way.channels[0], held, dropout=missing, churn=behaviour.churn)


# --- A campaign report by report, counted at once: no collector's admission, no database.


def as_reports(fleet: Fleet, progress: Progress = lambda _: None) -> Simulated:
    """Every report, counted at once. `progress` is called with numbers of reports."""
    ways = fleet.manifest.ways
    made = [Collected.empty(fleet.rounds, way.k, len(way.channels)) for way in ways]
    outcomes: tuple[Counter[Outcome], ...] = tuple(Counter() for _ in range(fleet.rounds))
    late = 0
    for batch in fleet.batches():
        mine, counting = made[batch.attribute], bulk(ways[batch.attribute])
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


# --- Simulated reports through a real collector without a broker: admission, store and sealing.


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


# --- A real collector on a campaign whose rounds begin soon, for the depths that run in real time.


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


# --- Every report as a message through a broker to a real collector, in real time.


def reports_through_broker(live: LiveCampaign, fleet: Fleet, progress: Progress) -> Simulated:
    """Every report in the round it belongs to; late ones after it was sealed."""
    schedule, url, sent = fleet.manifest.rounds, live.collector.broker_url, 0
    for t in range(fleet.rounds):
        time.sleep(max(0.0, schedule.opens(t) - time.time()))
        sent += publish(url, of_round(fleet, t, late=False), progress)
        if fleet.behaviour.late:
            live.wait_until_sealed(t)
            sent += publish(url, of_round(fleet, t, late=True), progress)
    live.wait_until_sealed(fleet.rounds - 1)
    live.collector.wait_until_received(sent)
    return live.simulated(held(fleet))


# --- Real agents, a real broker and a real collector, in real time.


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
