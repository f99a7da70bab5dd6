"""Somebody who really runs a collector and an agent on the machine of a simulation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from protocol_spec import Manifest
from simulation.depths import (
    as_reports,
    collecting_live,
    holdings,
    real_agents,
    reports_through_broker,
    retimed,
)
from simulation.population import populate
from simulation.results import Simulated
from testbed.brokers import Nats
from tests.support.harness import ROOT
from tests.support.simulation import FUEL, both, fleet


def real_user(home: Path) -> dict[str, str]:
    """Variables of a user whose settings, in variables and in files, make a program that reads
    them end at once."""
    directory = home / ".config" / "allomfree"
    directory.mkdir(parents=True)
    for program in ("collector", "edge"):
        (directory / f"{program}.toml").write_text('broker = "real"\n')
    return {"HOME": str(home), "ALLOMFREE_BROKER": "real", "ALLOMFREE_KEEPALIVE": "real"}


# --- The runs that take their time, because rounds do: each in a directory of its own.


AGENTS = 24
NUMERIC = """[[attributes]]
name = "heat"
question = "?"
edges = [-inf, 40, 60, inf]
"""

Demonstrated = subprocess.CompletedProcess[str]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Finished(Generic[Result]):
    """A run's directory and what it gave."""

    directory: Path
    result: Result


def demonstrate(*options: str, **variables: str) -> Demonstrated:
    """What ./scripts/demo runs, to its end."""
    path = f"{ROOT / 'scripts'}{os.pathsep}{ROOT}"
    return subprocess.run(
        [sys.executable, "-m", "demonstration", *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )


def demonstrate_for_a_real_user(directory: Path) -> Demonstrated:
    """A whole demonstration, started by somebody who really runs a collector and an agent."""
    work = directory / "work"
    work.mkdir()
    return demonstrate(
        *("--devices", "40", "--rounds", "2", "--figure", str(work / "demo.svg")),
        TMPDIR=str(work),
        **real_user(directory / "home"),
    )


def retimed_here(asked: Manifest, *, period_seconds: int, lead_seconds: int) -> Manifest:
    """Two such rounds, or longer ones on a busy machine: as often as a program takes longer to
    start than the second in which it does on an idle one, beside others that start."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "collector", "--version"], check=True, capture_output=True, cwd=ROOT
    )
    slow = min(8.0, max(1.0, time.monotonic() - began))
    return retimed(
        asked,
        rounds=2,
        period_seconds=round(slow * period_seconds),
        lead_seconds=round(slow * lead_seconds),
    )


def count_twice(directory: Path) -> tuple[Simulated, Simulated]:
    """The same reports counted at once, and through a broker by a real collector."""
    campaign = retimed_here(both(), period_seconds=3, lead_seconds=5)
    made = fleet(campaign, 600, dropout=0.1, late=0.1, duplicates=0.1)
    with (
        Nats(directory / "broker") as broker,
        collecting_live(directory / "data", campaign, broker.url) as live,
    ):
        return as_reports(made), reports_through_broker(live, made, lambda _: None)


def run_agents(directory: Path) -> Simulated:
    """Real agents over two rounds, their data in `data`."""
    asked = both(attributes=FUEL + NUMERIC)
    campaign = retimed_here(asked, period_seconds=6, lead_seconds=14)
    devices = holdings(campaign, populate(campaign, ["zipf"], AGENTS, 1), 1)
    with (
        Nats(directory / "broker") as broker,
        collecting_live(directory / "data", campaign, broker.url) as live,
    ):
        return real_agents(live, devices, 2, lambda _: None)
