"""Measure what allomfree costs, against its own limits and against other libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

if find_spec("protocol_spec") is None:  # a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import agent as agent_benchmark
from benchmarks import brokers as brokers_benchmark
from benchmarks import ingest as ingest_benchmark
from benchmarks import live as live_benchmark
from benchmarks import peers as peers_benchmark
from benchmarks import readers as readers_benchmark
from benchmarks import simulate as simulate_benchmark
from benchmarks import soak as soak_benchmark
from benchmarks import startup as startup_benchmark
from benchmarks import ways as ways_benchmark
from benchmarks import workers as workers_benchmark
from benchmarks.brokers_command import brokers
from benchmarks.document import PAGE
from benchmarks.live_command import live
from benchmarks.measurements import Measurement
from benchmarks.peer_environment import PeerFailed, Peers
from benchmarks.peer_environment import peers as installed_peers
from benchmarks.telling import AS_JSON, PEER_PYTHON, WRITE, tell
from benchmarks.workers_command import workers

Measure = Callable[..., list[Measurement]]


@dataclass(frozen=True, slots=True)
class Benchmarks:
    """What the commands run, and the page that --write keeps."""

    agent: Measure = agent_benchmark.measure
    startup: Measure = startup_benchmark.measure
    ingest: Measure = ingest_benchmark.measure
    live: Measure = live_benchmark.measure
    readers: Measure = readers_benchmark.measure
    simulate: Measure = simulate_benchmark.measure
    peers: Measure = peers_benchmark.measure
    accuracy: Measure = ways_benchmark.measure
    soak: Measure = soak_benchmark.measure
    workers: Measure = workers_benchmark.measure
    brokers: Measure = brokers_benchmark.measure
    install: Callable[[Path | None], AbstractContextManager[Peers]] = installed_peers
    page: Path = PAGE
    picture: Path = ways_benchmark.PICTURE
    soak_picture: Path = soak_benchmark.PICTURE


RUNS = click.option("--runs", default=5, help="Runs of which the median counts.", show_default=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(context: click.Context) -> None:
    """Measure what allomfree costs, against its own limits and against other libraries.

    Every command exits with status 1 when a limit is broken.

    \b
    Examples:
      python scripts/benchmark.py agent
      python scripts/benchmark.py all --write
    """
    context.obj = context.obj or Benchmarks()


@main.command()
@AS_JSON
@WRITE
@click.pass_context
def agent(context: click.Context, in_json: bool, write: bool) -> None:
    """Measure what the agent costs a device: memory, start-up, bytes sent, syncs of the disk.

    \b
    Examples:
      python scripts/benchmark.py agent
    """
    tell(context, "agent", context.obj.agent, in_json, write)


@main.command()
@AS_JSON
@WRITE
@click.pass_context
def startup(context: click.Context, in_json: bool, write: bool) -> None:
    """Measure the CPU time of short commands, against that of `python -c pass`.

    \b
    Examples:
      python scripts/benchmark.py startup
    """
    tell(context, "startup", context.obj.startup, in_json, write)


@main.command()
@click.option("--reports", default=100_000, help="Reports in one round.", show_default=True)
@RUNS
@click.option(
    "--large", default=1_000_000, help="Reports in a larger round; 0 for none.", show_default=True
)
@click.option("--values", "k", default=100, help="Values of the attribute.", show_default=True)
@click.option(
    "--readers", default=0, help="Instead measure ingest while N readers refresh the page."
)
@AS_JSON
@WRITE
@click.pass_context
def ingest(
    context: click.Context,
    reports: int,
    runs: int,
    large: int,
    k: int,
    readers: int,
    in_json: bool,
    write: bool,
) -> None:
    """Measure durable exactly-once ingest against a bare paho subscriber that only counts.

    With --readers: ingest while the analyst's page is read, against ingest while it is not.

    \b
    Examples:
      python scripts/benchmark.py ingest
      python scripts/benchmark.py ingest --reports 20000 --runs 1 --large 0 --json
      python scripts/benchmark.py ingest --readers 10 --reports 300000
    """
    alone = partial(context.obj.ingest, reports, runs, large, k)
    read = partial(context.obj.readers, reports, runs, k, readers)
    name, measured = ("readers", read) if readers else ("ingest", alone)
    tell(context, name, measured, in_json, write)


@main.command()
@click.option(
    "--devices", default=1_000_000, help="Devices simulated report by report.", show_default=True
)
@click.option(
    "--statistics",
    default=100_000_000,
    help="Devices simulated as counts alone.",
    show_default=True,
)
@RUNS
@click.option(
    "--peer", is_flag=True, help="Also compare with multi-freq-ldpy, which is installed for it."
)
@PEER_PYTHON
@AS_JSON
@WRITE
@click.pass_context
def simulate(
    context: click.Context,
    devices: int,
    statistics: int,
    runs: int,
    peer: bool,
    peer_python: Path | None,
    in_json: bool,
    write: bool,
) -> None:
    """Measure what the simulator costs at each depth, against a loop over users.

    \b
    Examples:
      python scripts/benchmark.py simulate
      python scripts/benchmark.py simulate --peer
    """
    with ExitStack() as stack:
        driver = (
            stack.enter_context(_peers(context.obj, peer_python)) if peer or peer_python else None
        )
        measured = partial(context.obj.simulate, statistics, devices, runs, driver)
        tell(context, "simulate", measured, in_json, write, driver)


@main.command()
@click.option("--devices", default=1_000_000, help="Devices in one round.", show_default=True)
@RUNS
@click.option(
    "--errors", default=20, help="Campaigns of multi-freq-ldpy for each budget.", show_default=True
)
@PEER_PYTHON
@AS_JSON
@WRITE
@click.pass_context
def peers(
    context: click.Context,
    devices: int,
    runs: int,
    errors: int,
    peer_python: Path | None,
    in_json: bool,
    write: bool,
) -> None:
    """Compare with multi-freq-ldpy and pure-ldp: speed, and error at equal budgets.

    They are installed into a temporary environment, which is removed at the end.

    \b
    Examples:
      python scripts/benchmark.py peers
    """
    with _peers(context.obj, peer_python) as driver:
        measured = partial(context.obj.peers, driver, devices, runs, errors)
        tell(context, "peers", measured, in_json, write, driver)


@main.command()
@click.option(
    "--campaigns",
    default=10,
    help="Runs of multi-freq-ldpy for each budget; half as many for a day of changing values.",
    show_default=True,
)
@PEER_PYTHON
@AS_JSON
@WRITE
@click.pass_context
def accuracy(
    context: click.Context, campaigns: int, peer_python: Path | None, in_json: bool, write: bool
) -> None:
    """Compare the errors of the ways of reporting, with each other and with multi-freq-ldpy.

    With --write, docs/pictures/ways-of-reporting.svg is drawn as well.

    \b
    Examples:
      python scripts/benchmark.py accuracy
    """
    with _peers(context.obj, peer_python) as driver:
        effort = ways_benchmark.Effort(campaigns)
        picture = context.obj.picture if write else None
        measured = partial(context.obj.accuracy, driver, effort, picture)
        tell(context, "accuracy", measured, in_json, write, driver)


@main.command()
@click.option("--minutes", default=20.0, help="How long.", show_default=True)
@click.option("--rate", default=200, help="Reports a second.", show_default=True)
@AS_JSON
@WRITE
@click.pass_context
def soak(context: click.Context, minutes: float, rate: int, in_json: bool, write: bool) -> None:
    """Count at a constant rate over TLS with the page open: memory, files and sizes stay flat.

    With --write, docs/pictures/soak.svg is drawn as well.

    \b
    Examples:
      python scripts/benchmark.py soak
    """
    asked = soak_benchmark.Soak(60 * minutes, rate)
    picture = context.obj.soak_picture if write else None
    tell(context, "soak", partial(context.obj.soak, asked, picture), in_json, write)


@main.command("all")
@PEER_PYTHON
@AS_JSON
@WRITE
@click.pass_context
def run_all(context: click.Context, peer_python: Path | None, in_json: bool, write: bool) -> None:
    """Run all but `soak`, `workers` and `brokers`; with --json a line each. Takes half an hour.

    \b
    Examples:
      python scripts/benchmark.py all --write
    """
    shown = {"in_json": in_json, "write": write}
    named = {**shown, "peer_python": peer_python}
    broken = 0
    for command, options in (
        (agent, shown),
        (startup, shown),
        (ingest, shown),
        (live, shown),
        (ingest, {**shown, **WITH_READERS}),
        (simulate, named),
        (peers, named),
        (accuracy, named),
    ):
        try:
            context.invoke(command, **options)
        except click.exceptions.Exit as end:
            broken |= end.exit_code
    context.exit(broken)


main.add_command(live)
main.add_command(workers)
main.add_command(brokers)
WITH_READERS: Final = {"readers": 10, "reports": 300_000}


@contextmanager
def _peers(benchmarks: Benchmarks, python: Path | None) -> Iterator[Peers]:
    """The other libraries, or in one sentence why they are not available."""
    try:
        with benchmarks.install(python) as driver:
            yield driver
    except PeerFailed as failure:
        raise click.ClickException(str(failure)) from None


if __name__ == "__main__":
    main()
