"""The campaign and what every simulated device holds; what is shown of it, and what must hold."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import click
import numpy as np

from collector.charts import Bar, draw_bars
from collector.records import Campaign
from collector.store import Store
from protocol_spec import Manifest, Outcome, as_drawn
from protocol_spec.estimation import Array, estimate
from testbed.processes import command_of, environment

HEATING: Final = {"gas": 41, "heat pump": 24, "wood": 18, "oil": 12, "district": 5}
HOURS: Final = [f"{hour:02d}:00" for hour in range(24)]
WIDTH: Final = 50  # characters of the longest bar
# A correct run must not fail by chance: one in a million for all bars of a histogram together.
CERTAIN: Final = 1.0 - 1e-6


@dataclass(frozen=True, slots=True)
class Check:
    ok: bool
    text: str


def manifest(
    devices: int, rounds: int, *, period_seconds: int, grace_seconds: int, lead_seconds: int
) -> Manifest:
    """Two attributes of different size, so that both L-GRR and L-OSUE are chosen."""
    heating = ", ".join(f'"{name}"' for name in HEATING)
    hours = ", ".join(f'"{hour}"' for hour in HOURS)
    return Manifest.from_toml(
        f"""
        format = 1
        slug = "demo"
        title = "How homes are heated, and when they rest"
        purpose = "Show the whole system at work with a simulated fleet"
        owner = "The demonstration"
        contact = "nobody@example.org"
        eps_inf = 4.0
        eps_1 = 1.5
        min_reports = {min(20, max(1, devices // 10))}
        receipt_pages = {max(1, devices // 200)}
        [rounds]
        first = {int(time.time()) + lead_seconds}
        period = {period_seconds}
        count = {rounds}
        grace = {grace_seconds}
        [[attributes]]
        name = "heating"
        question = "What heats your home?"
        values = [{heating}]
        otherwise = "district"
        [[attributes]]
        name = "quiet-hour"
        question = "In which hour is your home at its quietest?"
        values = [{hours}]
        otherwise = "23:00"
        """
    )


def readings(asked: Manifest, devices: int) -> dict[int, dict[str, str | float]]:
    """What every device's sources read."""
    names = [attribute.name for attribute in asked.attributes]
    return {device: {name: value(device, name) for name in names} for device in range(devices)}


def value(device: int, attribute: str) -> str:
    """What a device holds; the same at every call."""
    hashed = hashlib.sha256(f"{device} {attribute}".encode()).digest()
    fraction = int.from_bytes(hashed[:8]) / 2**64
    if attribute == "heating":
        names, weights = list(HEATING), [float(w) for w in HEATING.values()]
    else:
        names = HOURS
        weights = [9.0 if hour in (2, 3) else 4.0 if hour < 6 else 1.0 for hour in range(24)]
    edges = zip(names, accumulate(weights))
    return next((name for name, edge in edges if fraction * sum(weights) < edge), names[-1])


def truth(campaign: Campaign, drawn: dict[int, str]) -> list[Array]:
    """True frequencies of each attribute among the devices that drew it."""
    found = []
    for attribute in campaign.manifest.attributes:
        held = Counter(
            value(d, attribute.name) for d, name in drawn.items() if name == attribute.name
        )
        total = max(1, held.total())
        found.append(np.array([held[name] / total for name in attribute.values]))
    return found


def show_histograms(store: Store, campaign: Campaign, truths: Sequence[Array]) -> None:
    """The pooled result of every attribute, with the true frequencies."""
    for index, (attribute, true) in enumerate(zip(campaign.manifest.attributes, truths)):
        result = next(r for r in store.results(campaign.id, index) if r.round is None)
        size = f"{result.devices} devices, {result.rounds} rounds pooled"
        click.echo(f"\n{attribute.question} ({result.protocol}, {size})")
        if not result.withheld:
            columns = (attribute.values, result.raw, result.low, result.high, true.tolist())
            bars = [Bar(*column) for column in zip(*columns, strict=True)]
            click.echo("\n".join(draw_bars(bars, cells=WIDTH)))


def show_owners_view(state_dir: Path) -> None:
    """What `allomfree-edge show` prints on a device."""
    command = command_of("allomfree-edge", "show", "--state-dir", state_dir)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    click.echo("\nWhat the owner of device 0 sees (allomfree-edge show):\n")
    click.echo("\n".join("    " + line for line in done.stdout.splitlines()) + "\n")


def counted_once(store: Store, campaign: Campaign, drawn: dict[int, str]) -> list[Check]:
    """Every device exactly once in every round, also across the kill."""
    checks, wanted = [], Counter(drawn.values())
    names = [a.name for a in campaign.manifest.attributes]
    for number in range(campaign.manifest.rounds.count):
        counts = {i: t.n for i, t in store.tallies(campaign.id, number).items()}
        right = all(counts.get(i, 0) == wanted[name] for i, name in enumerate(names))
        text = f"round {number}: {sum(counts.values())} of {len(drawn)} devices counted, each once"
        checks.append(Check(right, text))
    total = sum(store.outcomes().values())
    again = store.outcomes().get(Outcome.DUPLICATE, 0)
    text = f"{total} messages received, one outcome each ({again} duplicates, not counted again)"
    return [*checks, Check(total == store.received(), text)]


def intervals_hold(store: Store, campaign: Campaign, drawn: dict[int, str]) -> list[Check]:
    """Every true frequency inside its simultaneous interval, in every round."""
    checks = []
    for index, true in enumerate(truth(campaign, drawn)):
        calibration = as_drawn(campaign.manifest.calibrations[index])
        inside = True
        for number in range(campaign.manifest.rounds.count):
            tally = store.tallies(campaign.id, number).get(index)
            if tally is None or tally.n == 0:
                inside = False
                continue
            made = estimate(tally.counts, tally.n, calibration)
            low, high = made.interval(CERTAIN, simultaneous=True, sampling=False)
            inside &= bool(((low - 1e-12 <= true) & (true <= high + 1e-12)).all())
        name = campaign.manifest.attributes[index].name
        checks.append(Check(inside, f"{name}: every true frequency lies in its 99.9999 % interval"))
    return checks
