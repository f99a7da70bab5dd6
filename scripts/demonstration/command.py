"""The options of ./scripts/demo, and its exit status."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from demonstration.checks import Check
from demonstration.results import write_figure
from demonstration.story import Demonstration
from stage.processes import StageError

FILE = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--devices",
    type=click.IntRange(20, 10_000),
    default=500,
    show_default=True,
    help="Agents in the fleet.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=4, show_default=True, help="Rounds to collect."
)
@click.option(
    "--period",
    "period_seconds",
    type=click.IntRange(4, 3600),
    help="Seconds of a round.  [default: 10 for 500 devices, more on a busy machine]",
)
@click.option("--broker", help="Address of a broker to use instead of the embedded one.")
@click.option("--keep", is_flag=True, help="Keep the page up at the end, until Ctrl-C.")
@click.option("--directory", type=FILE, help="Keep all files here.  [default: a temporary one]")
@click.option("--figure", type=FILE, help="Also write the first histogram to this .svg or .png.")
def main(
    devices: int,
    rounds: int,
    period_seconds: int | None,
    broker: str | None,
    keep: bool,
    directory: Path | None,
    figure: Path | None,
) -> None:  # fmt: skip
    """Run a broker, a collector and real agents, kill -9 the collector, and check the results."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the others too
    with ExitStack() as stack:
        work = directory or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="allomfree-"))
        )
        try:
            demonstration = stack.enter_context(Demonstration(work, broker))
            checks = demonstration.run(devices, rounds, period_seconds)
            _show(checks)
            if figure is not None:
                write_figure(demonstration.collector, figure)
            if keep:
                demonstration.wait_for_interrupt()
        except StageError as error:
            raise click.ClickException(str(error)) from None
    sys.exit(0 if all(check.ok for check in checks) else 1)


def _show(checks: Sequence[Check]) -> None:
    for check in checks:
        click.echo(f"  {'ok  ' if check.ok else 'FAIL'}  {check.text}")
    held = sum(check.ok for check in checks)
    click.echo(f"\n{'All' if held == len(checks) else held} of {len(checks)} checks hold.")
