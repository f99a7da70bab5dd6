"""Measure what allomfree costs, against its own limits and against other libraries."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

if find_spec("protocol_spec") is None:  # a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import agent as agent_benchmark
from benchmarks import ingest as ingest_benchmark
from benchmarks import live as live_benchmark
from benchmarks import mechanisms as mechanisms_benchmark
from benchmarks import peers as peers_benchmark
from benchmarks import report
from benchmarks import soak as soak_benchmark
from benchmarks.peers import PeerFailed, Peers
from benchmarks.report import Measurement
from testbed.processes import TestbedError

Option = Callable[[Callable[..., None]], Callable[..., None]]

NOT_SHOWN: Final = ("in_json", "write", "peer_python")  # they change no number
WITH_READERS: Final = {"readers": 10, "reports": 300_000}


@dataclass(slots=True)
class Run:
    """One call of a command: the name its numbers get, whether it writes to the docs, and the
    versions of the libraries that it compared with."""

    name: str
    write: bool
    versions: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def peers(self, python: Path | None) -> Iterator[Peers]:
        with peers_benchmark.peers(python) as driver:
            self.versions = driver.versions()
            yield driver


def reported(measure: Callable[..., list[Measurement]]) -> Callable[..., None]:
    """A command that prints what `measure` returns; exit status 1 when a limit is broken."""

    @click.option("--json", "in_json", is_flag=True, help="Print one JSON object.")
    @click.option("--write", is_flag=True, help="Write the numbers to docs/benchmarks.md.")
    @click.pass_context
    @functools.wraps(measure)
    def command(context: click.Context, /, in_json: bool, write: bool, **options: Any) -> None:
        machine = report.machine()
        run = Run(str(context.info_name), write)
        try:
            measured = measure(run, **options)
        except (PeerFailed, TestbedError) as error:
            raise click.ClickException(f"{error}; nothing was written") from None
        more = {"machine": machine, "peers": run.versions}
        shown = report.as_json(run.name, measured, **more) if in_json else report.as_text(measured)
        click.echo(shown)
        if write:
            report.write(run.name, _command(context), measured, machine, run.versions)
        context.exit(0 if report.kept(measured) else 1)

    return command


def _command(context: click.Context) -> str:
    """How to measure the same again: the command with the options that differ from the default."""
    words = ["python scripts/benchmark.py", str(context.info_name)]
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if option.name in NOT_SHOWN or value == option.get_default(context):
            continue
        shown = value.name if isinstance(value, Path) else value  # its directory is this machine's
        words += [option.opts[0]] if value is True else [option.opts[0], str(shown)]
    return " ".join(words)


def _number(
    flag: str, default: float, text: str, name: str | None = None, *, least: int | None = None
) -> Option:
    kind = click.IntRange(least) if least is not None else None
    names = (flag, name) if name else (flag,)
    return click.option(*names, default=default, type=kind, help=text, show_default=True)


def _runs(default: int) -> Option:
    return _number("--runs", default, "Runs of which the median counts.")


PEER_PYTHON: Final = click.option(
    "--peer-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python that has the other libraries, instead of a temporary environment.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure what allomfree costs, against its own limits and against other libraries.

    Every command exits with status 1 when a limit is broken.

    \b
    Examples:
      python scripts/benchmark.py agent
      python scripts/benchmark.py all --write
    """


@main.command()
@reported
def agent(_run: Run) -> list[Measurement]:
    """Measure what the agent costs a device: memory, start-up, bytes sent, syncs of the disk."""
    return agent_benchmark.measure()


@main.command()
@reported
def startup(_run: Run) -> list[Measurement]:
    """Measure the CPU time of short commands, against that of `python -c pass`."""
    return agent_benchmark.measure_startup()


@main.command()
@_number("--reports", 100_000, "Reports in one round.")
@_runs(5)
@_number("--large", 1_000_000, "Reports in a larger round; 0 for none.")
@_number("--values", 100, "Values of the attribute.", "k")
@click.option("--readers", default=0, help="Instead measure ingest while N readers use the page.")
@reported
def ingest(
    run: Run, reports: int, runs: int, large: int, k: int, readers: int
) -> list[Measurement]:
    """Measure durable exactly-once ingest against a bare paho subscriber that only counts.

    With --readers: ingest while the analyst's page is read, against ingest while it is not.

    \b
    Examples:
      python scripts/benchmark.py ingest
      python scripts/benchmark.py ingest --reports 20000 --runs 1 --large 0 --json
      python scripts/benchmark.py ingest --readers 10 --reports 300000
    """
    if readers:
        run.name = "readers"
        return ingest_benchmark.measure_with_readers(reports, runs, k, readers)
    return ingest_benchmark.measure(reports, runs, large, k)


@main.command()
@_number("--reports", 100_000, "Reports in one round.")
@_runs(5)
@_number("--values", 100, "Values of the attribute.", "k")
@reported
def stores(_run: Run, reports: int, runs: int, k: int) -> list[Measurement]:
    """Measure ingest into PostgreSQL against ingest into SQLite; `ingest` does this as well."""
    return ingest_benchmark.measure_stores(reports, runs, k)


@main.command()
@_number("--reports", 100_000, "Reports in one round.")
@_runs(3)
@_number("--share", 0.05, "Share of a core that each worker gets.")
@reported
def workers(_run: Run, reports: int, runs: int, share: float) -> list[Measurement]:
    """Measure one, two and four workers on one NATS and one PostgreSQL.

    \b
    Examples:
      python scripts/benchmark.py workers
      python scripts/benchmark.py workers --reports 40000 --runs 1 --json
    """
    return ingest_benchmark.measure_workers(reports, runs, share)


def _check_checkout(
    _context: click.Context, _option: click.Parameter, place: Path | None
) -> Path | None:
    if place is not None and not (place / "collector" / "brokers").is_dir():
        raise click.BadParameter(f"{place} is not a checkout of allomfree with an embedded broker")
    return place


@main.command()
@_number("--reports", 20_000, "Reports published.")
@_number("--connections", 20, "Connections that publish them.")
@_runs(3)
@_number("--values", 100, "Values of the attribute.", "k")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    callback=_check_checkout,
    help="Checkout of another version to compare with, too.",
)
@reported
def live(
    _run: Run, reports: int, connections: int, runs: int, k: int, against: Path | None
) -> list[Measurement]:
    """Measure counting while devices publish: reports a second, and time until the receipts.

    On NATS as it is embedded, and on mosquitto; both over TLS as well. With --against, the
    collector and the embedded broker of another checkout get the same publishers.

    \b
    Examples:
      python scripts/benchmark.py live
      python scripts/benchmark.py live --reports 5000 --runs 1 --json
      python scripts/benchmark.py live --against ../v0.1
    """
    return live_benchmark.measure(live_benchmark.Effort(reports, connections, runs, k), against)


@main.command()
@_number("--reports", 50_000, "Reports that are published.")
@_runs(3)
@_number("--values", 41, "Values of the attribute.")
@reported
def brokers(_run: Run, reports: int, runs: int, values: int) -> list[Measurement]:
    """Measure what a report costs the broker: NATS, three nodes of it, and mosquitto.

    \b
    Examples:
      python scripts/benchmark.py brokers
      python scripts/benchmark.py brokers --reports 5000 --runs 1 --json
    """
    return live_benchmark.measure_brokers(reports, runs, values)


@main.command()
@_number("--devices", 1_000_000, "Devices simulated report by report.")
@_number("--statistics", 100_000_000, "Devices simulated as counts alone.")
@_runs(5)
@click.option("--peer", is_flag=True, help="Also compare with multi-freq-ldpy, installed for it.")
@PEER_PYTHON
@reported
def simulate(
    run: Run, devices: int, statistics: int, runs: int, peer: bool, peer_python: Path | None
) -> list[Measurement]:
    """Measure what the simulator costs at each depth, against a loop over users.

    \b
    Examples:
      python scripts/benchmark.py simulate
      python scripts/benchmark.py simulate --peer
    """
    with run.peers(peer_python) if peer or peer_python else nullcontext() as driver:
        return peers_benchmark.measure_simulator(statistics, devices, runs, driver)


@main.command()
@_number("--devices", 1_000_000, "Devices in one round.")
@_runs(5)
@_number("--errors", 20, "Campaigns of multi-freq-ldpy for each budget.", least=2)
@PEER_PYTHON
@reported
def peers(
    run: Run, devices: int, runs: int, errors: int, peer_python: Path | None
) -> list[Measurement]:
    """Compare with multi-freq-ldpy and pure-ldp: speed, and error at equal budgets.

    They are installed into a temporary environment, which is removed at the end.
    """
    with run.peers(peer_python) as driver:
        return peers_benchmark.measure(driver, devices, runs, errors)


@main.command()
@_number(
    "--campaigns", 10, "Runs of multi-freq-ldpy for each budget; half as many for a day.", least=2
)
@PEER_PYTHON
@reported
def accuracy(run: Run, campaigns: int, peer_python: Path | None) -> list[Measurement]:
    """Compare the errors of the mechanisms, with each other and with multi-freq-ldpy.

    With --write, the picture of docs/pictures is drawn as well. Also called `mechanisms`.
    """
    run.name = "accuracy"
    with run.peers(peer_python) as driver:
        picture = mechanisms_benchmark.PICTURE if run.write else None
        return mechanisms_benchmark.measure(driver, campaigns, picture)


main.add_command(accuracy, "mechanisms")


@main.command()
@_number("--minutes", 20.0, "Length of the run.")
@_number("--rate", 200, "Reports a second.")
@reported
def soak(run: Run, minutes: float, rate: int) -> list[Measurement]:
    """Count at a constant rate over TLS with the page open: memory, files and sizes stay flat.

    With --write, docs/pictures/soak.svg is drawn as well.
    """
    picture = soak_benchmark.PICTURE if run.write else None
    return soak_benchmark.measure(soak_benchmark.Soak(60 * minutes, rate), picture)


@main.command("all")
@PEER_PYTHON
@click.option("--json", "in_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--write", is_flag=True, help="Write the numbers to docs/benchmarks.md.")
@click.pass_context
def run_all(context: click.Context, peer_python: Path | None, in_json: bool, write: bool) -> None:
    """Run all but `soak`, `workers`, `brokers` and `stores`. Takes half an hour."""
    broken = 0
    for command, options in (
        (agent, {}),
        (startup, {}),
        (ingest, {}),
        (live, {}),
        (ingest, WITH_READERS),
        (simulate, {"peer_python": peer_python}),
        (peers, {"peer_python": peer_python}),
        (accuracy, {"peer_python": peer_python}),
    ):
        try:
            context.invoke(command, in_json=in_json, write=write, **options)
        except click.exceptions.Exit as end:
            broken |= end.exit_code
    context.exit(broken)


if __name__ == "__main__":
    main()
