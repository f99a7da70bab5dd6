"""The options of ./scripts/demo, and its exit status."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from demonstration.checks import Check
from demonstration.cluster import ClusterDemonstration
from demonstration.results import write_figure
from demonstration.story import Demonstration
from testbed.processes import TestbedError

FILE = click.Path(path_type=Path)
ALONE = 500, 4  # devices and rounds
CLUSTER = 2_000, 3
ROOM = 4 << 30


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--devices",
    type=click.IntRange(20, 10_000),
    help="Agents in the fleet.  [default: 500, with --cluster 2000]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    help="Rounds to collect.  [default: 4, with --cluster 3]",
)
@click.option(
    "--period",
    "period_seconds",
    type=click.IntRange(4, 3600),
    help="Seconds of a round.  [default: 10 for 500 devices, more on a busy machine]",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Three NATS nodes, PostgreSQL and three workers; kill -9 of one of each, and the leader.",
)
@click.option("--broker", help="Address of a broker to use instead of the embedded one.")
@click.option("--keep", is_flag=True, help="Keep the page up at the end, until Ctrl-C.")
@click.option("--directory", type=FILE, help="Keep all files here.  [default: a temporary one]")
@click.option("--figure", type=FILE, help="Also write the first histogram to this .svg or .png.")
def main(
    devices: int | None,
    rounds: int | None,
    period_seconds: int | None,
    cluster: bool,
    broker: str | None,
    keep: bool,
    directory: Path | None,
    figure: Path | None,
) -> None:  # fmt: skip
    """Run a broker, a collector and real agents, kill -9 the collector, and check the results.

    With --cluster, everything that may fail does: a node of the broker, a worker, the leader and
    the database.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the others too
    if cluster and broker:
        raise click.UsageError("--cluster has its own brokers: leave --broker out")
    with ExitStack() as stack:
        work = directory or Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="allomfree-", dir=_place(cluster))
            )
        )
        try:
            demonstration: ClusterDemonstration | Demonstration
            demonstration = ClusterDemonstration(work) if cluster else Demonstration(work, broker)
            stack.enter_context(demonstration)
            usual = CLUSTER if cluster else ALONE
            checks = demonstration.run(devices or usual[0], rounds or usual[1], period_seconds)
            _show(checks)
            if figure is not None:
                write_figure(demonstration.collector, figure)
            if keep:
                demonstration.wait_for_interrupt()
        except TestbedError as error:
            raise click.ClickException(str(error)) from None
    sys.exit(0 if all(check.ok for check in checks) else 1)


def _place(cluster: bool) -> str | None:
    """A cluster and its 2,000 devices write a great deal, and nobody cuts the power: so in memory,
    if there is room."""
    shared = Path("/dev/shm")  # noqa: S108 - a directory of our own in it
    if cluster and shared.is_dir() and shutil.disk_usage(shared).free >= ROOM:
        return str(shared)
    return None


def _show(checks: Sequence[Check]) -> None:
    for check in checks:
        click.echo(f"  {'ok  ' if check.ok else 'FAIL'}  {check.text}")
    held = sum(check.ok for check in checks)
    click.echo(f"\n{'All' if held == len(checks) else held} of {len(checks)} checks hold.")
