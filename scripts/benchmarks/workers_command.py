"""The command that measures several workers."""

from __future__ import annotations

from functools import partial

import click

from benchmarks.telling import AS_JSON, WRITE, tell


@click.command()
@click.option("--reports", default=100_000, help="Reports in one round.", show_default=True)
@click.option("--runs", default=3, help="Runs of which the median counts.", show_default=True)
@click.option(
    "--share", default=0.05, help="Of a core, that each worker is held to.", show_default=True
)
@AS_JSON
@WRITE
@click.pass_context
def workers(
    context: click.Context, reports: int, runs: int, share: float, in_json: bool, write: bool
) -> None:
    """Measure one, two and four workers on one NATS and one PostgreSQL.

    \b
    Examples:
      python scripts/benchmark.py workers
      python scripts/benchmark.py workers --reports 40000 --runs 1 --json
    """
    measured = partial(context.obj.workers, reports, runs, share)
    tell(context, "workers", measured, in_json, write)
