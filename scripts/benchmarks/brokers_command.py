"""The command that measures what brokers cost."""

from __future__ import annotations

from functools import partial

import click

from benchmarks.telling import AS_JSON, WRITE, tell


@click.command()
@click.option("--reports", default=50_000, help="Reports that are published.", show_default=True)
@click.option("--runs", default=3, help="Runs of which the median counts.", show_default=True)
@click.option("--values", default=41, help="Values of the attribute.", show_default=True)
@AS_JSON
@WRITE
@click.pass_context
def brokers(
    context: click.Context, reports: int, runs: int, values: int, in_json: bool, write: bool
) -> None:
    """Measure what a report costs the broker: NATS, three nodes of it, and mosquitto.

    \b
    Examples:
      python scripts/benchmark.py brokers
      python scripts/benchmark.py brokers --reports 5000 --runs 1 --json
    """
    measured = partial(context.obj.brokers, reports, runs, values)
    tell(context, "brokers", measured, in_json, write)
