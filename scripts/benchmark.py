"""Measure what allomfree costs, beside the limits it sets itself."""

from __future__ import annotations

import sys
from pathlib import Path

import click

# The benchmarks use the brokers that the tests start, so they run from a checkout.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import agent as agent_benchmark
from benchmarks import ingest as ingest_benchmark
from benchmarks.measurements import as_json, as_text, kept


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure what allomfree costs, beside the limits it sets itself.

    \b
    Example:
      python scripts/benchmark.py agent
    """


@main.command()
@click.option("--json", "in_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def agent(context: click.Context, in_json: bool) -> None:
    """What the agent costs a device: memory, start-up, bytes on the wire, syncs of the disk.

    Exit status 1 when a limit is broken.

    \b
    Examples:
      python scripts/benchmark.py agent
      python scripts/benchmark.py agent --json | jq '.measurements[] | select(.limit)'
    """
    measured = agent_benchmark.measure()
    click.echo(as_json("agent", measured) if in_json else as_text(measured))
    context.exit(0 if kept(measured) else 1)


@main.command()
@click.option("--reports", default=100_000, help="Reports in one round.", show_default=True)
@click.option("--runs", default=5, help="Runs of which the median counts.", show_default=True)
@click.option("--large", default=1_000_000, help="A larger round; 0 for none.", show_default=True)
@click.option("--values", "k", default=100, help="Values of the attribute.", show_default=True)
@click.option("--json", "in_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def ingest(
    context: click.Context, reports: int, runs: int, large: int, k: int, in_json: bool
) -> None:
    """Durable exactly-once ingest against a bare paho subscriber that only counts.

    Exit status 1 when a limit is broken.

    \b
    Examples:
      python scripts/benchmark.py ingest
      python scripts/benchmark.py ingest --reports 20000 --runs 1 --large 0 --json
    """
    measured = ingest_benchmark.measure(reports, runs, large, k)
    click.echo(as_json("ingest", measured) if in_json else as_text(measured))
    context.exit(0 if kept(measured) else 1)


if __name__ == "__main__":
    main()
