"""The command that measures counting while devices publish."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from benchmarks.live import Effort
from benchmarks.telling import AS_JSON, WRITE, tell


def _is_checkout(
    _context: click.Context, _option: click.Parameter, place: Path | None
) -> Path | None:
    if place is not None and not (place / "collector" / "brokers" / "nats.py").is_file():
        raise click.BadParameter(f"{place} is no checkout of allomfree with an embedded broker")
    return place


@click.command()
@click.option("--reports", default=20_000, help="Reports published.", show_default=True)
@click.option("--connections", default=20, help="That publish them.", show_default=True)
@click.option("--runs", default=3, help="Runs of which the median counts.", show_default=True)
@click.option("--values", "k", default=100, help="Values of the attribute.", show_default=True)
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    callback=_is_checkout,
    help="Checkout of an earlier version; compare with it, too.",
)
@AS_JSON
@WRITE
@click.pass_context
def live(
    context: click.Context,
    reports: int,
    connections: int,
    runs: int,
    k: int,
    against: Path | None,
    in_json: bool,
    write: bool,
) -> None:
    """Measure counting while devices publish: how many a second, and how soon receipts come.

    On NATS as it is embedded, and on mosquitto; both over TLS as well. With --against, the
    collector and the embedded broker of another checkout get the same publishers.

    \b
    Examples:
      python scripts/benchmark.py live
      python scripts/benchmark.py live --reports 5000 --runs 1 --json
      python scripts/benchmark.py live --against ../v0.1
    """
    effort = Effort(reports, connections, runs, k)
    tell(context, "live", partial(context.obj.live, effort, against), in_json, write)
