"""From what was asked on the command line to a finished run, for every depth."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol_spec import Manifest
from simulation.collected import Simulated
from simulation.depths.agents import holdings, real_agents
from simulation.depths.collecting import into
from simulation.depths.live import collecting_live, retimed
from simulation.depths.reports import as_reports
from simulation.depths.statistics import as_statistics
from simulation.depths.through_broker import reports_through_broker
from simulation.errors import SimulationError
from simulation.model.behaviour import Behaviour
from simulation.model.fleet import Fleet
from simulation.model.population import Population, Weights, populate, targets
from simulation.progress import shown
from simulation.records import Run

SLOWEST_PER_SECOND = 5_000  # messages that any machine publishes in a second


@dataclass(frozen=True, slots=True)
class Asked:
    """A simulation to run."""

    manifest: Manifest
    words: tuple[str, ...]
    devices: int | None
    rounds: int
    seed: int
    behaviour: Behaviour
    drift: tuple[str, ...] = ()

    def targets(self) -> tuple[Weights, ...]:
        """What changing values drift to; nothing if they do not."""
        if self.drift and not self.behaviour.changes:
            raise SimulationError("--drift is about values that change; add --changes-per-year")
        return targets(self.manifest, self.drift, self.seed) if self.drift else ()

    def population(self) -> Population:
        """Checked against the manifest."""
        count = self.manifest.rounds.count
        if not 1 <= self.rounds <= count:
            raise SimulationError(f"--rounds {self.rounds}: the manifest has {count} rounds")
        return populate(self.manifest, self.words, self.devices, self.seed)


def statistics(asked: Asked) -> Run:
    """Counts alone: no device exists."""
    population = asked.population()
    truth = population.drawn(asked.seed)
    with shown("rounds", asked.rounds * len(truth)) as progress:
        return _timed(
            asked,
            population,
            "statistics",
            lambda: as_statistics(
                asked.manifest,
                truth,
                asked.behaviour,
                rounds=asked.rounds,
                seed=asked.seed,
                progress=progress,
                drift=asked.targets(),
            ),
        )


def reports(asked: Asked, directory: Path | None, batch: int) -> Run:
    """Every report; counted at once, or by a collector into a directory."""
    population = asked.population()
    fleet = _fleet(asked, population, asked.manifest, batch)
    with shown("reports", population.devices * asked.rounds) as progress:
        if directory is None:
            return _timed(asked, population, "reports", lambda: as_reports(fleet, progress))
        where = directory
        return _timed(asked, population, "reports, store", lambda: into(where, fleet, progress))


def reports_live(
    asked: Asked, directory: Path | None, broker: str | None, period: int, batch: int
) -> Run:
    """Every report through a broker, in real time."""
    population = asked.population()
    period = max(period, -(-population.devices // SLOWEST_PER_SECOND))
    manifest = retimed(asked.manifest, rounds=asked.rounds, period_seconds=period, lead_seconds=8)
    fleet = _fleet(asked, population, manifest, batch)
    with ExitStack() as stack:
        where = _place(stack, directory)
        live = stack.enter_context(collecting_live(where, manifest, broker))
        progress = stack.enter_context(shown("reports", population.devices * asked.rounds))
        return _timed(
            asked,
            population,
            "reports, broker",
            lambda: reports_through_broker(live, fleet, progress),
        )


def agents(
    asked: Asked, directory: Path | None, broker: str | None, period: int, processes: int
) -> Run:
    """Real agents and a real broker, in real time."""
    population = asked.population()
    if asked.behaviour != Behaviour():
        raise SimulationError("agents are real devices; to simulate other behaviour, use reports")
    lead = 8 + population.devices // 30  # each agent makes its state and syncs it to the disk
    manifest = retimed(
        asked.manifest, rounds=asked.rounds, period_seconds=period, lead_seconds=lead
    )
    devices = holdings(manifest, population, asked.seed)
    with ExitStack() as stack:
        where = _place(stack, directory)
        live = stack.enter_context(collecting_live(where, manifest, broker))
        progress = stack.enter_context(shown("reports", population.devices * asked.rounds))
        return _timed(
            asked,
            population,
            "agents",
            lambda: real_agents(live, devices, processes, progress),
        )


def _fleet(asked: Asked, population: Population, manifest: Manifest, batch: int) -> Fleet:
    if batch < 1:
        raise SimulationError(f"--batch {batch}: must be 1 or more")
    truth = population.drawn(asked.seed)
    drift = asked.targets()
    return Fleet(manifest, truth, asked.behaviour, asked.seed, asked.rounds, batch, drift)


def _place(stack: ExitStack, directory: Path | None) -> Path:
    if directory is not None:
        return directory
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allomfree-")))


def _timed(
    asked: Asked, population: Population, depth: str, simulate: Callable[[], Simulated]
) -> Run:
    began = time.perf_counter()
    made = simulate()
    seconds = time.perf_counter() - began
    outcomes = sum(made.outcomes, Counter({"late": made.late}))
    facts: dict[str, Any] = {
        "depth": depth,
        "campaign": made.manifest.campaign,
        "reporting": made.manifest.reporting,
        "population": list(asked.words),
        "devices": population.devices,
        "rounds": asked.rounds,
        "seed": asked.seed,
        "behaviour": asked.behaviour.facts(),
        "outcomes": {str(name): number for name, number in outcomes.items() if number},
        "seconds": round(seconds, 3),
    }
    return Run(facts, list(made.rows()))
