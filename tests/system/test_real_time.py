"""Runs that take their time, because rounds do: the demonstration, simulations, and chaos."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import pytest

from collector.results.facts import read_truth
from faults.run import APART_SECONDS, collector_size, plan, run
from faults.sites import CollectorSite, Fault
from protocol_spec import Manifest, Outcome
from simulation.campaigns import (
    as_reports,
    collecting_live,
    real_agents,
    reports_through_broker,
    retimed,
)
from simulation.population import populate
from testbed.brokers import Nats
from tests.support.harness import ROOT
from tests.support.simulation import FUEL, NUMERIC, both, fleet

AGENTS = 24
DEVICES = 60  # of a short run of chaos


# --- the demonstration ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine gets longer rounds
def test_the_demonstration_counts_everything_once_across_a_kill(tmp_path: Path) -> None:
    """What ./scripts/demo runs; it leaves nothing."""
    figure = tmp_path / "demo.svg"
    words = ("--devices", "40", "--rounds", "2", "--figure", str(figure))
    path = f"{ROOT / 'scripts'}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-m", "demonstration", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of 5 checks hold." in done.stdout
    assert "kill -9" in done.stdout
    assert "Ledger:" in done.stdout  # the owner's view of one device
    assert figure.read_text(encoding="utf-8").lstrip().startswith(("<svg", "<?xml"))
    assert list(tmp_path.iterdir()) == [figure]


# --- the simulator in real time ------------------------------------------------------------------
def retimed_here(asked: Manifest, *, period_seconds: int, lead_seconds: int) -> Manifest:
    """Two such rounds, or longer ones on a busy machine: as often as a program takes longer to
    start than the second in which it does on an idle one, next to others that start."""
    began = time.monotonic()
    words = [sys.executable, "-m", "collector", "--version"]
    subprocess.run(words, check=True, capture_output=True, cwd=ROOT)
    slow = min(8.0, max(1.0, time.monotonic() - began))
    period, lead = round(slow * period_seconds), round(slow * lead_seconds)
    return retimed(asked, rounds=2, period_seconds=period, lead_seconds=lead)


@pytest.mark.slow
def test_a_broker_and_a_collector_count_what_counting_at_once_counts(tmp_path: Path) -> None:
    campaign = retimed_here(both(), period_seconds=3, lead_seconds=5)
    made = fleet(campaign, 600, dropout=0.1, late=0.1, duplicates=0.1)
    with (
        Nats(tmp_path / "broker") as broker,
        collecting_live(tmp_path / "data", campaign, broker.url) as live,
    ):
        direct, found = as_reports(made), reports_through_broker(live, made, lambda _: None)
    for ours, theirs in zip(direct.attributes, found.attributes):
        assert (ours.counts == theirs.counts).all()
        assert (ours.participation == theirs.participation).all()
    assert found.late == direct.late > 0
    assert found.outcomes[0][Outcome.DUPLICATE] == direct.outcomes[0][Outcome.DUPLICATE] > 0


@pytest.mark.slow
def test_real_agents_are_all_counted_in_every_round(tmp_path: Path) -> None:
    """Also of a pair, whose two sources each agent reads."""
    cross = ("fuel", "heat")
    asked = both(attributes=FUEL + NUMERIC + FUEL.replace("fuel", "second"), cross=cross)
    campaign = retimed_here(asked, period_seconds=6, lead_seconds=14)
    people = populate(campaign, ["zipf"], AGENTS, 1)
    with (
        Nats(tmp_path / "broker") as broker,
        collecting_live(tmp_path / "data", campaign, broker.url) as live,
    ):
        found = real_agents(live, people, 1, 2, lambda _: None)
    assert [sum(int(a.n[t]) for a in found.attributes) for t in (0, 1)] == [AGENTS, AGENTS]
    for tally in found.attributes:
        assert tally.truth[0].sum() == tally.n[0]
        assert tally.participation[2] == tally.n[0]
    truth = read_truth(tmp_path / "data", found.manifest.campaign)
    assert set(truth or ()) == {"second", "fuel-heat"}


# --- chaos ---------------------------------------------------------------------------------------
def test_a_seed_names_the_faults_and_one_comes_before_every_deadline() -> None:
    def act() -> None: ...

    kinds = [Fault(f"{n}", f"target {n % 3}", act, act, across=n < 4) for n in range(12)]
    deadlines = [24.0, 48.0, 72.0, 96.0]
    events, again, other = (plan(seed, kinds, deadlines) for seed in (1, 1, 2))
    assert events == again != other
    assert {event.fault.name for event in events} == {kind.name for kind in kinds}
    for at in deadlines:
        assert any(event.fault.across for event in events if at - 3.0 <= event.at < at)
    for event, later in combinations(events, 2):
        apart = later.at - event.at - event.lasts
        assert event.fault.target != later.fault.target or apart >= APART_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tls", "seed"),
    [
        ("embedded", False, 1),
        ("nats", True, 2),
        pytest.param("mosquitto", True, 3, marks=pytest.mark.needs("mosquitto")),
    ],
)
def test_everything_fails_and_nothing_is_lost_or_counted_twice(
    kind: str, tls: bool, seed: int, tmp_path: Path
) -> None:
    """A short run of the chaos command, which also waits for what NATS delivers again after half a
    minute."""
    lines: list[str] = []
    site = CollectorSite(tmp_path, kind, tls=tls)
    happened, found = run(site, collector_size(0.4, DEVICES, period_seconds=5), seed, lines.append)
    assert found.faults == [], lines
    assert happened.total() >= 4, lines
    assert found.owed > DEVICES, lines
