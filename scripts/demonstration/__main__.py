"""The options of ./scripts/demo, and its exit status."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from demonstration.steps import ClusterDemo, CollectorDemo, Demo
from testbed.processes import TestbedError

FILE: Final = click.Path(path_type=Path)
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a directory of our own in it
ENOUGH_BYTES: Final = 4 << 30


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
@click.option("--keep", is_flag=True, help="Keep the page up at the end, until Ctrl-C.")
@click.option("--figure", type=FILE, help="Also write the first histogram to this .svg or .png.")
def main(
    devices: int | None,
    rounds: int | None,
    period_seconds: int | None,
    cluster: bool,
    keep: bool,
    figure: Path | None,
) -> None:
    """Run a broker, a collector and real agents, kill -9 the collector, and check the results.

    With --cluster, a broker node, a worker, the leader and the database are killed.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the others too
    # A cluster and its 2,000 devices write a lot, and need not survive a power cut: so in memory,
    # if there is enough.
    in_memory = cluster and SHARED_MEMORY.is_dir()
    enough = in_memory and shutil.disk_usage(SHARED_MEMORY).free >= ENOUGH_BYTES
    place = SHARED_MEMORY if enough else None
    with tempfile.TemporaryDirectory(prefix="allomfree-", dir=place) as work, ExitStack() as stack:
        try:
            demo: Demo = (ClusterDemo if cluster else CollectorDemo)(Path(work))
            stack.enter_context(demo)
            default_devices, default_rounds = (2_000, 3) if cluster else (500, 4)
            checks = demo.run(devices or default_devices, rounds or default_rounds, period_seconds)
            for ok, text in checks:
                click.echo(f"  {'ok  ' if ok else 'FAIL'}  {text}")
            passed = sum(ok for ok, _ in checks)
            shown = "All" if passed == len(checks) else str(passed)
            click.echo(f"\n{shown} of {len(checks)} checks hold.")
            if figure is not None:
                words = ("--attribute", "heating", "--round", "pooled", "--figure", figure)
                demo.collector.run("export", *words)
            if keep:
                demo.wait_for_interrupt()
        except TestbedError as error:
            raise click.ClickException(str(error)) from None
    sys.exit(0 if passed == len(checks) else 1)


main(prog_name="./scripts/demo")
