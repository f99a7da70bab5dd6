"""A campaign over a simulated fleet, at one of five depths, and what a collector publishes of it.

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
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collector import ingest
from collector.data_dir import DeviceKey, only_service, open_store
from collector.links import BATCH, Message
from collector.records import Campaign, RoundSum, Tally
from collector.results.facts import write_truth
from collector.results.tables import COLUMNS, rows
from collector.rounds import sealing
from collector.rounds.results import pooled_result, round_result, window_result
from collector.store import Store
from protocol_spec import DEFAULT_NAMESPACE, Attribute, Manifest, Mechanism, Outcome, Result
from protocol_spec.estimation import Estimate, estimate_reports, estimate_window
from simulation.counts import Counts, counted_fleet
from simulation.devices import Fleet, bulk
from simulation.population import (
    Behaviour,
    Population,
    SimulationError,
    Weights,
    drifting,
    liars_before,
)
from testbed.agents import AgentProcesses
from testbed.brokers import publish
from testbed.collector import CollectorProcess

TRUTH_COLUMNS: Final = (*COLUMNS, "truth", "z")
_STATISTICS: Final = 2  # stream of random numbers
Frequencies = npt.NDArray[np.float64]
Outcomes = Counter[Outcome]
Progress = Callable[[int], None]  # called with the number of reports or rounds done since


def _silent(_done: int) -> None:
    """No progress."""


# --- what a collector has counted, and what it publishes -----------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """One attribute: counts of each round, who reported how often, and who held what.

    `n_by_channel[round, channel]`, `counts_by_channel[round, channel, v]` (`Mechanism.channels`);
    of nested, the latest reports of all devices heard up to that round. `sent[round]` reports were
    counted in the round. `truth[round, v]` over all devices of the attribute, heard or not.
    `participation[m]` devices were counted in m rounds; [0] is 0, for nobody heard of them.
    """

    n_by_channel: Counts
    counts_by_channel: Counts
    sent: Counts
    truth: Counts
    participation: Counts

    @classmethod
    def empty(cls, rounds: int, mechanism: Mechanism) -> Collected:
        k, channels = mechanism.k, len(mechanism.channels)
        shapes = ((rounds, channels), (rounds, channels, k), (rounds,), (rounds, k), (rounds + 1,))
        return cls(*(np.zeros(shape, dtype=np.int64) for shape in shapes))

    @property
    def n(self) -> Counts:
        total: Counts = self.n_by_channel.sum(axis=1)
        return total

    @property
    def counts(self) -> Counts:
        total: Counts = self.counts_by_channel.sum(axis=1)
        return total

    @property
    def fleet(self) -> int:
        """Devices of the attribute, heard or not; with churn, all that were heard."""
        return max(int(self.truth[0].sum()), int(self.participation.sum()))

    def participants(self) -> tuple[list[int], list[int]]:
        """Numbers of reports, and for each the number of devices that sent that many."""
        heard = [(m, number) for m, number in enumerate(self.participation.tolist()) if number]
        return [m for m, _ in heard], [number for _, number in heard]

    def tally(self, first: int, last: int) -> Tally:
        """As the collector keeps them: of levels, the number of reports before the counts."""
        n = self.n_by_channel[first : last + 1].sum(axis=0)
        counts = self.counts_by_channel[first : last + 1].sum(axis=0)
        if len(n) == 1:
            return Tally(int(n[0]), counts[0])
        return Tally(int(n.sum()), np.column_stack([n, counts]).reshape(-1))

    def put(self, number: int, tally: Tally) -> None:
        """A round's counts, as the collector keeps them."""
        levels, k = self.counts_by_channel.shape[1:]
        if levels > 1 and tally.counts.size == levels * (k + 1):
            table = tally.counts.reshape(levels, k + 1)
            self.n_by_channel[number], self.counts_by_channel[number] = table[:, 0], table[:, 1:]
            return
        self.n_by_channel[number, 0] = tally.n
        if tally.counts.size == k:
            self.counts_by_channel[number, 0] = tally.counts


class Published:
    """The results of one attribute, made by the collector's own functions."""

    def __init__(self, manifest: Manifest, index: int, collected: Collected) -> None:
        self._index, self._collected = index, collected
        self._campaign = Campaign(0, manifest, manifest.created, None)
        self._latest = manifest.mechanisms[0].analysis.combined == "latest"

    def round(self, number: int, outcomes: Outcomes) -> Result:
        if self._latest:
            return self._released(number, outcomes)
        tally = self._collected.tally(number, number)
        return round_result(self._campaign, number, self._index, tally, outcomes)

    def _released(self, number: int, outcomes: Outcomes) -> Result:
        """All devices heard so far, as of the last round by which enough had reported again."""
        made, changed, release = self._collected, 0, None
        for t in range(number + 1):
            changed += int(made.sent[t])
            if changed >= self._campaign.manifest.min_reports:
                changed, release = 0, t
        heard = [t for t in range(number + 1) if made.sent[t]] or [number]
        at = number if release is None else release
        rounds = RoundSum(heard[0], number, len(heard), made.tally(at, at))
        return window_result(self._campaign, self._index, rounds, _each(rounds.tally), outcomes)

    def pooled(self, outcomes: Outcomes) -> Result | None:
        """Of all rounds; None before there is a report."""
        heard = [t for t, n in enumerate(self._collected.sent.tolist()) if n]
        if not heard:
            return None
        first, last = heard[0], heard[-1]
        total, who = self._collected.tally(first, last), self._collected.participants()
        if self._latest:
            total = self._collected.tally(last, last)
            who = _each(total)
        return pooled_result(
            self._campaign, self._index, len(heard), total, who, outcomes, first=first, last=last
        )

    def window(self, first: int, last: int, outcomes: Outcomes) -> Result:
        """Of some rounds in which every answer was drawn afresh. Who answered more than one of
        them is not known here: sampling error is stated as if everybody had who may."""
        tally = self._collected.tally(first, last)
        rounds = int((self._collected.n[first : last + 1] > 0).sum())
        most = min(self._campaign.manifest.rounds.each, max(rounds, 1))
        who = ([most], [-(-tally.n // most)]) if tally.n else ([], [])
        added = RoundSum(first, last, rounds, tally)
        return window_result(self._campaign, self._index, added, who, outcomes)


def _each(tally: Tally) -> tuple[list[int], list[int]]:
    """Every device has one report in these counts."""
    return ([1], [tally.n]) if tally.n else ([], [])


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """A simulated campaign: every attribute, and what became of every message."""

    manifest: Manifest
    rounds: int
    attributes: tuple[Collected, ...]
    outcomes: tuple[Outcomes, ...]  # by round; late reports belong to no round
    late: int = 0
    stored: tuple[Result, ...] | None = None  # where there was a real collector

    def results_of(self, index: int) -> Published:
        return Published(self.manifest, index, self.attributes[index])

    def results(self) -> Iterator[Result]:
        """As a collector would publish them: of each attribute the pooled one, then each round."""
        if self.stored is not None:
            yield from self.stored
            return
        everything = sum(self.outcomes, Counter({Outcome.LATE: self.late}))
        for index in range(len(self.attributes)):
            made = self.results_of(index)
            pooled = made.pooled(everything)
            if pooled is not None:
                yield pooled
            for t in range(self.rounds):
                yield made.round(t, self.outcomes[t])

    def rows(self) -> Iterator[dict[str, Any]]:
        """The collector's columns and two more: the true frequency, and how far the raw estimate
        is from it, in standard deviations."""
        campaign = Campaign(0, self.manifest, self.manifest.created, None)
        names = [attribute.name for attribute in self.manifest.attributes]
        for result in self.results():
            index = names.index(result.attribute)
            first, last = result.first or 0, result.last or 0
            if result.round is not None:
                first = last = result.round
            truth = self.true_frequencies(index, first, last)
            errors = self._errors(index, result, first, last, truth)
            for row, f, error in zip(rows(campaign, [result]), truth.tolist(), errors.tolist()):
                known = row["raw"] is not None and error > 0.0
                yield {**row, "truth": f, "z": (row["raw"] - f) / error if known else None}

    def to_pandas(self) -> Any:
        """The rows as a DataFrame."""
        import pandas as pd  # noqa: PLC0415 - only who asks for it needs it

        return pd.DataFrame(list(self.rows()), columns=list(TRUTH_COLUMNS))

    def true_frequencies(self, index: int, first: int = 0, last: int = -1) -> Frequencies:
        """Among all devices that drew the attribute, on the average of some rounds or of all."""
        table = self.attributes[index].truth
        held = table[first : last + 1 or None].sum(axis=0)
        return np.asarray(held / max(1, int(held.sum())), dtype=np.float64)

    def _errors(
        self, index: int, result: Result, first: int, last: int, truth: Frequencies
    ) -> Frequencies:
        """The exact standard deviation about the truth, where participation does not depend on the
        value: the noise of the reporting devices, and their choice among all."""
        mechanism, collected = self.manifest.mechanisms[index], self.attributes[index]
        # A collector keeps no participation of what it withholds, and no counts of nested rounds.
        if result.n == 0 or result.withheld or not collected.counts[last].any():
            return np.zeros_like(truth)
        made = _estimate(mechanism, collected, first, last)
        return np.sqrt(made.moments.variance(truth))


def _estimate(mechanism: Mechanism, collected: Collected, first: int, last: int) -> Estimate:
    """Of one round, or of several. Devices that were not heard count as not sampled, except in a
    window of a longer campaign."""
    combined, fleet = mechanism.analysis.combined, collected.fleet
    start = last if combined == "latest" else first
    n, counts = (
        table[start : last + 1] for table in (collected.n_by_channel, collected.counts_by_channel)
    )
    if combined == "window" and first < last and n.sum() < collected.n.sum():
        each = getattr(mechanism, "each", 1)
        return estimate_window(counts[:, 0], n[:, 0], mechanism.channels[0], each=each)
    who = ([1], [int(n.sum())]) if start == last else collected.participants()
    return estimate_reports(mechanism, counts.sum(axis=0), n.sum(axis=0), who, fleet=fleet)


# --- without a collector -------------------------------------------------------------------------


def as_statistics(
    manifest: Manifest,
    truth: tuple[Counts, ...],
    behaviour: Behaviour,
    *,
    rounds: int,
    seed: int,
    progress: Progress = _silent,
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
        made.append(_counted(rng, manifest, index, held, behaviour, target, rounds, progress))
    outcomes = tuple(
        Counter({Outcome.ACCEPTED: sum(int(c.sent[t]) for c in made)}) for t in range(rounds)
    )
    return Simulated(manifest, rounds, tuple(made), outcomes)


def _counted(
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
        made.n_by_channel[t], made.counts_by_channel[t], made.sent[t] = fleet.round(now)
        made.truth[t] = fleet.held() + lying
        level = min(t, len(mechanism.channels) - 1)
        made.n_by_channel[t, level] += liars
        made.counts_by_channel[t, level, lie] += liars
        made.sent[t] += liars
        progress(1)
    devices = fleet.participation[: rounds + 1]
    made.participation[: devices.size] = devices
    made.participation[rounds] += liars
    made.participation[0] = 0
    return made


def as_reports(fleet: Fleet, progress: Progress = _silent) -> Simulated:
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
            counted, codes = sent.bodies[in_time], sent.codes[in_time]
            mine.sent[t] += len(counted)
            n, counts = counting.tally(*(batch.latest() or (counted, codes)))
            mine.n_by_channel[t] += n
            mine.counts_by_channel[t] += counts
            mine.truth[t] += batch.held()
            outcomes[t][Outcome.ACCEPTED] += len(counted)
            outcomes[t][Outcome.DUPLICATE] += int((sent.twice & ~sent.late).sum())
            late += int(sent.late.sum() + (sent.twice & sent.late).sum())
            progress(len(sent.bodies))
        mine.participation[1:] += batch.participation()[1:]
    return Simulated(fleet.manifest, fleet.rounds, tuple(made), outcomes, late)


# --- with a real collector -----------------------------------------------------------------------


def into(directory: Path, fleet: Fleet, progress: Progress = _silent) -> Simulated:
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
                    while group := [Message(*sent) for sent in islice(arriving, BATCH)]:
                        ingest.count(group, store, campaigns, now)
                        progress(len(group))
        made = _from_store(store, campaign, fleet.rounds, fleet.held())
    _write_truth(directory, made)
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


def _from_store(store: Store, campaign: Campaign, rounds: int, truth: list[Counts]) -> Simulated:
    """What a real collector's store holds of a simulated campaign; `truth[a][round, v]`."""
    attributes = []
    for index, held in enumerate(truth):
        made = Collected.empty(rounds, campaign.manifest.mechanisms[index])
        for t in range(rounds):
            tally = store.tallies(campaign.id, t).get(index)
            if tally is not None:
                made.put(t, tally)
        made.sent[:] = made.n
        made.truth[:] = held
        for m, devices in zip(*store.participation(campaign.id, index)):
            made.participation[m] = devices
        attributes.append(made)
    outcomes = tuple(Counter(store.outcomes(campaign.id, t)) for t in range(rounds))
    late = store.outcomes(campaign.id).get(Outcome.LATE, 0)
    stored = tuple(store.results(campaign.id))
    return Simulated(campaign.manifest, rounds, tuple(attributes), outcomes, late, stored)


def _write_truth(directory: Path, made: Simulated) -> None:
    """For the collector's page, which draws it next to the estimates."""
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
            made = _from_store(store, self.campaign, rounds, truth)
        _write_truth(self.collector.data, made)
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


def real_agents(
    live: LiveCampaign, people: Population, seed: int, processes: int, progress: Progress
) -> Simulated:
    """Each agent draws its attribute itself, so the truth is theirs."""
    manifest, broker = live.campaign.manifest, live.collector.broker_url
    devices = people.holdings(seed).tolist()
    readings = {
        device: {
            part.name: reading(part, int(at))
            for a, place in zip(manifest.attributes, places)
            for part, at in zip(a.parts, np.unravel_index(place, a.shape))
        }
        for device, places in enumerate(devices)
    }
    root = live.collector.data / "devices"
    with AgentProcesses(root, manifest, broker, readings, processes) as agents:
        for t in range(manifest.rounds.count):
            live.wait_until_sealed(t)
            progress(len(agents.drawn))
        agents.stop()
    truth = []
    for index, a in enumerate(manifest.attributes):
        own = [devices[d][index] for d, name in agents.drawn.items() if name == a.name]
        counts = np.bincount(np.asarray(own, dtype=np.int64), minlength=a.k)
        truth.append(np.tile(counts.astype(np.int64), (manifest.rounds.count, 1)))
    return live.simulated(truth)


def reading(attribute: Attribute, place: int) -> str | float:
    """What a source would read: the value's name, or a number in its bin."""
    if attribute.edges is None or place == attribute.otherwise:
        return attribute.values[place]
    low, high = attribute.edges[place : place + 2]
    return low if math.isfinite(low) else math.nextafter(high, -math.inf)
