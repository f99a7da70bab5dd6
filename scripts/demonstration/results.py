"""What a person sees at the end: histograms with the truth, the owner's view, a figure."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import numpy as np

from collector.records import Campaign
from collector.results.terminal import Bar, draw_bars
from collector.store import Store
from protocol_spec import Result
from testbed.collector import CollectorProcess
from testbed.processes import command_of, environment

WIDTH: Final = 50  # characters of the longest bar


def show_histograms(store: Store, campaign: Campaign, truth: Sequence[np.ndarray]) -> None:
    """The pooled result of every attribute, with the true frequencies."""
    for index, (attribute, true) in enumerate(zip(campaign.manifest.attributes, truth)):
        result = next(r for r in store.results(campaign.id, index) if r.round is None)
        size = f"{result.devices} devices, {result.rounds} rounds pooled"
        click.echo(f"\n{attribute.question} ({result.protocol}, {size})")
        if not result.withheld:
            click.echo(_histogram(result, attribute.values, true))


def _histogram(result: Result, names: Sequence[str], true: np.ndarray) -> str:
    columns = zip(names, result.raw, result.low, result.high, true.tolist(), strict=True)
    return "\n".join(draw_bars([Bar(*column) for column in columns], cells=WIDTH))


def show_owners_view(state_dir: Path) -> None:
    """What `allomfree-edge show` says on a device."""
    command = command_of("allomfree-edge", "show", "--state-dir", state_dir)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    click.echo("\nWhat the owner of device 0 sees (allomfree-edge show):\n")
    click.echo("\n".join("    " + line for line in done.stdout.splitlines()) + "\n")


def write_figure(collector: CollectorProcess, file: Path) -> None:
    """The first histogram as the collector exports it, with the truth."""
    collector.run("export", "--attribute", "heating", "--round", "pooled", "--figure", file)
